"""An archive of Kafka's parsed classes, which halves the processor time of every start of an embedded Kafka in a test.

It fits one build of Java and one class path. A temporary broker writes it at its end.
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

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_TIMEOUT_S = 60.0  # for each step of the training; the slowest, the dump, takes 3 s on two idle cores


def use_class_data() -> None:
    """Let embedded Kafkas of this process use the archive, if it was made."""
    with contextlib.suppress(TxBridgeError):
        archive = _archive_path()
        if archive.is_file():
            # -Xshare:auto: an archive that does not fit, as with another release of Kafka, is ignored.
            _add_flags("-Xshare:auto", f"-XX:SharedArchiveFile={archive}")


def make_class_data() -> None:
    """Make the archive, unless it is there or this Java cannot. Waits while another process makes it."""
    archive = _archive_path()
    # It extends the archive of the JDK's own classes, which slim builds lack.
    base = find_java().executable.parents[1] / "lib" / "server" / "classes.jsa"
    if archive.is_file() or not base.is_file():
        return
    JarCache().ensure_jars()
    archive.parent.mkdir(exist_ok=True)
    fresh = archive.with_suffix(f".{os.getpid()}.new")
    with archive.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        before = config._PROFILES["fast-start"]
        _add_flags(f"-XX:ArchiveClassesAtExit={fresh}")
        try:
            with EmbeddedKafka() as kafka:
                _exercise(kafka.bootstrap_servers)
                kafka.stop(_TIMEOUT_S)
        finally:
            config._PROFILES["fast-start"] = before
        fresh.replace(archive)


def _archive_path() -> Path:
    """Beside the jars, so that it is deleted with them."""
    java = find_java()
    build = hashlib.sha256(f"{java.executable}\0{java.version}".encode()).hexdigest()[:12]
    return JarCache().folder / "cds" / f"java-{java.version}-{build}.jsa"


def _add_flags(*flags: str) -> None:
    config._PROFILES["fast-start"] += (*flags, *_QUIET)


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
