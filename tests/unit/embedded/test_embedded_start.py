"""Starts that fail and are tried again: after a crash without the archive, after a lost port with another port."""

from __future__ import annotations

from pathlib import Path

import pytest

from txbridge.embedded import EmbeddedKafka, KafkaStartError, cds, server
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import Java

CRASH = KafkaStartError("crashed", 134, "A fatal error has been detected by the Java Runtime Environment")
LOST = KafkaStartError("lost", 1, "java.net.BindException: Address already in use")


class Kafka(EmbeddedKafka):
    """Each start ends as the test says."""

    def __init__(self, *errors: KafkaStartError, folder: Path) -> None:
        super().__init__(data_dir=folder / "data", cache_dir=folder / "cache")
        self.errors = list(errors)
        self.with_archive: list[bool] = []

    def _start_once(self, runtime, deadline, *, may_detach):
        self.with_archive.append(runtime.archive is not None)
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive that was made earlier, for a Java and jars that are not needed here."""
    java = Java(tmp_path / "jdk" / "bin" / "java", 17, "17.0.15", "OpenJDK 17.0.15+6")
    base = tmp_path / "jdk" / "lib" / "server" / "classes.jsa"
    archive = cds.archive_path(JarCache(tmp_path / "cache").folder, java)
    for path in (base, archive):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"classes")
    monkeypatch.setattr(server, "find_java", lambda: java)
    monkeypatch.setattr(JarCache, "ensure", lambda _: None)
    return archive


@pytest.mark.parametrize("order", [(CRASH, LOST, LOST), (LOST, CRASH, LOST), (LOST, LOST, CRASH)])
def test_a_crash_with_the_archive_is_no_lost_port(tmp_path, archive, order):
    kafka = Kafka(*order, folder=tmp_path)
    kafka.start()
    crashed = order.index(CRASH)
    assert kafka.with_archive == [number <= crashed for number in range(4)]
    assert not archive.exists()


@pytest.mark.usefixtures("archive")
def test_three_lost_ports_are_no_coincidence(tmp_path):
    kafka = Kafka(LOST, LOST, LOST, folder=tmp_path)
    with pytest.raises(KafkaStartError, match="lost"):
        kafka.start()
    assert kafka.errors == []
