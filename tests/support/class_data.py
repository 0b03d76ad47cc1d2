"""An archive of Kafka's parsed classes, which halves the processor time of every start of an embedded Kafka in a test.

It fits one build of Java and one class path. A temporary broker handles a few requests and writes it at its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from txbridge.embedded import EmbeddedKafka, config
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java
from txbridge.errors import TxBridgeError

_PLAIN = config._PROFILES["fast-start"]
_TIMEOUT_S = 60.0  # for each step of the training; the slowest, the dump, takes 3 s on two idle cores


def use_class_data() -> None:
    """Let embedded Kafkas of this process use the archive, if it was made."""
    with contextlib.suppress(TxBridgeError):
        if (archive := _archive_path()).is_file():
            # -Xshare:auto: an archive that does not fit, as with another release of Kafka, is ignored.
            _set_flags("-Xshare:auto", f"-XX:SharedArchiveFile={archive}")


def make_class_data() -> None:
    """Make the archive, unless it is there or this Java cannot, and use it. Waits while another process makes it."""
    # It extends the archive of the JDK's own classes, which slim builds lack.
    base = find_java().executable.parents[1] / "lib" / "server" / "classes.jsa"
    if base.is_file() and not (archive := _archive_path()).is_file():
        JarCache().ensure_jars()
        archive.parent.mkdir(exist_ok=True)
        with archive.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.is_file():
                _write(archive)
    use_class_data()


def _write(archive: Path) -> None:
    fresh = archive.with_suffix(f".{os.getpid()}.new")
    _set_flags(f"-XX:ArchiveClassesAtExit={fresh}")
    try:
        with EmbeddedKafka() as kafka:
            _exercise(kafka.bootstrap_servers)
            kafka.stop(_TIMEOUT_S)
    finally:
        config._PROFILES["fast-start"] = _PLAIN
    fresh.replace(archive)


def _archive_path() -> Path:
    """Beside the jars, so that it is deleted with them."""
    java = find_java()
    build = hashlib.sha256(f"{java.executable}\0{java.version}".encode()).hexdigest()[:12]
    return JarCache().folder / "cds" / f"java-{java.version}-{build}.jsa"


def _set_flags(*flags: str) -> None:
    config._PROFILES["fast-start"] = (*_PLAIN, *flags, "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _exercise(bootstrap_servers: str) -> None:
    """Write a Kafka transaction and read it, so that the archive has the classes for this, too."""
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    topic = "training"
    admin = AdminClient(client)  # a client without a reference fails its requests
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_TIMEOUT_S)
    producer = Producer({**client, "transactional.id": topic})
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key")
    producer.commit_transaction(_TIMEOUT_S)
    # Without commits: looking for the group's coordinator would take two seconds more.
    consumer = Consumer({**client, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(_TIMEOUT_S)
    consumer.close()
