"""Checks: due ones that are not sent are reported, and what a broker says that leads END no more discards nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.support.manual_time import ManualTime
from tests.support.partition_builder import Partition
from txbridge.core.names import Names
from txbridge.core.plan.choice import Limits, TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.planner import TurnPlanner
from txbridge.kafka.proven_end import View
from txbridge.worker.gates.group_liveness import RefusedChecks
from txbridge.worker.gates.quarantine import Quarantine
from txbridge.worker.turn.check_round import CheckRound, CheckWatch


@pytest.fixture
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    with capture_logs() as captured:
        yield captured


def test_p8_what_is_due_and_not_sent_grows_old_and_is_told_once(logs):
    time = ManualTime()
    watch = CheckWatch(3, time)
    for _ in range(60):
        watch.round_done({"g": "not the coordinator"})
        time.seconds += 1
    assert watch.overdue == 60
    assert logs == [
        {
            "event": "checks_overdue",
            "log_level": "warning",
            "partition": 3,
            "group": "g",
            "groups": 1,
            "seconds": 31,
            "error": "not the coordinator",
        }
    ]
    watch.note_sent(["g"])
    assert watch.overdue == 0
    assert [line["event"] for line in logs] == ["checks_overdue", "checks_go_on"]


def test_p8_checks_of_others_do_not_hide_a_group_that_is_never_checked(logs):
    time = ManualTime()
    watch = CheckWatch(0, time)
    for _ in range(40):
        watch.round_done({"checked": "its turn", "silent": "no answer"})
        watch.note_sent(["checked"])
        time.seconds += 1
    assert watch.overdue == 40
    assert [(line["event"], line["group"]) for line in logs] == [("checks_overdue", "silent")]


def test_a_group_with_nobody_alive_is_not_overdue(logs):
    time = ManualTime()
    watch = CheckWatch(0, time)
    watch.round_done({"g": "Kafka has not answered yet"})
    time.seconds += 1
    # By now Kafka has said that the group has no member.
    watch.round_done({})
    time.seconds += 1_000
    assert watch.overdue == 0
    assert logs == []


def test_p8_a_round_that_waits_for_end_for_ever_is_told(logs):
    time = ManualTime()
    watch = CheckWatch(0, time)
    for _ in range(40):
        watch.round_waits("END has to be applied up to offset 9, and is up to 7")
        time.seconds += 1
    assert watch.overdue == 40
    assert [line["error"] for line in logs] == ["END has to be applied up to offset 9, and is up to 7"]
    watch.round_done({})
    assert watch.overdue == 0


class Round:
    """A round of a partition whose END is fully applied, according to some broker."""

    def __init__(self, partition: Partition) -> None:
        self.queue = partition.queue
        self.time = ManualTime()
        # Stand-ins for objects with connections.
        membership = SimpleNamespace(ask=lambda _groups: {}, abandon_unanswered=lambda: None)
        context: Any = SimpleNamespace(names=Names(), outside=self.time, membership=membership, check_rate=1_000)
        #: The proven end of END. None: no majority of the brokers answers.
        self.proven: int | None = 0
        brokers = SimpleNamespace(
            views_of=lambda *_: iter([(1, View(1, frozenset({1}), frozenset({1})))]),
            offsets_of=lambda *_: None if self.proven is None else {0: self.proven},
        )
        context.brokers = brokers
        ends = SimpleNamespace(end_from=lambda _topic, _partition, reached: reached)
        state: Any = SimpleNamespace(partition=0, queue=self.queue, ends=ends)
        #: By topic, why nothing can be written to it.
        self.problems: dict[str, str] = {}
        quarantine, size = Quarantine(self.time), TransactionSize(Limits(1_000, 1_000_000))
        topics: Any = SimpleNamespace(
            quarantine=quarantine,
            problem_of=self.problems.get,
            begin_draft=lambda: None,
            room=None,
            obstacle_of_new=None,
            obstacle_of_held=None,
        )
        self._round = CheckRound(context, state, topics, RefusedChecks(self.time), size)
        self._planner = TurnPlanner(self.queue, size, topics, lambda _: None, lambda _: {})

    def draft_at(self, now: int) -> Draft:
        """The draft of a round at this time (ms)."""
        self.time.seconds += 1.0
        clock: Any = SimpleNamespace(due=lambda: now)
        self._round.note_what_is_due(clock, 0)
        as_of = self._round.as_of(0)
        due_round = None if as_of is None else self._round.prepare(as_of)
        may_discard = Names().discard not in self.problems
        choice = self._planner.choose([], 0, now)
        draft = self._planner.plan(choice, now, due_round, may_discard=may_discard, most_malformed=0)
        if due_round is not None:
            self._round.note_plan(due_round, draft)
        return draft


def due_at_97_seconds() -> Round:
    partition = Partition().prepare(0)
    for now in (7_000, 37_000, 67_000):
        partition.step(now)
    return Round(partition)


def test_p7_what_is_due_is_discarded():
    round_ = due_at_97_seconds()
    assert round_.draft_at(96_999).discards == []
    assert [one.offset for one in round_.draft_at(97_000).discards] == [0]


def test_p8_a_discard_waits_until_the_discard_topic_takes_copies():
    round_ = due_at_97_seconds()
    round_.problems[Names().discard] = "it is closed"
    assert [round_.draft_at(now).discards for now in (97_000, 98_000)] == [[], []]
    del round_.problems[Names().discard]
    assert [one.offset for one in round_.draft_at(99_000).discards] == [0]


def test_p2_a_discard_waits_until_every_decision_from_before_it_was_due_is_applied():
    round_ = due_at_97_seconds()
    # A broker said that END ends at 0, and a majority knows better. In the second case no majority answers at first.
    round_.proven = 1
    assert round_.draft_at(97_000).discards == []
    round_ = due_at_97_seconds()
    round_.proven = None
    assert [round_.draft_at(now).discards for now in (97_000, 98_000, 99_000)] == [[], [], []]
    round_.proven = 0
    assert [one.offset for one in round_.draft_at(100_000).discards] == [0]
