"""P3 when Kafka's idempotence fails: a half message is stored in HALF twice, and delivered once."""

from __future__ import annotations

import signal

import pytest

from tests.support.harness import COMMIT, ROLLBACK, Bridge, eventually
from txbridge.embedded import EmbeddedKafka


def _copies(bridge: Bridge) -> dict[bytes, bytes]:
    """From the discard topic: place of each copy, and half coordinates of its original."""
    return {
        record["TXB_SOURCE"].rpartition(b"TOPIC:")[2]: record["TXB_HALF"]
        for record in bridge.discarded()
        if record["TXB_REASON"] == b"COPY"
    }


def test_p3_a_half_message_that_was_sent_twice_is_one_message(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    bridge.worker()
    values = [b"end names the first", b"end names the copy", b"only a check decides", b"rolled back by the copy"]
    first = [bridge.prepare(topic, value, partition=0) for value in values]
    again = [bridge.send_again(one, topic, value) for one, value in zip(first, values, strict=True)]
    with bridge.member("group") as member:
        bridge.decide(first[0], COMMIT)
        bridge.decide(again[1], COMMIT)
        bridge.decide(again[3], ROLLBACK)
        eventually(lambda: member.checks(first[2]), 30, "the third was not checked")
        assert not member.checks(again[2])
        bridge.decide(first[2], COMMIT, source="check")
        bridge.wait_visible(topic, values[:3])
        # The original and its copy have different decisions, and the first one wins.
        bridge.decide(first[3], COMMIT)
        last = bridge.prepare(topic, b"last", partition=0)
        bridge.decide(last, COMMIT)
        bridge.wait_visible(topic, [b"last"])
    assert bridge.visible(topic) == {b"last": 1, **dict.fromkeys(values[:3], 1)}
    outcomes = bridge.outcomes()
    assert [outcomes[0, one.offset] for one in first] == [["commit"], ["commit"], ["commit"], ["rollback"]]
    assert [outcomes[0, one.offset] for one in again] == [["discard"]] * 4
    assert _copies(bridge) == {
        f"0:{copy.offset}".encode(): f"0:{one.offset}".encode() for one, copy in zip(first, again, strict=True)
    }


# After the commit the next owner finds the original in HALF alone. Before it, the next owner decides the original
# again.
@pytest.mark.parametrize("fault", [pytest.param("commit.flushed@2", marks=pytest.mark.long), "commit.committed@2"])
def test_p3_a_copy_is_recognised_by_the_next_owner_too(kafka: EmbeddedKafka, fault: str) -> None:
    with Bridge(kafka.bootstrap_servers, f"copies {fault}", partitions=1) as bridge:
        topic = bridge.create_topic("real")
        first = bridge.prepare(topic, b"value")
        bridge.decide(first, COMMIT)
        victim = bridge.worker(fault)
        assert victim.wait_dead(40) == -signal.SIGKILL
        # The copy comes after its original, which may be finished already.
        again = bridge.send_again(first, topic, b"value")
        bridge.decide(again, COMMIT)
        bridge.worker()
        bridge.wait_outcome(again, "discard")
        last = bridge.prepare(topic, b"last")
        bridge.decide(last, COMMIT)
        bridge.wait_visible(topic, [b"value", b"last"])
        assert bridge.visible(topic) == {b"value": 1, b"last": 1}
        assert _copies(bridge) == {f"0:{again.offset}".encode(): f"0:{first.offset}".encode()}
