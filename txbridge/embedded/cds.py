"""Class-data archives: the JVM maps Kafka's parsed classes from a file, which halves the time of every later start.

An archive fits one build of Java and one class path. It is made once, by a temporary broker that handles a few requests
and then ends. If that fails, brokers start without an archive, half a second to a second more slowly, with no error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from txbridge.embedded.java import Java


def archive_path(jar_folder: Path, java: Java) -> Path:
    """The path of the archive for this Java. It is in the folder of the jars and is deleted with them."""
    build = hashlib.sha256(f"{java.executable}\0{java.vm}".encode()).hexdigest()[:12]
    return jar_folder / "cds" / f"java-{java.version}-{build}.jsa"


def supports_archives(java: Java) -> bool:
    """Whether this Java can make an archive. It extends the one of the JDK's own classes, which slim builds lack."""
    # OpenJ9 has a class cache of its own and takes none of these flags.
    base = java.executable.parents[1] / "lib" / "server" / "classes.jsa"
    return "OpenJ9" not in java.vm and base.is_file()


def dump_flags(archive: Path) -> list[str]:
    return [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def use_flags(archive: Path) -> list[str]:
    # -Xshare:auto: an archive that does not fit is ignored. The log is off because it would say so on standard output.
    return ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def ensure_archive(archive: Path, train: Callable[[Path], None]) -> bool:
    """Whether the archive is there. If not, make it with `train(path)`; a failed attempt is not repeated."""
    if archive.is_file():
        return True
    failed = archive.with_suffix(".failed")
    if failed.exists():
        return False
    temporary = archive.with_suffix(f".{os.getpid()}.new")
    with contextlib.ExitStack() as stack:
        try:
            archive.parent.mkdir(exist_ok=True)
            lock = stack.enter_context(archive.with_suffix(".lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a read-only cache; or another process makes it right now and need not be waited for
            return False
        for left_over in archive.parent.glob(f"{archive.stem}.*.new"):  # of a process that was killed
            left_over.unlink(missing_ok=True)
        stack.callback(temporary.unlink, missing_ok=True)
        try:
            train(temporary)
            with temporary.open("rb") as written:
                os.fsync(written.fileno())  # the JVM trusts the content, so no power cut may leave a hole in it
            temporary.replace(archive)
        except Exception as error:  # noqa: BLE001 - whatever it is, a start without the archive works
            give_up(archive, str(error))
            return False
    return True


def give_up(archive: Path, reason: str) -> None:
    """Do not use or make this archive again, until the jars are fetched anew."""
    with contextlib.suppress(OSError):
        archive.with_suffix(".failed").write_text(reason + "\n")
        archive.unlink(missing_ok=True)


def exercise(bootstrap_servers: str, timeout: float) -> None:
    """Create a topic, write one Kafka transaction and read it, so that the archive has the classes for this, too.

    `timeout` is in seconds and for each step; raises KafkaException when one fails.
    """
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    topic = "training"
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout)
    producer = Producer({**client, "transactional.id": topic})
    producer.init_transactions(timeout)
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key")
    producer.commit_transaction(timeout)
    # Without commits: looking for the group's coordinator would take two seconds more.
    consumer = Consumer({**client, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(timeout)
    consumer.close()
