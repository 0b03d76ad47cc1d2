"""When a round discards: not by the word of a broker that may not lead END any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.partition_builder import Partition
from txbridge.core.draft import Draft
from txbridge.core.names import Names
from txbridge.core.transaction_size import Limits, TransactionSize
from txbridge.kafka.environment import Outside
from txbridge.worker.check_round import CheckRound
from txbridge.worker.gates.refused_checks import RefusedChecks


class Time(Outside):
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class Round:
    """A round of a partition whose END is applied to its end, as some broker says it."""

    def __init__(self, partition: Partition) -> None:
        self.queue = partition.queue
        self.time = Time()
        # Any: they stand in for what has connections.
        membership = SimpleNamespace(ask=lambda _groups: {}, abandon_unanswered=lambda: None)
        context: Any = SimpleNamespace(names=Names(), outside=self.time, membership=membership, check_rate=1_000)
        reader = SimpleNamespace(end_from=lambda reached: reached)
        state: Any = SimpleNamespace(partition=0, queue=self.queue, end_reader=reader)
        topics: Any = SimpleNamespace()
        self._round = CheckRound(
            context, state, topics, RefusedChecks(self.time), TransactionSize(Limits(1_000, 1_000_000))
        )

    def draft_at(self, now: int) -> Draft:
        """What a round would do at this time (ms)."""
        self.time.seconds += 1.0
        clock: Any = SimpleNamespace(due=lambda: now)
        self._round.note_what_is_due(clock, 0)
        as_of = self._round.as_of(0)
        draft = Draft(self.queue, now)
        if as_of is not None:
            self._round.check_topics(as_of)
            self._round.draft(draft, as_of, 1_000)
        return draft


def test_p2_p7_a_discard_waits_until_every_broker_knows_the_decisions_from_before_it_was_due():
    partition = Partition().prepare(0)
    for now in (7_000, 37_000, 67_000):
        partition.step(now)
    round_ = Round(partition)
    # Due at 97 s. Who asks for END's end has metadata of at most a second, and believes an answer of at most two.
    assert [round_.draft_at(now).discards for now in (97_000, 98_000, 99_999)] == [[], [], []]
    assert [one.offset for one in round_.draft_at(100_000).discards] == [0]
