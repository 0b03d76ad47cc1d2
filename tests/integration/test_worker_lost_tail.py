"""HALF or END that loses its tail on disk and grows again: no decision hits another message, and a person must act."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.harness import COMMIT, Bridge, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.config import producer_config
from txbridge.kafka.fenced_producer import FencedProducer
from txbridge.operations import acknowledge_loss
from txbridge.operations.acknowledge_loss import acknowledge
from txbridge.operations.reading import read_view
from txbridge.worker import partitions


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker of the test's own, whose files it may damage."""
    with EmbeddedKafka(data_dir=tmp_path / "kafka") as kafka:
        yield kafka


def _lose_tail(kafka: EmbeddedKafka, topic: str, offset: int) -> None:
    """Remove the records of partition 0 from this offset on, like a power loss before they were on disk."""
    kafka.kill()
    [log] = kafka.data_dir.glob(f"**/{topic}-0/*.log")
    data, at = log.read_bytes(), 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        if base >= offset:
            break
        at += 12 + length
    with log.open("r+b") as file:
        file.truncate(at)
    for index in (*log.parent.glob("*.index"), *log.parent.glob("*.timeindex"), *log.parent.glob("*.snapshot")):
        index.unlink()
    kafka.start()


def _another_client(bridge: Bridge) -> None:
    """Replace the client: Kafka refuses the old one, which has numbered the lost records. A new one notices nothing."""
    bridge._producer = Producer(producer_config({"bootstrap.servers": bridge.bootstrap_servers}))


def test_p3_a_commit_never_delivers_what_has_grown_again_at_its_offset(
    own_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "REFUSED_RETRY_S", 4.0)
    with Bridge(own_kafka.bootstrap_servers, "lost tail", partitions=1) as bridge:
        topic = bridge.create_topic("real")
        with bridge.local_owner(park_after=100):
            kept = bridge.prepare(topic, b"kept", partition=0)
            delivered = bridge.prepare(topic, b"delivered", partition=0)
            bridge.decide(delivered, COMMIT)
            bridge.wait_visible(topic, [b"delivered"])
            lost = bridge.prepare(topic, b"lost", partition=0)
            eventually(lambda: bridge.parked_states(0) == ["pending", "pending"])
        _lose_tail(own_kafka, bridge.names.half, lost.offset)
        _another_client(bridge)
        others = bridge.prepare_many(topic, [b"other %d" % number for number in range(4)], partition=0)
        assert others[0].offset == lost.offset
        bridge.decide(lost, COMMIT)
        refused = bridge.local_owner(park_after=100)
        refused.wait_error(f"holds another record at offset {lost.offset}", "txbridge acknowledge 0")
        connection = bridge.connection()
        assert any("holds another record" in warning for warning in read_view(connection, 0).warnings)
        # The partition does not recover by itself.
        more = bridge.prepare_many(topic, [b"more %d" % number for number in range(4)], partition=0)
        assert not refused.owner.status.serving
        with monkeypatch.context() as patch:
            patch.setattr(acknowledge_loss, "FencedProducer", _fenced(times=5))
            with pytest.raises(EnvironmentProblemError, match="workers took partition 0 over from this command 5"):
                acknowledge(connection, 0, reason="power loss", operator="ann")
            patch.setattr(acknowledge_loss, "FencedProducer", _fenced(times=1))
            found = acknowledge(connection, 0, reason="power loss", operator="ann")
        assert found.is_written
        assert f"half messages from offset {lost.offset} up to {lost.offset} are lost" in found.lines
        assert any(line.startswith("1 open message") for line in found.lines)
        refused.wait_serving()
        bridge.decide_many([*others, *more], COMMIT)
        bridge.decide(kept, COMMIT)
        values = [b"kept", b"delivered", *(b"other %d" % number for number in range(4))]
        bridge.wait_visible(topic, [*values, *(b"more %d" % number for number in range(4))])
        assert set(bridge.visible(topic).values()) == {1}
        assert b"lost" not in bridge.visible(topic)
        cut = bridge.checkpoint(0)["cut"]
        assert isinstance(cut, dict)
        assert (cut["half"], cut["by"], cut["reason"]) == (lost.offset, "ann", "power loss")
        refused.stop()
        assert not acknowledge(connection, 0, reason="again", operator="ann").is_written


def _fenced(*, times: int) -> type[FencedProducer]:
    """Make a kind of fence. So many times it is lost as soon as it is taken, as to an owner that tries again."""
    taken: list[FencedProducer] = []

    class Fenced(FencedProducer):
        def take_fence(self) -> None:
            super().take_fence()
            taken.append(self)
            if len(taken) <= times:
                FencedProducer(self._kafka, self._transactional_id, self._topic, self._commit_timeout_ms).take_fence()

    return Fenced
