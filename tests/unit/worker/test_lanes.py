"""Lanes: a topic that refuses records finds its culprits in few probes, and one line tells of its end."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from txbridge.core.half_entry import HalfEntry
from txbridge.core.plan.effects import InTurn
from txbridge.core.states import TransactionState
from txbridge.worker import partition_context
from txbridge.worker.gates.lanes import TopicLanes
from txbridge.worker.partition_context import NoLongerHeld

TOPIC, BOTH = ("bad",), ("a", "bad")


@pytest.fixture
def lanes() -> TopicLanes:
    """Topic `bad` has refused something half a second ago, so that the rest is over at 1,000 s."""
    made = TopicLanes()
    refuse(made, 999.5, (), seconds=0.0)
    return made


def refuse(
    lanes: TopicLanes, now: float, offsets: Any, why: str = "refused", *, topic="bad", named=(), seconds=0.15
) -> None:
    lanes.note_refused(topic, why, offsets, dict.fromkeys(named, why), seconds, now, is_apart=True)


def try_all(lanes: TopicLanes, culprits: set[int]) -> list[str]:
    """Probe for ten minutes, as Kafka and librdkafka answer. Returns the sizes and outcomes."""
    told = []
    for now in (1_000 + tenths / 10 for tenths in range(6_000)):
        if (probe := lanes.next_probe(now)) is None:
            continue
        found = culprits.intersection(probe.offsets)
        told.append(f"{len(probe.offsets)} {'refused' if found else 'taken'}")
        if found:
            # With a single culprit in a batch, librdkafka reports all of its records alike.
            refuse(lanes, now, probe.offsets, named=found if len(found) > 1 else ())
        else:
            lanes.note_taken(*probe, now)
    return told


def test_p8_new_commits_are_held_for_four_seconds_and_then_twice_as_long(lanes: TopicLanes):
    assert lanes.reason_to_hold(("good",), 1_000) is None
    assert [lanes.reason_to_hold(TOPIC, now) for now in (1_003.4, 1_003.6)] == ["refused", None]
    refuse(lanes, 1_004, (), "refused again")
    assert [lanes.reason_to_hold(TOPIC, now) for now in (1_011.9, 1_012.1)] == ["refused again", None]


def test_p8_many_culprits_are_found_in_one_probe(lanes: TopicLanes):
    for offset in range(1_000):
        lanes.let_wait(offset, TOPIC, 1_000)
    assert try_all(lanes, set(range(0, 1_000, 3)))[:2] == ["1000 refused", "666 taken"]


def test_p8_a_single_culprit_is_found_by_quarters(lanes: TopicLanes):
    for offset in range(256):
        lanes.let_wait(offset, TOPIC, 1_000)
    told = try_all(lanes, {0})
    assert told[:5] == ["256 refused", "64 refused", "16 refused", "4 refused", "1 refused"]
    # All others are taken, each of them once.
    assert sum(int(one.split()[0]) for one in told if one.endswith("taken")) == 255


def test_p8_of_a_refused_transaction_with_others_in_it_the_number_says_nothing(lanes: TopicLanes):
    lanes.note_refused("bad", "refused", [0, 1], {}, 0.15, 999.0, is_apart=False)
    for offset in range(100):
        lanes.let_wait(offset, TOPIC, 1_000)
    assert try_all(lanes, set(range(0, 100, 2))) == ["100 refused", "50 taken"]


def test_p8_a_message_that_was_refused_by_itself_is_tried_seldom_and_after_all_others(lanes: TopicLanes):
    lanes.lane_of("bad", "too large", 1_000).set_apart(1, "too large")
    assert lanes.let_wait(1, TOPIC, 1_000) == "too large"
    lanes.let_wait(2, TOPIC, 1_000)
    assert lanes.next_probe(1_000) == ("bad", [2])
    lanes.note_taken("bad", [2], 1_000)
    tried = []
    for second in range(600):
        lanes.let_wait(1, TOPIC, 1_000 + second)
        if lanes.next_probe(1_000 + second) is not None:
            tried.append(second)
            refuse(lanes, 1_000 + second, [1], "too large")
    assert tried == [0, 2, 6, 14, 30, 62, 122, 182, 242, 302, 362, 422, 482, 542]


def test_p8_what_a_topic_takes_after_all_is_not_tried_together_with_what_it_refuses(lanes: TopicLanes):
    for offset in range(4):
        lanes.lane_of("bad", "refused", 1_000).set_apart(offset, "refused")
        lanes.let_wait(offset, TOPIC, 1_000)
    # Those that were refused come again when they are due.
    assert try_all(lanes, {0, 2}) == ["1 refused", "1 taken", "2 refused", "1 refused", "1 taken"]


def test_p8_of_the_checks_that_a_topic_has_refused_one_at_a_time_is_offered_again(lanes: TopicLanes):
    def seconds(entries: list[HalfEntry]) -> list[int]:
        told = [(second, one) for second in range(120) for one in entries]
        return [second for second, one in told if lanes.obstacle_of_check(one, "bad", 1_000 + second) is None]

    lanes.note_too_large("bad", 2)
    large, small = (entry(offset=offset)._replace(size=size) for offset, size in ((5, 2), (6, 1)))
    assert lanes.obstacle_of_check(small, "bad", 1_000) is None
    # OFFSET has to name the reason first.
    assert lanes.obstacle_of_check(large, "bad", 1_000) == "refused"
    assert seconds([large._replace(error="refused"), large._replace(error="refused")]) == [0, 2, 6, 14, 30, 62]
    lanes.note_checked(large, "bad")
    assert lanes.obstacle_of_check(large, "bad", 1_120) is None


def test_p8_topics_take_turns(lanes: TopicLanes):
    for topic, first in (("bad", 0), ("worse", 3)):
        refuse(lanes, 999.5, (), topic=topic)
        for offset in range(first, first + 3):
            lanes.let_wait(offset, (topic,), 1_000)
    order = []
    for now in range(1_000, 1_004):
        probe = lanes.next_probe(now)
        assert probe is not None
        order.append(probe.topic)
        refuse(lanes, now, probe.offsets, topic=probe.topic)
    assert order == ["bad", "worse", "bad", "worse"]


def test_p8_of_several_messages_the_topic_that_refuses_one_is_to_blame_and_not_that_of_the_probe(lanes: TopicLanes):
    lanes.block_topic("a", "it does not answer", 990, 1)
    refuse(lanes, 994, (), topic="a")
    for offset, topics in ((1, ("a",)), (2, BOTH), (3, BOTH)):
        lanes.let_wait(offset, topics, 998)
    refuse(lanes, 999.5, [2, 3])
    # The other is tried for its topic.
    assert lanes.next_probe(1_000) == ("bad", [2])
    assert lanes.next_probe(1_000) == ("a", [1])
    lanes.note_taken("a", [1], 1_000)
    assert [lanes.reason_to_hold(topics, 1_000) for topics in (("a",), BOTH)] == [None, "refused"]
    # A message that comes later waits for the topic that is closed.
    assert lanes.let_wait(4, BOTH, 1_000) == InTurn("refused")
    assert lanes.next_probe(1_000) == ("bad", [2])


def test_p8_a_message_that_two_topics_have_refused_is_not_probed_for_one_of_them_all_the_time(lanes: TopicLanes):
    lanes.lane_of("a", "refused", 1_000).set_apart(1, "refused")
    assert lanes.let_wait(1, BOTH, 1_000) == "refused"
    assert lanes.next_probe(1_000) == ("a", [1])
    refuse(lanes, 1_000, [1])
    assert lanes.let_wait(1, BOTH, 1_000) == "refused"
    probes = 0
    for second in range(1, 61):
        if (probe := lanes.next_probe(1_000 + second)) is not None:
            probes += 1
            refuse(lanes, 1_000 + second, probe.offsets)
            lanes.let_wait(1, BOTH, 1_000 + second)
    # After 2, 4, 8 and 16 s for each of them, and so on: a minute has no more.
    assert 4 <= probes <= 10


def test_p8_a_topic_takes_a_size_again_that_it_has_taken(lanes: TopicLanes):
    lanes.lane_of("bad", "too large", 1_000).set_apart(1, "too large")
    lanes.note_too_large("bad", 900)
    lanes.note_taken("bad", [1], 1_060)
    assert lanes.too_large_for("bad") == sys.maxsize


def test_p8_refusals_of_transactions_with_others_in_them_delay_no_probe(lanes: TopicLanes):
    lanes.let_wait(1, TOPIC, 1_000)
    lanes.note_refused("other", "refused", [7], {}, 60.0, 1_000, is_apart=False)
    assert lanes.next_probe(1_000) == ("bad", [1])


def test_p9_a_lane_knows_all_that_a_kafka_transaction_holds_and_is_not_paid_for_by_each(lanes: TopicLanes):
    class Finished(frozenset[int]):
        def __iter__(self):
            raise AssertionError("as many steps as others have finished")

    # As many as a Kafka transaction has at most.
    for offset in range(11_000):
        lanes.lane_of("bad", "refused", 1_000).set_apart(offset, "refused")
        lanes.let_wait(offset, TOPIC, 1_000)
    assert lanes.refusal_of(0, TOPIC) == "refused"
    lanes.leave_waiting(Finished(range(1, 100_000)))
    lanes.leave_waiting({0})
    assert lanes.next_probe(2_000) is None


def test_the_time_of_the_next_probe_is_known(lanes: TopicLanes):
    assert lanes.next_try == float("inf")
    for offset in (1, 2):
        lanes.let_wait(offset, TOPIC, 1_000)
    assert lanes.next_try <= 1_000
    # A rest of three times its duration, and of a minute at most: the machine may have stood still.
    for seconds, then in ((0.4, 1_001.2), (73.0, 1_060.0)):
        refuse(lanes, 1_000, [1, 2], seconds=seconds)
        assert lanes.next_try == pytest.approx(then)
    refuse(lanes, 1_002, [1], "too large")
    # The other waits, and then the first as one that was refused by itself.
    assert lanes.next_try == pytest.approx(1_002.5)
    lanes.note_taken("bad", [2], 1_002)
    assert lanes.next_try == float("inf")
    assert lanes.let_wait(1, TOPIC, 1_002) == "too large"
    refuse(lanes, 1_003, [1], "too large")
    lanes.let_wait(1, TOPIC, 1_003)
    assert lanes.next_try == pytest.approx(1_005)
    assert [lanes.next_probe(now) for now in (1_004.9, 1_005.1)] == [None, ("bad", [1])]


class Log:
    """Keeps all logged events."""

    def __init__(self):
        self.lines = []

    def info(self, event, **fields):
        self.lines.append((event, fields))


@pytest.fixture
def log(monkeypatch):
    found = Log()
    monkeypatch.setattr(partition_context, "_log", found)
    return found


def entry(topic="orders", state=TransactionState.HELD, offset=1):
    return HalfEntry(
        offset=offset, transaction_id="0" * 32, group="group", real_topic=topic, born=0, size=1, next_due=0, state=state
    )


def test_ten_thousand_of_two_partitions_are_one_line(log):
    told = NoLongerHeld()
    for batch in range(10):
        told.note_delivered(batch % 2, [entry()] * 1_000, 100.0 + batch)
        told.log_due(100.0 + batch)
    assert log.lines == []
    told.log_due(113.9)
    assert log.lines == []
    told.log_due(114.0)
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 10_000, "partitions": [0, 1]})]
    told.log_due(1_000.0)
    assert len(log.lines) == 1


def test_a_stream_that_does_not_end_is_told_after_all(log):
    told = NoLongerHeld()
    for second in range(71):
        told.note_delivered(3, [entry()], float(second))
        told.log_due(float(second))
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 71, "partitions": [3]})]


def test_what_was_delivered_at_once_is_not_told(log):
    told = NoLongerHeld()
    told.note_delivered(0, [entry(state=TransactionState.PENDING)], 0.0)
    told.log_due(None)
    assert log.lines == []


def test_an_owner_that_ends_leaves_the_lines_to_those_that_go_on_delivering(log):
    told = NoLongerHeld()
    with told.service():
        with told.service():
            told.note_delivered(0, [entry()], 100.0)
            told.note_delivered(1, [entry()], 101.0)
        # Partition 1 is gone, and partition 0 delivers more.
        assert log.lines == []
        told.note_delivered(0, [entry()], 102.0)
        told.log_due(106.9)
        assert log.lines == []
    # Nobody would come back to it.
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 3, "partitions": [0, 1]})]


def test_an_owner_that_fails_loses_no_line(log):
    told = NoLongerHeld()
    told.note_delivered(0, [entry()], 100.0)
    with pytest.raises(RuntimeError), told.service():
        raise RuntimeError
    assert log.lines == [("no_longer_held", {"topic": "orders", "count": 1, "partitions": [0]})]


def test_at_the_end_nothing_is_kept_back_and_invented_topics_share_a_line(log):
    told = NoLongerHeld()
    told.note_delivered(0, [entry(f"topic-{number}") for number in range(200)], 0.0)
    told.log_due(None)
    assert len(log.lines) == 51
    assert sum(fields["count"] for _, fields in log.lines) == 200
    assert log.lines[-1] == ("no_longer_held", {"topic": "(other)", "count": 150, "partitions": [0]})
