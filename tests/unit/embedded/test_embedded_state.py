from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from txbridge.cli import kafka
from txbridge.embedded import ports, process
from txbridge.embedded.process import ChildProcess, stop_together
from txbridge.errors import EnvironmentProblemError, UsageError


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def state_of(pid: int, identity: str | None) -> process.BrokerState:
    return process.BrokerState(pid, identity or "", 9092, "4.3.1", "MkU3OEVBNTcwNTJENDM2Qk", detached=True)


def test_written_and_read(tmp_path, sleeper):
    written = state_of(sleeper.pid, process.process_identity(sleeper.pid))
    process.write_state(tmp_path, written)
    assert json.loads((tmp_path / "broker.json").read_text()) == {
        "pid": sleeper.pid,
        "identity": written.identity,
        "port": 9092,
        "version": "4.3.1",
        "cluster_id": "MkU3OEVBNTcwNTJENDM2Qk",
        "detached": True,
    }
    assert process.running_broker(tmp_path) == written
    assert written.bootstrap_servers == "127.0.0.1:9092"


def test_process_that_has_ended(tmp_path, sleeper):
    process.write_state(tmp_path, state_of(sleeper.pid, process.process_identity(sleeper.pid)))
    sleeper.kill()
    sleeper.wait()
    assert process.read_state(tmp_path) is not None
    assert process.running_broker(tmp_path) is None


def test_zombie_is_gone(sleeper):
    sleeper.kill()
    while f"{sleeper.pid} (sleep) Z" not in Path(f"/proc/{sleeper.pid}/stat").read_text():
        time.sleep(0.01)
    assert process.process_identity(sleeper.pid) is None


def test_reused_process_id_is_not_our_broker(tmp_path, sleeper):
    stale = state_of(sleeper.pid, "12345")
    process.write_state(tmp_path, stale)
    assert process.running_broker(tmp_path) is None
    stop_together([process.StoredBroker(tmp_path, stale)], 1)
    assert sleeper.poll() is None, "a foreign process must not be stopped"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x"}', "null"])
def test_unreadable_state_file_is_no_broker(tmp_path, content):
    (tmp_path / "broker.json").write_text(content)
    assert process.running_broker(tmp_path) is None


def test_stop_kills_what_ignores_it(tmp_path):
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout.readline() == b"1\n"
        running = state_of(stubborn.pid, process.process_identity(stubborn.pid))
        stop_together([process.StoredBroker(tmp_path, running)], 0.2)
        assert stubborn.wait() == -9


def test_a_data_folder_has_one_owner(tmp_path, sleeper):
    with process.data_lock(tmp_path):
        with pytest.raises(EnvironmentProblemError, match=f"{tmp_path} is in use by another process"):
            process.data_lock(tmp_path).__enter__()
        process.write_state(tmp_path, state_of(sleeper.pid, process.process_identity(sleeper.pid)))
        with pytest.raises(
            EnvironmentProblemError, match=f"in use by the broker on 127.0.0.1:9092 .process {sleeper.pid}"
        ):
            process.data_lock(tmp_path).__enter__()
    with process.data_lock(tmp_path):
        pass


def test_the_lock_lasts_as_long_as_the_program_that_inherits_it(tmp_path):
    with process.data_lock(tmp_path) as lock:
        child = ChildProcess.launch_program(["sleep", "60"], output=tmp_path / "log", kept_file=lock, may_detach=True)
    with pytest.raises(EnvironmentProblemError, match="is in use"):
        process.data_lock(tmp_path).__enter__()
    child.detach()
    with pytest.raises(EnvironmentProblemError, match="is in use"):
        process.data_lock(tmp_path).__enter__()
    os.kill(child.pid, signal.SIGKILL)
    while process.process_identity(child.pid) is not None:
        time.sleep(0.01)
    with process.data_lock(tmp_path):
        pass


def test_free_port_is_free_and_below_the_range_for_outgoing_connections(monkeypatch, tmp_path):
    port = ports.free_port()
    assert ports.is_free(port)
    (tmp_path / "range").write_text("20000\t20010\n")
    monkeypatch.setattr(ports, "_EPHEMERAL_RANGE", tmp_path / "range")
    assert all(10_240 <= ports.free_port() < 20_000 for _ in range(20))


def test_taken_port_says_what_to_do():
    with ports.socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EnvironmentProblemError) as caught:
            ports.require_free(port)
    assert str(caught.value) == (
        f"port {port} on 127.0.0.1 is taken. Choose another with --port (0 finds a free one; in Python: "
        f"EmbeddedKafka(port=...)), or stop what listens there: `ss -ltnp 'sport = :{port}'` names it"
    )


def test_settings_of_the_command_line():
    assert kafka.parse_settings(["a.b=c", " d = e=f "]) == {"a.b": "c", "d": "e=f"}
    for wrong in ("a.b", "=c", " =c"):
        with pytest.raises(UsageError, match="--broker-config takes NAME=VALUE"):
            kafka.parse_settings([wrong])


def test_status_of_nothing(tmp_path):
    done = CliRunner().invoke(kafka.app, ["status", "--data-dir", str(tmp_path), "--format", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "running": False,
        "answers": False,
        "bootstrap_servers": None,
        "pid": None,
        "version": None,
        "cluster_id": None,
        "detached": None,
        "data_dir": str(tmp_path),
        "log_file": str(tmp_path / "logs" / "server.log"),
    }


def test_status_recognises_a_stale_file(tmp_path):
    process.write_state(tmp_path, state_of(os.getpid(), "not when this process started"))
    done = CliRunner().invoke(kafka.app, ["status", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == "running            no"
    assert done.stdout.splitlines()[-1] == (f"(the last broker, process {os.getpid()}, ended without being stopped)")
