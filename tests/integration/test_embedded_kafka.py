"""A real broker: its life, its deaths, and its messages when it cannot start.

The tests search all processes of the machine for command lines that name the folder of the test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.command_line import run_txbridge
from tests.support.harness import WorkerProcess
from tests.support.listeners import Commits
from txbridge import Message, TransactionProducer
from txbridge.embedded import BrokenCacheError, EmbeddedKafka, KafkaStartError
from txbridge.embedded.jars import KAFKA_VERSION, JarCache, kafka_jars
from txbridge.embedded.process import process_identity
from txbridge.errors import UsageError

ROOT = Path(__file__).parents[2]
ARTIFACTS = kafka_jars(KAFKA_VERSION)


def processes(folder: Path) -> list[int]:
    """All live processes whose command line names the folder. A zombie has no command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def none_left(folder: Path, timeout: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout
    while processes(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes(folder)


def is_alive(pid: int) -> bool:
    return process_identity(pid) is not None


def client(kafka: EmbeddedKafka, **settings) -> dict:
    return {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, **settings}


def create(kafka: EmbeddedKafka, topic: str) -> None:
    admin = AdminClient(client(kafka))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)


def produce(kafka: EmbeddedKafka, topic: str, value: bytes) -> None:
    failures = []
    producer = Producer(client(kafka, acks="all"))
    producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    producer.flush(120)
    assert failures == [None]


def values(kafka: EmbeddedKafka, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(client(kafka, **{"group.id": "reader", "enable.auto.commit": False}))
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = [message.value() for message in consumer.consume(count, 20)]
    consumer.close()
    return got


@pytest.fixture
def kafka(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path / "data") as kafka:
        yield kafka
    assert none_left(tmp_path)


# --- life


def test_start_use_stop_leaves_nothing():
    kafka = EmbeddedKafka()
    with pytest.raises(UsageError, match="no port before start"):
        _ = kafka.bootstrap_servers
    with kafka:
        assert kafka.bootstrap_servers == f"127.0.0.1:{kafka.port}"
        assert f"kafka.Kafka\0{kafka.data_dir}/server.properties\0" in Path(f"/proc/{kafka.pid}/cmdline").read_text()
        create(kafka, "hello")
        produce(kafka, "hello", b"world")
        assert values(kafka, "hello", 1) == [b"world"]
        pid, folder, port = kafka.pid, kafka.data_dir, kafka.port
        assert len(processes(folder)) == 2, "Java and its supervisor"
        with pytest.raises(UsageError, match="runs already"):
            kafka.start()
    assert not kafka.is_running()
    assert not is_alive(pid)
    assert processes(folder) == []
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    kafka.stop()
    with pytest.raises(UsageError, match="does not run"):
        _ = kafka.pid


def test_listens_on_loopback_only(kafka):
    sockets = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=False)
    if sockets.returncode != 0:
        pytest.skip("needs ss")
    addresses = [line.split()[3] for line in sockets.stdout.splitlines() if f"pid={kafka.pid}," in line]
    assert len(addresses) == 2
    assert all(address.replace("[::ffff:127.0.0.1]", "127.0.0.1").startswith("127.0.0.1:") for address in addresses)


def test_user_settings_reach_the_broker(tmp_path):
    folder = tmp_path / "mit Leerzeichen und Ä"
    with EmbeddedKafka(
        data_dir=folder, config={"auto.create.topics.enable": "true"}, jvm_profile="throughput"
    ) as kafka:
        assert "-XX:+UseG1GC" in Path(f"/proc/{kafka.pid}/cmdline").read_text().split("\0")
        producer = Producer(client(kafka))
        producer.produce("made-on-demand", b"v")
        assert producer.flush(120) == 0
    assert (folder / "kafka" / "made-on-demand-0").is_dir()


# --- restarts


def test_data_survive_a_restart_and_a_new_object(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path) as first:
        port = first.port
        create(first, "kept")
        produce(first, "kept", b"one")
        first.restart()
        assert first.port == port
        produce(first, "kept", b"two")
        cluster = AdminClient(client(first)).list_topics(timeout=120).cluster_id
    with EmbeddedKafka(data_dir=tmp_path) as second:
        assert values(second, "kept", 2) == [b"one", b"two"]
        assert AdminClient(client(second)).list_topics(timeout=120).cluster_id == cluster


# --- failures


def test_wrong_setting_is_quoted_and_the_log_is_named():
    with pytest.raises(KafkaStartError) as caught:
        EmbeddedKafka(config={"log.retention.ms": "soon"}).start()
    message = str(caught.value)
    assert "Invalid value soon for configuration log.retention.ms" in message
    assert caught.value.exit_code == 1
    log = Path(message.rsplit("All of it is in ", 1)[1])
    assert "Invalid value soon" in log.read_text()
    shutil.rmtree(log.parents[1])


@pytest.mark.long
def test_start_time_out(tmp_path):
    EmbeddedKafka(data_dir=tmp_path).start().stop()
    with pytest.raises(KafkaStartError, match="Kafka did not answer in time") as caught:
        EmbeddedKafka(data_dir=tmp_path).start(timeout=0.2)
    assert caught.value.exit_code is None
    assert processes(tmp_path) == []
    assert not (tmp_path / "broker.json").exists()


def test_no_memory(tmp_path):
    with pytest.raises(KafkaStartError, match=r"Java lacks memory\. Give the broker more"):
        EmbeddedKafka(data_dir=tmp_path, heap="2m").start()
    assert processes(tmp_path) == []


# --- the cache of jars


@pytest.fixture(scope="module")
def real_cache():
    cache = JarCache()
    cache.ensure_jars()
    return cache


@pytest.fixture
def mirror(real_cache, tmp_path, monkeypatch):
    """A repository on this machine with the real jars (hard links)."""
    root = tmp_path / "mirror"
    for one in ARTIFACTS:
        path = root / one.path
        path.parent.mkdir(parents=True)
        os.link(real_cache.folder / one.file_name, path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=root))
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    monkeypatch.setenv("TXBRIDGE_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def alter(path: Path, content: bytes) -> None:
    path.unlink()  # never write into a hard link to the real cache
    path.write_bytes(content)


@pytest.mark.long
@pytest.mark.usefixtures("mirror")
def test_two_processes_fetch_at_once_then_damage_is_found_and_repaired(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("TXBRIDGE_CACHE_DIR", str(root))
    program = "from txbridge.embedded.jars import JarCache; JarCache().ensure_jars()"
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = sorted(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said == [
        "Another process is fetching Kafka; waiting for it.\n",
        "Fetching Kafka 4.3.1 (46 jars, 42 MB), once for all projects.\n",
    ]
    cache = JarCache()
    assert sorted(path.name for path in root.iterdir()) == ["kafka-4.3.1", "kafka-4.3.1.lock"]
    assert len(list(cache.folder.iterdir())) == len(ARTIFACTS)

    jar = cache.folder / "kafka-clients-4.3.1.jar"
    whole = jar.read_bytes()
    alter(jar, whole[:1000])
    with pytest.raises(BrokenCacheError) as caught:
        EmbeddedKafka().start()
    assert str(caught.value) == (
        f"the Kafka jars in {cache.folder} are damaged: kafka-clients-4.3.1.jar has 1000 bytes instead of 10204032. "
        "Fetch them again with `txbridge kafka start --refetch`"
    )
    alter(jar, b"\0" * len(whole))
    with pytest.raises(KafkaStartError, match=r"A jar is damaged\. Fetch them again with"):
        EmbeddedKafka().start()

    cache.ensure_jars(refetch=True)
    assert jar.read_bytes() == whole
    with EmbeddedKafka() as kafka:
        assert kafka.is_running()


# --- the command line


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "txbridge", "kafka", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def start_in_foreground(folder: Path, *command: str) -> subprocess.Popen[str]:
    words = command or ("kafka", "start")
    return subprocess.Popen(
        [sys.executable, "-m", "txbridge", *words, "--port", "0", "--data-dir", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_detached_start_status_stop(tmp_path):
    folder = str(tmp_path)
    started = run_cli("start", "--detach", "--port", "0", "--data-dir", folder)
    assert started.returncode == 0, started.stderr
    status = run_cli("status", "--data-dir", folder, "--format", "json")
    assert status.returncode == 0
    report = json.loads(status.stdout)
    pid = report["pid"]
    try:
        assert is_alive(pid)
        assert processes(tmp_path) == [pid], "Java alone, with no process of ours beside it"
        assert started.stdout == (
            f"Kafka 4.3.1 is ready on {report['bootstrap_servers']} (process {pid}, data in {folder}). "
            f"Stop it with `txbridge kafka stop --data-dir {folder}`.\n"
        )
        assert {**report, "cluster_id": "", "bootstrap_servers": "", "pid": 0} == {
            "running": True,
            "answers": True,
            "bootstrap_servers": "",
            "pid": 0,
            "version": "4.3.1",
            "cluster_id": "",
            "detached": True,
            "data_dir": folder,
            "log_file": f"{folder}/logs/server.log",
        }
        again = run_cli("start", "--detach", "--port", "0", "--data-dir", folder)
        assert again.returncode == 2
        assert f"is in use by the broker on {report['bootstrap_servers']} (process {pid})" in again.stderr
    finally:
        stopped = run_cli("stop", "--data-dir", folder)
    assert stopped.returncode == 0
    assert stopped.stdout == f"Stopped Kafka on {report['bootstrap_servers']} (process {pid}).\n"
    assert not is_alive(pid)
    assert run_cli("stop", "--data-dir", folder).stdout == f"No Kafka is running on {folder}.\n"
    assert run_cli("status", "--data-dir", folder).returncode == 1


def settings_in(started: subprocess.CompletedProcess[str]) -> Path:
    """The file with the settings of the superuser, which the second line of the output names last."""
    return Path(started.stdout.splitlines()[0].rpartition(" ")[2])


@pytest.mark.long
def test_a_producer_and_a_worker_use_the_secure_listener_with_the_settings_that_it_prints(tmp_path):
    folder = ("--data-dir", str(tmp_path / "kafka"))
    started = run_cli("start", "--detach", "--port", "0", "--secure-port", "0", *folder)
    assert started.returncode == 0, started.stderr
    try:
        file = settings_in(started)
        settings = tomllib.loads(file.read_text())["kafka"]
        assert settings["security.protocol"] == "sasl_ssl"
        assert f"With TLS and SASL it is on {settings['bootstrap.servers']}; " in started.stdout
        made = run_txbridge("topics", "apply", "--config", str(file), "--real-topic", "orders.placed")
        assert made.returncode == 0, made.stderr
        worker = WorkerProcess(["--config", str(file)], tmp_path / "worker.log", {"TXBRIDGE_LOG_FORMAT": "json"})
        try:
            with TransactionProducer("orders", Commits(), settings) as producer:
                producer.send_message_in_transaction(Message("orders.placed", b"order 1"))
            reader = Consumer({**settings, "group.id": "reader", "auto.offset.reset": "earliest"})
            reader.subscribe(["orders.placed"])
            assert reader.consume(1, 60)[0].value() == b"order 1"
            reader.close()
        finally:
            worker.stop()
        wrong = run_txbridge("pending", "--config", str(file), "--kafka", "sasl.password=guessed")
        assert (wrong.returncode, "Authentication failed" in wrong.stderr) == (2, True), wrong.stderr
    finally:
        run_cli("stop", *folder)


def test_a_secure_listener_keeps_its_key_and_its_users_and_lets_them_do_what_acls_allow(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path, secure_port=0) as kafka:
        user = kafka.secure.add_user("orders")
        admin = AdminClient(kafka.secure.settings)
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
        kafka.restart()
        certificate = Path(user["ssl.ca.location"]).read_bytes()
        assert "orders" not in AdminClient(user).list_topics(timeout=60).topics
        assert "orders" in AdminClient(kafka.secure.settings).list_topics(timeout=60).topics
    with EmbeddedKafka(data_dir=tmp_path, secure_port=0) as kafka:
        assert Path(user["ssl.ca.location"]).read_bytes() == certificate
        again = {**user, "bootstrap.servers": kafka.secure.bootstrap_servers}
        assert AdminClient(again).list_topics(timeout=60).brokers
        assert (tmp_path / "secure").stat().st_mode & 0o077 == 0


def test_a_secure_port_that_cannot_be():
    for wrong in ({"port": 9092, "secure_port": 9092}, {"secure_port": 65_536}, {"secure_port": 0, "brokers": 3}):
        with pytest.raises(UsageError):
            EmbeddedKafka(**wrong)
    with pytest.raises(UsageError, match="give secure_port"):
        EmbeddedKafka().secure.add_user("orders")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_foreground_cleanly_and_leaves_no_process(tmp_path, number):
    with start_in_foreground(tmp_path) as foreground:
        assert foreground.stdout.readline().startswith("Kafka 4.3.1 is ready on 127.0.0.1:")
        assert run_cli("status", "--data-dir", str(tmp_path)).returncode == 0
        os.killpg(foreground.pid, number)
        assert foreground.wait(120) == 0
        assert foreground.stderr.read() == "Kafka is stopped.\n"
    assert none_left(tmp_path, timeout=0)
    assert (tmp_path / "kafka" / ".kafka_cleanshutdown").exists()


@pytest.mark.long
def test_ctrl_c_before_it_is_ready_leaves_no_process(tmp_path):
    EmbeddedKafka(data_dir=tmp_path).start().stop()  # formats the folder, so that the broker is next
    with start_in_foreground(tmp_path) as foreground:
        while not (tmp_path / "broker.json").exists():
            assert foreground.poll() is None
            time.sleep(0.01)
        os.killpg(foreground.pid, signal.SIGINT)
        assert foreground.wait(120) == 130
        assert foreground.stdout.read() == ""
    assert none_left(tmp_path, timeout=0)


def test_stop_ends_a_foreground_start(tmp_path):
    with start_in_foreground(tmp_path) as foreground:
        foreground.stdout.readline()
        assert run_cli("stop", "--data-dir", str(tmp_path)).returncode == 0
        assert foreground.wait(120) == 0
        assert foreground.stderr.read() == "Kafka was stopped.\n"


@pytest.mark.parametrize("command", [["kafka", "start"], ["dev", "--metrics-port", "0"]])
def test_death_of_the_foreground_broker_is_reported(tmp_path, command):
    with start_in_foreground(tmp_path, *command) as foreground:
        while "Ctrl-C" not in foreground.stdout.readline():
            assert foreground.poll() is None
        os.kill(json.loads((tmp_path / "broker.json").read_text())["pid"], signal.SIGKILL)
        assert foreground.wait(120) == 2
        assert "error: Kafka ended with exit code 137." in foreground.stderr.read()
    assert none_left(tmp_path, timeout=0)


def test_kill_9_of_the_parent_leaves_no_process_and_no_folder():
    program = (
        "import time; from txbridge.embedded import EmbeddedKafka; k = EmbeddedKafka().start(); "
        "print(k.data_dir, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        folder = Path(parent.stdout.readline().strip())
        assert len(processes(folder)) == 2
        parent.kill()
    assert none_left(folder)
    assert not folder.exists()
