"""Quarantine: a topic that refuses records finds its culprits in few probes, and one line tells of its end."""

from __future__ import annotations

import pytest

from tests.support.manual_time import ManualTime
from txbridge.core.half_entry import HalfEntry
from txbridge.core.plan.effects import InTurn
from txbridge.core.states import TransactionState
from txbridge.worker import partition_context
from txbridge.worker.gates.quarantine import Quarantine
from txbridge.worker.partition_context import NoLongerHeld

TOPIC = ("bad",)


@pytest.fixture
def time() -> ManualTime:
    return ManualTime(1_000.0)


@pytest.fixture
def quarantine(time: ManualTime) -> Quarantine:
    made = Quarantine(time)
    made.close_topic("bad", "refused", {})
    return made


def try_all(time: ManualTime, quarantine: Quarantine, culprits: set[int]) -> list[str]:
    """Probe until nothing is left to try now, as Kafka and librdkafka answer. Returns the sizes and outcomes."""
    told = []
    for _ in range(1_000):
        probe = quarantine.next_probe()
        if probe is None and time.seconds > 1_000 + 600:
            break
        time.seconds += 0.1
        if probe is None:
            continue
        found = culprits.intersection(probe.offsets)
        told.append(f"{len(probe.offsets)} {'refused' if found else 'taken'}")
        if found:
            # With a single culprit in a batch, librdkafka reports all of its records alike.
            named = dict.fromkeys(found, "bad") if len(found) > 1 else {}
            quarantine.note_probe_refused("bad", "refused", probe.offsets, named, 0.15)
            time.seconds += 0.15
        else:
            quarantine.note_taken(*probe)
    return told


def test_p8_new_commits_are_held_for_a_second_and_then_twice_as_long(time: ManualTime, quarantine: Quarantine):
    assert (quarantine.reason_to_hold(TOPIC), quarantine.reason_to_hold(("good",))) == ("refused", None)
    time.seconds += 1.1
    assert quarantine.reason_to_hold(TOPIC) is None
    quarantine.close_topic("bad", "refused again", {})
    time.seconds += 1.9
    assert quarantine.reason_to_hold(TOPIC) == "refused again"
    time.seconds += 0.2
    assert quarantine.reason_to_hold(TOPIC) is None


def test_p8_many_culprits_are_found_in_one_probe(time: ManualTime, quarantine: Quarantine):
    for offset in range(1_000):
        quarantine.let_wait(offset, TOPIC)
    assert try_all(time, quarantine, set(range(0, 1_000, 3)))[:2] == ["1000 refused", "666 taken"]


def test_p8_a_single_culprit_is_found_by_quarters(time: ManualTime, quarantine: Quarantine):
    for offset in range(256):
        quarantine.let_wait(offset, TOPIC)
    told = try_all(time, quarantine, {0})
    assert told[:5] == ["256 refused", "64 refused", "16 refused", "4 refused", "1 refused"]
    # All others are taken, each of them once.
    assert sum(int(one.split()[0]) for one in told if one.endswith("taken")) == 255


def test_p8_a_message_that_was_refused_by_itself_is_tried_seldom_and_after_all_others(
    time: ManualTime, quarantine: Quarantine
):
    quarantine.set_apart("bad", 1, "too large")
    assert quarantine.let_wait(1, TOPIC) == "too large"
    quarantine.let_wait(2, TOPIC)
    assert quarantine.next_probe() == ("bad", [2])
    quarantine.note_taken("bad", [2])
    tried = []
    for second in range(600):
        quarantine.let_wait(1, TOPIC)
        if quarantine.next_probe() is not None:
            tried.append(second)
            quarantine.note_probe_refused("bad", "too large", [1], {}, 0.15)
        time.seconds += 1
    assert tried == [0, 2, 6, 14, 30, 62, 122, 182, 242, 302, 362, 422, 482, 542]


def test_p8_topics_take_turns(quarantine: Quarantine, time: ManualTime):
    for topic, first in (("bad", 0), ("worse", 3)):
        quarantine.close_topic(topic, "refused", {})
        for offset in range(first, first + 3):
            quarantine.let_wait(offset, (topic,))
    order = []
    for _ in range(4):
        probe = quarantine.next_probe()
        assert probe is not None
        order.append(probe.topic)
        quarantine.note_probe_refused(probe.topic, "refused", probe.offsets, {}, 0.1)
        time.seconds += 1
    assert order == ["bad", "worse", "bad", "worse"]


def test_p8_a_topic_that_is_only_suspected_is_tried_at_once_and_open_after_a_success(quarantine: Quarantine):
    quarantine.let_wait(1, TOPIC)
    quarantine.note_probe_refused("bad", "refused", [1], {}, 0.15)
    quarantine.suspect_topic("good", "suspected")
    assert quarantine.let_wait(2, ("good",)) == InTurn("suspected")
    assert quarantine.next_probe() == ("good", [2])
    quarantine.note_taken("good", [2])
    assert quarantine.reason_to_hold(("good",)) is None


def test_p8_of_several_messages_the_topic_that_refuses_one_is_to_blame_and_not_that_of_the_probe(
    quarantine: Quarantine,
):
    quarantine.suspect_topic("a", "a was among others")
    quarantine.suspect_topic("worse", "worse was among others")
    for offset, topics in ((1, ("a", "worse")), (2, ("a", "worse")), (3, ("a",))):
        quarantine.let_wait(offset, topics)
    probe = quarantine.next_probe()
    assert probe == ("a", [1, 2, 3])
    quarantine.note_probe_refused("worse", "refused", [1, 2], {}, 0.15)
    # The others are tried at once, and the topic is open again.
    assert quarantine.next_probe() == ("a", [3])
    quarantine.note_taken("a", [3])
    assert quarantine.reason_to_hold(("a",)) is None
    assert quarantine.reason_to_hold(("a", "worse")) == "refused"
    # A message that comes later waits for the topic that has refused something, even if the other is suspected.
    quarantine.suspect_topic("a", "a was among others")
    assert quarantine.let_wait(4, ("a", "worse")) == InTurn("refused")
    assert quarantine.next_probe() is None


def test_p8_a_message_that_two_topics_have_refused_is_not_probed_for_one_of_them_all_the_time(
    quarantine: Quarantine, time: ManualTime
):
    both = ("a", "bad")
    quarantine.set_apart("a", 1, "refused")
    assert quarantine.let_wait(1, both) == "refused"
    assert quarantine.next_probe() == ("a", [1])
    quarantine.note_probe_refused("bad", "refused", [1], {}, 0.15)
    assert quarantine.let_wait(1, both) == "refused"
    probes = []
    for _ in range(100):
        time.seconds += 0.6
        if (probe := quarantine.next_probe()) is not None:
            probes.append(probe)
            quarantine.note_probe_refused("bad", "refused", probe.offsets, {}, 0.15)
            quarantine.let_wait(1, both)
    # After 2, 4, 8 and 16 s for each of them, and so on: a minute has no more.
    assert 4 <= len(probes) <= 10


def test_the_time_of_the_next_probe_is_known(quarantine: Quarantine, time: ManualTime):
    assert quarantine.next_try == float("inf")
    quarantine.let_wait(1, TOPIC)
    quarantine.let_wait(2, TOPIC)
    assert quarantine.next_try <= 1_000.0
    quarantine.note_probe_refused("bad", "refused", [1, 2], {}, 0.4)
    # A rest of three times its duration.
    assert quarantine.next_try == pytest.approx(1_001.2)
    time.seconds = 1_002.0
    quarantine.note_probe_refused("bad", "too large", [1], {}, 0.1)
    # The other waits, and then the first as one that was refused by itself.
    assert quarantine.next_try == pytest.approx(1_002.5)
    quarantine.note_taken("bad", [2])
    assert quarantine.next_try == float("inf")
    assert quarantine.let_wait(1, TOPIC) == "too large"
    time.seconds = 1_003.0
    quarantine.note_probe_refused("bad", "too large", [1], {}, 0.1)
    quarantine.let_wait(1, TOPIC)
    assert quarantine.next_try == pytest.approx(1_005.0)
    time.seconds = 1_004.9
    assert quarantine.next_probe() is None
    time.seconds = 1_005.1
    assert quarantine.next_probe() == ("bad", [1])


def test_p8_a_probe_during_which_the_machine_stood_still_is_followed_by_a_rest_of_a_minute(quarantine: Quarantine):
    quarantine.let_wait(1, TOPIC)
    quarantine.let_wait(2, TOPIC)
    quarantine.note_probe_refused("bad", "refused", [1, 2], {}, 73.0)
    assert quarantine.next_try == pytest.approx(1_060.0)


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
