"""Starts that fail because another program took a port: they are tried again with another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from txbridge.embedded import EmbeddedKafka, KafkaStartError, server
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import Java

LOST = KafkaStartError("lost", 1, "java.net.BindException: Address already in use")
OTHER = KafkaStartError("other", 1, "java.lang.OutOfMemoryError")


@pytest.mark.parametrize(
    ("failures", "attempts", "why"),
    [([LOST, LOST], 3, None), ([LOST, LOST, LOST], 3, "lost"), ([LOST, OTHER], 2, "other")],
)
def test_a_lost_port_is_replaced_twice_and_nothing_else_is_tried_again(tmp_path, monkeypatch, failures, attempts, why):
    started = []

    def start_once(kafka, *_, **__):
        started.append(kafka)
        if len(started) <= len(failures):
            raise failures[len(started) - 1]

    monkeypatch.setattr(server, "find_java", lambda: Java(Path("/no/java"), 17, "17.0.15"))
    monkeypatch.setattr(JarCache, "ensure_jars", lambda _: None)
    monkeypatch.setattr(EmbeddedKafka, "_start_once", start_once)
    kafka = EmbeddedKafka(data_dir=tmp_path)
    if why is None:
        kafka.start()
    else:
        with pytest.raises(KafkaStartError, match=why):
            kafka.start()
    assert len(started) == attempts
