"""The commit loop of an owned partition: look, draft, write in one Kafka transaction, apply."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from txbridge.core.batch import Batch, Part
from txbridge.core.commit_pacing import CommitPacing
from txbridge.core.discard_record import MalformedRecord
from txbridge.core.draft import Draft
from txbridge.core.open_messages import HalfEntry
from txbridge.core.transaction_size import TransactionSize
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.failures import AbortedError
from txbridge.worker.commit.committer import Committer
from txbridge.worker.commit.turn import Turn, Waiting, first_entries, next_turn, require_the_rest
from txbridge.worker.gates.group_liveness import GroupLiveness
from txbridge.worker.gates.refused_checks import RefusedChecks
from txbridge.worker.gates.topic_health import TopicHealth
from txbridge.worker.ingest.half_log import HALF_BATCH, HalfLog
from txbridge.worker.observe.check_watch import CheckWatch
from txbridge.worker.partition_state import PartitionContext, PartitionState

#: Waiting for work: HALF is looked at this often, and two looks bound how late a check can be noticed.
_IDLE_S = 0.1
#: Beside decisions, which say themselves what of HALF they need, HALF is looked at this often.
_READ_AHEAD_S = 0.05
#: What one fetch brought was not all: the next one answers within milliseconds.
_NEXT_FETCH_S = 0.01
#: Least time between two rounds that ask Kafka whether checks may be sent; a round that was full is followed at once.
#: With a steady stream of checks a message waits for its round twice, to be asked about and for what came before its
#: answer: with 0.1 the one in the middle took 189 ms, with 0.05 135 ms, and processors had as much to do.
_ROUND_S = 0.05
#: The same after a round that found nothing to do: all that is due waits for groups of which nobody is alive, which may
#: be for days, or for its turn at transaction_check_rate. Each round asks Kafka where END ends, and the commits of all
#: others wait for that.
_VAIN_ROUND_S = 0.25
#: Messages that one round checks, discards or retries: one Kafka transaction of moderate size.
_ROUND_LIMIT = 1_000
#: Messages that are parked with one Kafka transaction, 2 MB of records: as many as are read in the same turn, so that
#: what is undecided does not pile up as objects.
_PARK_LIMIT = HALF_BATCH
#: The same while the discard topic takes records one by one only.
_CAREFUL_LIMIT = 50
#: Checks and discards are drafted in steps of this many, to stop when their bodies are enough for one transaction; one
#: by one while a transaction must be small.
_STEP = 10
#: Beside decisions, held messages that are due again have this part of a Kafka transaction (1/n) at most. When they had
#: no room in n - 1 that decisions have filled, the next one is theirs alone: so neither waits for the other for ever.
_SHARE_OF_HELD = 4
#: When nothing has been written for so long, the checkpoint is brought level with the ends of the logs.
_SETTLE_S = 60.0


class CommitLoop:
    """Turns decisions and due times into Kafka transactions. Runs in the owner's thread."""

    def __init__(self, context: PartitionContext, state: PartitionState) -> None:
        self._context = context
        self._state = state
        self._outside = context.outside
        self._topics = TopicHealth(context.requests, context.outside)
        self._groups = GroupLiveness(context.membership, context.names, context.outside)
        self._refused_checks = RefusedChecks(context.outside)
        self._size = TransactionSize(context.largest)
        #: What time it is, for all that falls due.
        self.clock = BrokerClock(state.partition, context.outside)
        self._committer = Committer(context, state, self._topics, self._refused_checks, self._size, self.clock)
        self._half = HalfLog(state, context.outside)
        self._watch = CheckWatch(state.partition, context.outside)
        # Groups with checks due that the round at hand looks at.
        self._due_groups: list[str] = []
        # Kafka transactions, since they had one, in which held messages that are due had no room.
        self._left_out = 0
        # Whether what is due waits for a Kafka transaction of its own.
        self._round_waits = False
        self._next_round = 0.0
        # A time at which something was due, and where END ended after it.
        self._due: tuple[int, int] | None = None
        self._tokens = float(context.check_rate)
        self._tokens_at = self._written_at = self._outside.monotonic()
        self._more = False
        # Until then END counts as applied to its end, after it was found to be.
        self._level_until = 0.0
        self._read_ahead_at = 0.0
        # Whether the last fetch of HALF did not reach its end.
        self._is_behind = False
        self._pace = CommitPacing()
        self._rests_until = 0.0

    @property
    def pause(self) -> float:
        """Seconds for which the owner should leave Kafka alone."""
        return max(self._committer.pause, self._rests_until - self._outside.monotonic())

    @property
    def idle(self) -> float:
        """Seconds that the owner may wait for END before the next turn."""
        return 0.0 if self._more else _IDLE_S

    @property
    def checks_overdue(self) -> float:
        """Seconds for which checks have been due, as far as nobody says that they are not possible. For any thread."""
        return self._watch.overdue

    def prove_ownership(self) -> None:
        """Write the checkpoint in a first transaction: nobody came in between the fence and here."""
        draft = Draft(self._state.queue, self.clock.now(), self.clock.due())
        # As small as can be: a new owner does not know yet what the link carries.
        draft.park(0, grown_old=False)
        if not self._committer.commit(draft, []):
            raise AbortedError("the first Kafka transaction after a take-over was aborted")

    def run(self, waiting: Waiting, end_position: int) -> None:
        """One turn: at most one Kafka transaction. What it applied is gone from `waiting`.

        `end_position` is the END offset behind the last of `waiting`. Raises FencedError, LogGoneError, TimeoutError,
        and KafkaException when Kafka can not be asked.
        """
        self._more = self._outside.monotonic() >= self._read_ahead_at and self._read_ahead(waiting, end_position)
        self._half.look()
        if waiting and self._left_out >= _SHARE_OF_HELD - 1 and self._retry_alone():
            return
        first = first_entries(self._state.queue, waiting, self._size.limits.entries)
        ready = self._half.ready(first, end_position)
        self._note_what_is_due(end_position)
        turn = self._next_of(waiting, end_position, None if ready == len(first) else ready)
        as_of = self._round_as_of(turn.end)
        self._look_up(turn.topics, as_of)
        started = self._outside.monotonic()
        draft, malformed = self._draft(turn, as_of)
        if draft.is_empty:
            assert not turn.parts, "an END that was applied waits again"
            draft.abandon()
            if not waiting:
                self._settle(end_position)
            return
        malformed = [*self._state.load_malformed(draft.malformed), *malformed]
        if self._committer.commit(draft, malformed):
            self._written_at = now = self._outside.monotonic()
            self._more = True
            self._watch.sent({entry.group for entry in draft.checks})
            self._left_out = self._left_out + 1 if draft.left_out else 0
            while waiting and waiting[0].offset < self._state.queue.next_end:
                waiting.popleft()
            # A round of checks goes on, and so does what waits.
            if not (waiting or draft.left_out or draft.checks or self._due is not None):
                self._rests_until = now + self._pace.rest_after(now, now - started, draft.size)

    def _retry_alone(self) -> bool:
        """A Kafka transaction of held messages only. False when there was nothing to write."""
        self._left_out = 0
        limits = self._size.limits
        self._look_up(set(), None)
        self._topics.begin_draft()
        draft = Draft(self._state.queue, self.clock.now(), self.clock.due())
        self._retry_held(draft, limits.bytes)
        draft.park(0)
        if draft.is_empty:
            draft.abandon()
            return False
        if self._committer.commit(draft, []):
            self._written_at, self._more = self._outside.monotonic(), True
        return True

    # --- before the draft -------------------------------------------------------------------------------------------

    def _read_ahead(self, waiting: Waiting, end_position: int) -> bool:
        """Read HALF further than decisions ask for: what is undecided must be known before it is due.

        Returns whether there is more. Not with every decision: so the messages of many are fetched together.
        """
        if not self._may_read_on(waiting, end_position):
            return False
        state = self._state
        came = state.take_in_half(HALF_BATCH, _NEXT_FETCH_S if self._is_behind else 0)
        self._is_behind = came > 0 and state.half_reader.position < state.half_reader.fetched_end()
        if not self._is_behind:
            self._read_ahead_at = self._outside.monotonic() + _READ_AHEAD_S
        return self._is_behind

    def _may_read_on(self, waiting: Waiting, end_position: int) -> bool:
        """Whether to read HALF further than decisions ask for.

        Not far ahead of decisions that are stored and not applied: after an outage, messages would be parked for
        nothing, by the hundred thousand, and be decided a moment later.
        """
        queue = self._state.queue
        if not queue.reads_far_ahead:
            return True
        if waiting or queue.must_park:
            return False
        if self._outside.monotonic() >= self._level_until:
            if self._state.end_reader.watermarks()[1] > end_position:
                return False
            self._level_until = self._outside.monotonic() + _ROUND_S
        return True

    def _note_what_is_due(self, end_position: int) -> None:
        """Once something is due, remember up to where END has to be applied first: its end as of a later time.

        A decision that is stored by then must stop the check. Not its end as of the check, which under a steady stream
        of decisions is never reached.
        """
        if self._due is not None or self._outside.monotonic() < self._next_round:
            return
        now = self.clock.due()
        due = self._state.queue.next_due(now)
        if due is None or due > now:
            self._watch.round_done({})
            return
        self._next_round = self._outside.monotonic() + _ROUND_S
        # A decision that whoever is asked does not know would not stop the check.
        end = self._state.end_reader.end_from(end_position)
        if end is None:
            self._watch.round_waits("Kafka has to say where END ends")
        else:
            self._due = (now, end)

    def _round_as_of(self, next_end: int) -> int | None:
        """The time up to which checks and discards may be done in a draft that applies END up to here, or None."""
        if self._due is None:
            return None
        as_of, end = self._due
        if end <= next_end:
            return as_of
        self._watch.round_waits(f"END has to be applied up to offset {end}, and is up to {self._state.queue.next_end}")
        return None

    def _next_of(self, waiting: Waiting, end_position: int, ready: int | None) -> Turn:
        """The next entries of END, in its order, as many as one Kafka transaction should hold.

        `ready`: of so many records all is known that they name; None: of those that it can hold.
        """
        if self._round_waits:
            return Turn(self._state.queue.next_end if waiting else end_position)
        state = self._state
        require_the_rest(state.queue, waiting, f"{self._context.names.end}[{state.partition}]")
        self._topics.begin_draft()
        batch = Batch(state.queue, self._size.limits, self._topics.room)
        most_aside = _CAREFUL_LIMIT if self._is_careful else _ROUND_LIMIT
        return next_turn(batch, waiting, end_position, most_aside, ready)

    @property
    def _is_careful(self) -> bool:
        """Whether the discard topic takes records one by one only."""
        return self._context.names.discard in self._topics.limits

    def _look_up(self, of_commits: AbstractSet[str], as_of: int | None) -> None:
        """Ask Kafka what the draft will want to know: real topics, groups that are to be checked."""
        queue, names = self._state.queue, self._context.names
        topics = of_commits | queue.timers.topics_of_due_retries(self.clock.due(), _ROUND_LIMIT)
        if as_of is not None:
            groups = self._due_groups = self._groups.attend(
                lambda limit: queue.timers.groups_with_checks_due(as_of, limit),
                lambda group: queue.timers.has_checks_due(group, as_of),
            )
            topics |= {names.check(group) for group in groups if self._groups.is_alive(group)}
        self._topics.look_up(topics)

    # --- the draft --------------------------------------------------------------------------------------------------

    def _draft(self, turn: Turn, as_of: int | None) -> tuple[Draft, list[MalformedRecord]]:
        draft = Draft(self._state.queue, self.clock.now(), self.clock.due())
        limits = self._size.limits
        malformed: list[MalformedRecord] = []
        for part in turn.parts:
            if isinstance(part, Part):
                draft.apply_end(part, self._topics.obstacle)
            else:
                draft.skip_end(part.offset + 1)
                malformed.append(part)
        if not self._round_waits:
            share = limits.bytes // _SHARE_OF_HELD if turn.parts else limits.bytes
            self._retry_held(draft, min(limits.bytes, draft.bytes + share))
        most_aside = min(_CAREFUL_LIMIT if self._is_careful else _ROUND_LIMIT, limits.entries)
        # Apart from the rest, or even the smallest would hold a decision, a check and a discard, and which is too much?
        is_apart = self._size.is_shrunk and draft.bytes > 0
        self._round_waits = is_apart and as_of is not None
        if is_apart:
            as_of, most_aside = None, 0
        if as_of is not None:
            self._due = None
            self._draft_round(draft, as_of, most_aside)
            self._watch.round_done(self._why_not_checked())
        draft.set_aside_malformed(self._state.malformed_limit(most_aside))
        draft.park(min(_PARK_LIMIT, limits.entries), grown_old=as_of is not None)
        if as_of is not None and not (
            draft.checks or draft.unchecked or draft.discards or draft.forgotten or draft.parked
        ):
            self._next_round = self._outside.monotonic() + _VAIN_ROUND_S
        return draft, malformed

    def _retry_held(self, draft: Draft, max_bytes: int) -> None:
        limit = min(_ROUND_LIMIT, self._size.limits.entries)
        draft.retry_held(self._topics.obstacle_of_held, limit, max_bytes, self._topics.room)

    def _draft_round(self, draft: Draft, as_of: int, most_discards: int) -> None:
        """Checks and discards, as many as may be."""
        self._in_steps(draft, lambda step: draft.discard(as_of, step), most_discards)
        most_checks = min(_ROUND_LIMIT, self._check_tokens(), self._size.limits.entries)
        self._in_steps(
            draft,
            lambda step: draft.send_checks(as_of, self._may_check, step, self._why_not_check, self._due_groups),
            most_checks,
        )
        self._tokens -= len(draft.checks)
        if len(draft.discards) >= most_discards or len(draft.checks) >= most_checks > 0:
            self._next_round = 0.0

    def _in_steps(self, draft: Draft, more: Callable[[int], int], limit: int) -> None:
        """Look at up to `limit` messages and draft those that can be: their bodies are all in memory at once.

        `more` returns how many of so many it has looked at.
        """
        is_shrunk, most = self._size.is_shrunk, self._size.limits.bytes
        step, most = (1, most) if is_shrunk else (_STEP, draft.bytes + most)
        looked_at = 0
        while looked_at < limit and draft.bytes < most:
            found = more(min(step, limit - looked_at))
            if not found:
                break
            looked_at += found

    def _why_not_checked(self) -> dict[str, str]:
        """Groups with checks due of which it is not known that nobody is alive, and what their checks wait for."""
        waiting: dict[str, str] = {}
        for group in self._due_groups:
            if self._groups.is_alive(group):
                problem = self._topics.problem_of(self._context.names.check(group))
                waiting[group] = problem or "Kafka has to take them, and transaction_check_rate to let them pass"
            elif (why := self._groups.why_unknown(group)) is not None:
                waiting[group] = f"it is not known who is alive in the group: {why}"
        return waiting

    def _may_check(self, group: str) -> bool:
        return self._groups.is_alive(group) and self._topics.problem_of(self._context.names.check(group)) is None

    def _why_not_check(self, entry: HalfEntry) -> str | None:
        return self._refused_checks.obstacle(entry, self._context.names.check(entry.group))

    def _check_tokens(self) -> int:
        now = self._outside.monotonic()
        rate = self._context.check_rate
        self._tokens = min(float(rate), self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        return int(self._tokens)

    # --- at rest ----------------------------------------------------------------------------------------------------

    def _settle(self, end_position: int) -> None:
        """After a while without work, write a checkpoint that stands at the very ends of the logs.

        Retention may empty logs in which nothing happens: the markers of Kafka's transactions go with the records, and
        a log start above the checkpoint would then look as if something was lost.
        """
        state = self._state
        if self.clock.should_ask_again:
            draft = Draft(state.queue, self.clock.now(), self.clock.due())
            draft.park(0)
            self._committer.commit(draft, [])
            return
        if self._outside.monotonic() - self._written_at < _SETTLE_S:
            return
        self._written_at = self._outside.monotonic()
        queue, checkpoint = state.queue, state.checkpoint
        op_end = state.end_reader.watermarks(self._context.names.op)[1]
        at_ends = (queue.half_position, end_position, op_end)
        if queue.watermark < queue.half_position or at_ends == (checkpoint.half, checkpoint.end, checkpoint.op):
            return
        self._committer.settle(op_end)
        draft = Draft(queue, self.clock.now(), self.clock.due())
        draft.skip_end(end_position)
        draft.park(0)
        self._committer.commit(draft, [])
