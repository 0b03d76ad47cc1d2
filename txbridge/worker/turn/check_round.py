"""The check round of a partition: checks and discards that are due, and when they may go into a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from txbridge.core.plan.choice import ROUND_LIMIT, TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.planner import DueRound
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.environment import Outside
from txbridge.kafka.proven_end import proven_end
from txbridge.log import get_logger
from txbridge.worker.gates.group_liveness import GroupLiveness
from txbridge.worker.gates.topic_health import TopicHealth
from txbridge.worker.partition_context import PartitionContext, PartitionState

_log = get_logger("txbridge.worker")

#: Least time between two rounds that ask Kafka whether checks may be sent. After a full round the next one follows at
#: once. Under a steady stream of checks a message waits twice: for the round that asks, and for the decisions stored
#: before the answer. The median message took 189 ms with 0.1 s, and 135 ms with 0.05 s, at the same processor load.
ROUND_S = 0.05
#: The same after a round that found nothing to do. Then every due message waits for a group without live members, which
#: may last for days, or for transaction_check_rate. Each round asks Kafka where END ends, and all other commits wait
#: for that answer.
_VAIN_ROUND_S = 0.25
#: Before a discard the end of END is proven. The broker that says where END ends may no longer lead END, and may not
#: know the last decisions. A check does no harm then: its answer repeats the decision. A discard does harm: the
#: decision would be refused as late. One proof serves all messages that are due by then.
_PROVE_EVERY_S = 1.0
#: A majority of the brokers of END answers, except for a moment around an election. A longer absence is logged.
_UNPROVEN_S = 30.0
#: By then a coordinator's election, a broker's restart and the first back-off of a blocked topic are over. RocketMQ's
#: interval makes every check up to half a minute late anyway.
_TELL_AFTER_S = 30.0


class DueWork(NamedTuple):
    """What is due, and what has to be applied before."""

    #: A time (ms) at which something was due.
    due: int
    #: The end of END as of a later time. A decision below it must stop the check or discard.
    decisions_stored_to: int


class CheckRound:
    """Decides when something may be checked or discarded. Runs in the owner's thread."""

    def __init__(
        self, context: PartitionContext, state: PartitionState, topics: TopicHealth, size: TransactionSize
    ) -> None:
        self._state = state
        self._names = context.names
        self._outside = context.outside
        self._topics = topics
        self._size = size
        self._groups = GroupLiveness(context.membership, context.names, context.outside)
        #: How long checks wait. For any thread.
        self.watch = CheckWatch(state.partition, context.outside)
        # Groups with checks due that the current round considers.
        self._due_groups: list[str] = []
        # The closed check topic that this round alone is for, and the number of checks that it may get. Every
        # second round is for all others.
        self._probe: tuple[str, int] | None = None
        self._may_probe = True
        self._next_round = 0.0
        self._due: DueWork | None = None
        # The same for discards, with a proven end of END.
        self._brokers = context.brokers
        self._proven: DueWork | None = None
        self._discard_as_of: int | None = None
        self._next_proof = 0.0
        self._unproven_since: float | None = None
        self._rate = context.check_rate
        self._tokens = float(context.check_rate)
        self._tokens_at = self._outside.monotonic()

    @property
    def is_waiting(self) -> bool:
        """Whether something is due whose round is not planned yet."""
        return self._due is not None

    def note_what_is_due(self, clock: BrokerClock, end_position: int) -> None:
        """If something is due, remember the END offset to be applied first: the end of END as of a later time.

        A decision that is stored by then must stop the check. The end is not read again when the check is sent. Under a
        steady stream of decisions that later end would never be reached.
        """
        if self._due is not None or self._outside.monotonic() < self._next_round:
            return
        now = clock.due()
        due = self._state.queue.next_due(now)
        if due is None or due > now:
            self.watch.round_done({})
            return
        self._next_round = self._outside.monotonic() + ROUND_S
        # An outdated answer would lack decisions, which would then not stop the check.
        end = self._state.ends.end_from(self._names.end, self._state.partition, end_position)
        if end is None:
            self.watch.round_waits("Kafka has to say where END ends")
        else:
            self._due = DueWork(now, end)
            self._prove_end(now)

    def _prove_end(self, now: int) -> None:
        """If a discard is due, prove the END offset to be applied first."""
        due, monotonic = self._state.queue.timers.next_discard(now), self._outside.monotonic()
        if due is None or due > now or monotonic < self._next_proof:
            return
        if self._proven is not None and due <= self._proven.due:
            return
        end = proven_end(self._brokers, self._names.end, self._state.partition)
        self._next_proof = self._outside.monotonic() + _PROVE_EVERY_S
        if end is not None:
            self._proven, self._unproven_since = DueWork(now, end), None
        elif self._unproven_since is None:
            self._unproven_since = monotonic
        elif monotonic - self._unproven_since > _UNPROVEN_S:
            self._unproven_since = float("inf")
            _log.warning(
                "discards_wait",
                partition=self._state.partition,
                error=f"no majority of the brokers of {self._names.end}[{self._state.partition}] says who leads it: "
                f"what should be discarded waits, as its decision may be stored there",
            )

    def as_of(self, next_end: int) -> int | None:
        """The time (ms) up to which a plan that applies END up to `next_end` may check and discard, or None."""
        if self._due is None:
            return None
        due, stored_to = self._due
        if stored_to <= next_end:
            proven = self._proven
            self._discard_as_of = proven.due if proven is not None and proven.decisions_stored_to <= next_end else None
            return due
        applied = self._state.queue.next_end
        self.watch.round_waits(f"END has to be applied up to offset {stored_to}, and is up to {applied}")
        return None

    def prepare(self, as_of: int) -> DueRound:
        """Ask about the groups with checks due, and return what may be planned: checks and discards, or a probe.

        Raises UnansweredError when Kafka says nothing about their topics.
        """
        timers, now = self._state.queue.timers, self._outside.monotonic()
        self._due_groups = self._groups.attend_groups(
            lambda limit: timers.groups_with_checks_due(as_of, limit), lambda group: timers.has_checks_due(group, as_of)
        )
        topics = {self._names.check(group) for group in self._due_groups if self._groups.is_alive(group)}
        self._topics.look_up(topics)
        self._probe = self._topics.lanes.next_checks(topics, now) if self._may_probe else None
        is_probe, most = self._probe is not None, min(ROUND_LIMIT, self._size.limits.entries)
        most_checks = min(most, self._check_tokens())
        return DueRound(
            as_of,
            # Nothing else shares the fate of a probe. It has the next round.
            discard_as_of=None if is_probe else self._discard_as_of,
            groups=[group for group in self._due_groups if self._may_check(group)],
            obstacle=lambda entry: self._topics.lanes.obstacle_of_check(entry, self._names.check(entry.group), now),
            most_checks=most_checks if self._probe is None else min(most_checks, self._probe[1]),
            most_discards=0 if is_probe else most,
            is_probe=is_probe,
        )

    def note_plan(self, due_round: DueRound, draft: Draft) -> None:
        """Note that a round is planned. After one that found nothing to do, the next one may wait."""
        self._due = None
        self._may_probe = not due_round.is_probe
        self._tokens -= len(draft.checks)
        is_full = len(draft.discards) >= due_round.most_discards or len(draft.checks) >= due_round.most_checks > 0
        if due_round.is_probe or is_full:
            self._next_round = 0.0
        elif not (draft.checks or draft.unchecked or draft.discards or draft.forgotten or draft.parked):
            self._next_round = self._outside.monotonic() + _VAIN_ROUND_S
        self.watch.round_done(self._why_not_checked())

    def note_sent(self, draft: Draft) -> None:
        """Note that the checks of this draft are committed."""
        self.watch.note_sent({entry.group for entry in draft.checks})

    def _why_not_checked(self) -> dict[str, str]:
        """Groups with checks due that are not known to be dead, each with the reason why its checks wait."""
        waiting: dict[str, str] = {}
        for group in self._due_groups:
            if self._groups.is_alive(group):
                why = self._topics.why_closed(self._names.check(group))
                waiting[group] = why or "Kafka has to take them, and transaction_check_rate to let them pass"
            elif (why := self._groups.why_unknown(group)) is not None:
                waiting[group] = f"it is not known who is alive in the group: {why}"
        return waiting

    def _may_check(self, group: str) -> bool:
        topic = self._names.check(group)
        if self._probe is not None:
            return topic == self._probe[0]
        return self._groups.is_alive(group) and self._topics.why_closed(topic) is None

    def _check_tokens(self) -> int:
        now = self._outside.monotonic()
        self._tokens = min(float(self._rate), self._tokens + (now - self._tokens_at) * self._rate)
        self._tokens_at = now
        return int(self._tokens)


class CheckWatch:
    """Keeps, by producer group, the time since which its checks wait although Kafka has not called the group dead.

    One thread reports what happens; any thread may read `overdue`.
    """

    def __init__(self, partition: int, outside: Outside) -> None:
        self._partition = partition
        self._outside = outside
        #: Monotonic time (s) since which checks wait, by group.
        self._waiting: dict[str, float] = {}
        #: Monotonic time (s) since which a round waits for END to be applied.
        self._round_since: float | None = None
        self._oldest: float | None = None
        self._told = False

    @property
    def overdue(self) -> float:
        """Seconds for which the oldest check or round has waited; 0 when none waits."""
        oldest = self._oldest
        return 0.0 if oldest is None else max(0.0, self._outside.monotonic() - oldest)

    def round_waits(self, why: str) -> None:
        """Note that something is due and that its round has to wait for END."""
        if self._round_since is None:
            self._round_since = self._outside.monotonic()
        self._look_again({"": why})

    def round_done(self, waiting: Mapping[str, str]) -> None:
        """Note that a round was drafted. `waiting`: groups with due checks that may be possible, each with a reason."""
        now = self._outside.monotonic()
        self._round_since = None
        self._waiting = {group: self._waiting.get(group, now) for group in waiting}
        self._look_again(waiting)

    def note_sent(self, groups: Iterable[str]) -> None:
        """Note that checks for these groups were committed."""
        for group in groups:
            self._waiting.pop(group, None)
        self._look_again({})

    def _look_again(self, reasons: Mapping[str, str]) -> None:
        since = [*self._waiting.values(), *(() if self._round_since is None else (self._round_since,))]
        self._oldest = min(since, default=None)
        if self._oldest is None:
            if self._told:
                self._told = False
                _log.info("checks_go_on", partition=self._partition)
        elif not self._told and reasons and self.overdue > _TELL_AFTER_S:
            self._told = True
            group = min(self._waiting, key=self._waiting.__getitem__, default="")
            group = group if group in reasons else next(iter(reasons))
            _log.warning(
                "checks_overdue",
                partition=self._partition,
                group=group or None,
                groups=len(self._waiting),
                seconds=round(self.overdue),
                error=reasons[group],
            )
