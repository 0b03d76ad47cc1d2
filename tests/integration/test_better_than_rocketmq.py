"""RocketMQ's defects, by the number of their issues, against a real worker on a real Kafka.

The pure half of it, with RocketMQ's own figures, is tests/unit/core/test_rocketmq_issues.py. docs/parity.md names the
test of each behaviour. A defect without an issue has only a name.

Most tests share one worker: messages are checked after 1 s and then every 1.5 s, twice; messages that stay undecided
are discarded after 4 s.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, CheckMember, Prepared, WorkerProcess, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.worker.ingest.half_log import HalfLog

TIMES = {"transaction_timeout": 1_000, "transaction_check_interval": 1_500, "transaction_check_max": 2}


def immunity(seconds: str) -> list[tuple[str, bytes]]:
    return [("CHECK_IMMUNITY_TIME_IN_SECONDS", seconds.encode())]


@dataclass
class Scene:
    """One namespace, one worker and one producer group with a live member, for many tests."""

    bridge: Bridge
    worker: WorkerProcess
    member: CheckMember
    topic: str
    #: One that nobody decides, and one with an immunity longer than the time of all checks.
    doomed: Prepared
    patient: Prepared
    _number: Iterator[int]

    def value(self, name: str) -> bytes:
        return b"%s %d" % (name.encode(), next(self._number))

    def prepare(self, value: bytes, partition: int = 0, extra: list[tuple[str, bytes]] | None = None) -> Prepared:
        return self.bridge.prepare(self.topic, value, partition=partition, extra=extra or [])

    def copies(self, value: bytes) -> int:
        return self.bridge.visible(self.topic)[value]

    def born(self, prepared: Prepared) -> int:
        where = (prepared.partition, prepared.offset)
        halves = self.bridge.read(self.bridge.names.half, committed=False)
        return next(one.timestamp()[1] for one in halves if (one.partition(), one.offset()) == where)

    def checked_at(self, prepared: Prepared) -> list[int]:
        """Milliseconds from birth to each check."""
        born = self.born(prepared)
        return [request.timestamp()[1] - born for request in self.member.requests(prepared)]

    def refusals(self, prepared: Prepared) -> list[tuple[object, object]]:
        """Pairs (reason, count) of the refusals of this half message in the worker's log."""
        return [
            (event["reason"], event["count"])
            for event in self.worker.events("end_refused")
            if (event["partition"], event["half_offset"]) == (prepared.partition, prepared.offset)
        ]

    def refused(self, prepared: Prepared, decision: int, reason: str) -> None:
        """Send this decision, and expect one more logged refusal for this reason."""
        before = self.refusals(prepared)
        self.bridge.decide(prepared, decision)
        eventually(lambda: len(self.refusals(prepared)) > len(before), 20, f"no refusal of {decision} was logged")
        assert self.refusals(prepared) == [*before, (reason, 1)]

    def asked_no_more(self, prepared: Prepared) -> None:
        """Expect no further check, although a message that is born now gets its first one after a whole time-out."""
        before = len(self.member.checks(prepared))
        control = self.prepare(self.value("control"), prepared.partition)
        eventually(lambda: self.member.checks(control))
        self.bridge.decide(control, ROLLBACK)
        assert len(self.member.checks(prepared)) == before


@pytest.fixture(scope="module")
def scene(kafka: EmbeddedKafka) -> Iterator[Scene]:
    with Bridge(kafka.bootstrap_servers, "better than rocketmq") as bridge:
        topic = bridge.create_topic("real")
        worker = bridge.worker(**TIMES)
        with bridge.member() as member:
            # Its checks are always due but never sent, so the worker looks for due checks all the time.
            bridge.prepare(topic, b"of nobody", partition=1, group="nobody", extra=immunity("0"))
            patient = bridge.prepare(topic, b"patient", partition=1, extra=immunity("6"))
            doomed = bridge.prepare(topic, b"doomed", partition=1)
            yield Scene(bridge, worker, member, topic, doomed, patient, itertools.count())


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [(COMMIT, COMMIT, "repeat"), (ROLLBACK, COMMIT, "contradiction"), (COMMIT, ROLLBACK, "contradiction")],
)
def test_issues_2694_5574_8158_the_first_decision_counts(scene: Scene, first: int, second: int, reason: str) -> None:
    prepared = scene.prepare(value := scene.value("decided"))
    scene.bridge.decide(prepared, first)
    scene.bridge.wait_outcome(prepared, outcome := "commit" if first == COMMIT else "rollback")
    scene.refused(prepared, second, reason)
    scene.refused(prepared, second, reason)
    scene.asked_no_more(prepared)
    everything = scene.bridge.read(scene.topic, committed=False)
    assert [message.value() for message in everything].count(value) == (first == COMMIT)
    assert scene.bridge.outcomes()[0, prepared.offset] == [outcome]


def test_issues_2694_8158_an_end_of_the_producer_after_a_check_ends_the_checks(scene: Scene) -> None:
    prepared = scene.prepare(value := scene.value("checked"))
    eventually(lambda: scene.member.checks(prepared))
    scene.bridge.decide(prepared, COMMIT)
    scene.bridge.wait_visible(scene.topic, [value])
    # Another answer to the check, which came later than the decision.
    scene.bridge.end([prepared.entry(ROLLBACK, 1)], 0, source="check")
    eventually(lambda: scene.refusals(prepared) == [("contradiction", 1)])
    scene.asked_no_more(prepared)
    assert (scene.copies(value), len(scene.member.checks(prepared))) == (1, 1)


def test_issues_8158_598_a_decision_after_the_discard_is_refused_and_a_resume_is_the_way_back(scene: Scene) -> None:
    prepared, value = scene.doomed, b"doomed"
    eventually(lambda: value in {record["value"] for record in scene.bridge.discarded()})
    scene.refused(prepared, COMMIT, "late")
    scene.refused(prepared, ROLLBACK, "late")
    scene.asked_no_more(prepared)
    assert (scene.copies(value), len(scene.member.checks(prepared))) == (0, 2)
    scene.bridge.end([prepared.entry(UNKNOWN)], 1, source="resume")
    eventually(lambda: len(scene.member.checks(prepared)) == 3)
    assert scene.member.checks(prepared)[2]["TRANSACTION_CHECK_TIMES"] == b"1"
    scene.bridge.end([prepared.entry(COMMIT, 1)], 1, source="check")
    scene.bridge.wait_visible(scene.topic, [value])
    assert scene.bridge.outcomes()[1, prepared.offset] == ["discard", "commit"]
    assert Counter(record["value"] for record in scene.bridge.discarded())[value] == 1


def test_an_end_that_names_a_transaction_marker_is_refused(scene: Scene) -> None:
    """RocketMQ reads the record at the offset, and one that is no half message causes an exception."""
    names, value, reports = scene.bridge.names, scene.value("stranger"), []
    headers = [*scene.bridge.half_headers(scene.topic), *immunity("600")]
    stranger = scene.bridge.stranger()
    stranger.begin_transaction()
    stranger.produce(names.half, value=value, headers=headers, partition=0, on_delivery=lambda *it: reports.append(it))
    stranger.commit_transaction(20)
    [(error, message)] = reports
    assert error is None
    half = Prepared(0, message.offset(), dict(headers)["UNIQ_KEY"].decode())
    marker = Prepared(0, half.offset + 1, half.transaction_id)
    assert scene.bridge.bounds(names.half, 0)[1] == marker.offset + 1
    scene.refused(marker, COMMIT, "no_half_message")
    # The message before the marker is not affected.
    scene.bridge.decide(half, COMMIT)
    scene.bridge.wait_visible(scene.topic, [value])


def test_an_end_that_was_written_before_its_half_message_does_not_count(scene: Scene) -> None:
    """The local transaction may run only after the half message is stored, so this message is checked."""
    headers = scene.bridge.half_headers(scene.topic)
    early = Prepared(1, scene.bridge.bounds(scene.bridge.names.half, 1)[1], dict(headers)["UNIQ_KEY"].decode())
    scene.refused(early, COMMIT, "no_half_message")
    value = scene.value("early")
    stored = scene.bridge.produce(scene.bridge.names.half, value=value, headers=headers, partition=1)
    assert stored.offset() == early.offset
    eventually(lambda: scene.member.checks(early))
    assert scene.copies(value) == 0
    scene.bridge.decide(early, COMMIT)
    scene.bridge.wait_visible(scene.topic, [value])


def test_issues_481_1565_a_young_message_does_not_hold_up_those_behind_it(scene: Scene) -> None:
    young = scene.prepare(scene.value("young"), 0, immunity("600"))
    behind = scene.prepare(scene.value("behind"), 0, immunity("0"))
    eventually(lambda: len(scene.member.checks(behind)) == 2)
    assert scene.member.checks(young) == []
    scene.bridge.decide(young, ROLLBACK)


def test_issues_615_8311_an_immunity_longer_than_all_checks_burns_none_of_them(scene: Scene) -> None:
    """RocketMQ sends no check and discards the message after 4 s, within its immunity time."""
    eventually(lambda: b"patient" in {record["value"] for record in scene.bridge.discarded()})
    checks = scene.member.checks(scene.patient)
    assert [check["TRANSACTION_CHECK_TIMES"] for check in checks] == [b"1", b"2"]
    first, second = scene.checked_at(scene.patient)
    print(f"checked {first} and {second} ms after birth")
    assert first >= 6_000
    assert second - first >= 1_500


def test_an_end_that_is_read_before_its_half_message_makes_the_worker_read_that_first(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ answers 'Find prepared transaction message failed' when the record cannot be found yet."""
    take_in = HalfLog.take_in

    def only_when_needed(log: HalfLog, limit: int, timeout: float) -> int:
        # The commit loop reads available records with time-out 0. It waits only for a half message that an END names.
        return take_in(log, limit, timeout) if timeout else 0

    topic = bridge.create_topic("real")
    with bridge.local_owner(transaction_timeout=600_000):
        monkeypatch.setattr(HalfLog, "take_in", only_when_needed)
        values = [b"%d" % number for number in range(50)]
        prepared = bridge.prepare_many(topic, values, partition=0)
        for one in random.sample(prepared, len(prepared)):
            bridge.decide(one, COMMIT)
        bridge.wait_visible(topic, values)
    assert set(bridge.visible(topic).values()) == {1}
