"""The commit loop of an owned partition: look, draft, write in one Kafka transaction, apply."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from txbridge.core.commit_pacing import CommitPacing
from txbridge.core.decision_record import DecisionRecord
from txbridge.core.discard_record import MalformedRecord
from txbridge.core.fresh_halves import Run
from txbridge.core.plan import due_work
from txbridge.core.plan.batch import Batch, Slice, Turn, first_entries, lacks_the_rest
from txbridge.core.plan.draft import Draft
from txbridge.core.states import TransactionState
from txbridge.core.transaction_size import TransactionSize
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.config import BATCH_BYTES
from txbridge.kafka.failures import AbortedError, LogGoneError
from txbridge.worker.gates.refused_checks import RefusedChecks
from txbridge.worker.gates.topic_health import TopicHealth
from txbridge.worker.ingest.decision_log import DecisionLog
from txbridge.worker.ingest.half_log import HALF_BATCH, HalfLog
from txbridge.worker.partition_context import PartitionContext
from txbridge.worker.partition_state import PartitionState
from txbridge.worker.turn.check_round import ROUND_LIMIT, ROUND_S, CheckRound
from txbridge.worker.turn.committer import Committer

#: Longest wait for work. HALF is looked at this often, and a due check is noticed after two looks at the latest.
_IDLE_S = 0.1
#: The wait is shorter when a delivery is due earlier. It is at least this long, so that deliveries that are due one
#: after the other go together.
_LEAST_IDLE_S = 0.005
#: While decisions come, HALF is read ahead this often. The half messages that decisions name are read without this.
_READ_AHEAD_S = 0.05
#: Wait for the next fetch of HALF if the last one did not reach the end. It answers within milliseconds.
_NEXT_FETCH_S = 0.01
#: Most messages that one Kafka transaction parks, 2 MB of records. One turn reads as many, so that undecided messages
#: do not pile up as objects.
_PARK_LIMIT = HALF_BATCH
#: Beside decisions, due held and scheduled messages get at most this part (1/n) of a Kafka transaction. After n - 1
#: transactions in a row that left some of them out, the next one is theirs alone. So neither waits for the other for
#: ever.
_SHARE_OF_DUE = 4
#: After this long without a write, the checkpoint is moved to the ends of the logs.
_SETTLE_S = 60.0


class CommitLoop:
    """Turns decisions and due times into Kafka transactions. Runs in the owner's thread."""

    def __init__(self, context: PartitionContext, state: PartitionState) -> None:
        self._context = context
        self._state = state
        self._outside = context.outside
        batch_bytes = int(context.kafka.get("batch.size", BATCH_BYTES))
        self._topics = TopicHealth(context.requests, context.outside, batch_bytes)
        self._size = TransactionSize(context.largest)
        #: The time with which due times are compared.
        self.clock = BrokerClock(state.partition, context.outside)
        refused_checks = RefusedChecks(context.outside)
        self._round = CheckRound(context, state, self._topics, refused_checks, self._size)
        self._half = HalfLog(state, context.outside, context.each_broker, self.clock)
        self._committer = Committer(context, state, self._half, self._topics, refused_checks, self._size, self.clock)
        # Kafka transactions in a row that left out due held or scheduled messages for lack of room.
        self._left_out = 0
        # Whether due checks and discards wait for a Kafka transaction of their own.
        self._round_waits = False
        # Whether the last turn was a probe: decisions have every second turn at least.
        self._has_probed = False
        self._written_at = self._outside.monotonic()
        self._more = False
        # Monotonic time (s) until which END counts as fully applied, after a look has found it so.
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
        if self._more:
            return 0.0
        now = self.clock.due()
        due = self._state.queue.timers.next_delivery(now + int(_IDLE_S * 1000))
        return _IDLE_S if due is None else min(_IDLE_S, max(_LEAST_IDLE_S, (due - now) / 1000))

    @property
    def checks_overdue(self) -> float:
        """Seconds for which checks have been due without a dead group as the reason. For any thread."""
        return self._round.overdue

    def prove_ownership(self) -> None:
        """Write the checkpoint in a first transaction. It proves that no other worker has taken the fence meanwhile."""
        draft = Draft(self._state.queue, self.clock.now(), self.clock.due())
        # As small as possible: a new owner does not know yet how much the link carries.
        draft.park(0, grown_old=False)
        if not self._committer.commit(draft, []):
            raise AbortedError("the first Kafka transaction after a take-over was aborted")

    def run(self, decision_log: DecisionLog) -> None:
        """Run one turn: at most one Kafka transaction, with waiting decisions and due work.

        Raises FencedError, LogGoneError, TimeoutError, and KafkaException when Kafka cannot be asked.
        """
        self._state.queue.note_time(self.clock.now_at_latest())
        waiting = decision_log.waiting
        self._more = self._outside.monotonic() >= self._read_ahead_at and self._read_ahead(decision_log)
        self._half.look()
        if waiting and self._left_out >= _SHARE_OF_DUE - 1 and self._deliver_due_alone():
            return
        self._has_probed = not (waiting and self._has_probed) and self._probe_quarantine()
        if self._has_probed:
            return
        first = first_entries(self._state.queue, waiting, self._size.limits.entries)
        ready = self._half.ready(first, decision_log.position)
        self._round.note_what_is_due(self.clock, decision_log.position)
        turn = self._next_of(decision_log, None if ready == len(first) else ready)
        as_of = self._round.as_of(turn.end)
        if as_of is not None or self._state.queue.must_park:
            self._half.enter_fresh(self._state.queue.fresh_until(self.clock.now()))
        self._look_up(turn.topics, as_of)
        started = self._outside.monotonic()
        draft, malformed = self._draft(turn, as_of)
        if draft.is_empty:
            assert not turn.parts, "an END that was applied waits again"
            draft.abandon()
            if not waiting:
                self._settle(decision_log.position)
            return
        malformed = [*self._half.load_malformed(draft.malformed), *malformed]
        if self._committer.commit(draft, malformed):
            self._written_at = now = self._outside.monotonic()
            self._more = True
            self._round.sent(draft)
            self._left_out = self._left_out + 1 if draft.left_out else 0
            decision_log.drop_applied()
            # No rest during a round of checks, or while something waits.
            if not (waiting or draft.left_out or draft.more_due or draft.checks or self._round.is_waiting):
                self._rests_until = now + self._pace.rest_after(now, now - started, draft.size)

    def _deliver_due_alone(self) -> bool:
        """Write a Kafka transaction of held and scheduled messages only. False when there was nothing to write."""
        self._left_out = 0
        limits = self._size.limits
        self._look_up(set(), None)
        self._topics.begin_draft()
        draft = Draft(self._state.queue, self.clock.now(), self.clock.due())
        self._deliver_due(draft, limits.bytes)
        draft.park(0)
        if draft.is_empty:
            draft.abandon()
            return False
        if self._committer.commit(draft, []):
            self._written_at, self._more = self._outside.monotonic(), True
        return True

    def _probe_quarantine(self) -> bool:
        """Try held messages of a topic that has refused some, in a Kafka transaction of their own. False if none."""
        topics, queue = self._topics, self._state.queue
        probe = topics.quarantine.next_probe()
        if probe is None:
            return False
        entries = [entry for offset in probe.offsets if (entry := queue.entry(offset)) is not None]
        topics.look_up({probe.topic}.union(*(entry.topics for entry in entries)))
        topics.begin_draft()
        draft = Draft(queue, self.clock.now(), self.clock.due())
        for entry in entries:
            is_ready = entry.state is TransactionState.HELD and topics.problem_of_any(entry) is None
            if draft.deliver and draft.bytes + entry.size > self._size.limits.bytes:
                break
            if is_ready and len(draft.deliver) < self._size.limits.entries:
                draft.add_delivery(entry)
        offsets = [entry.offset for entry in draft.deliver]
        if not offsets:
            topics.quarantine.leave(probe.offsets)
            return False
        draft.park(0)
        if self._committer.commit(draft, [], probe._replace(offsets=offsets)):
            self._written_at = self._outside.monotonic()
        self._more = True
        return True

    # --- before the draft -------------------------------------------------------------------------------------------

    def _read_ahead(self, decision_log: DecisionLog) -> bool:
        """Read HALF further than decisions need: an undecided message must be known before its check is due.

        Return whether there is more. This is not done with every decision, so that one fetch brings many messages.
        """
        if not self._may_read_on(decision_log):
            return False
        state = self._state
        came = self._half.take_in(HALF_BATCH, _NEXT_FETCH_S if self._is_behind else 0)
        self._is_behind = came > 0 and state.half_reader.position < state.half_reader.fetched_end()
        if not self._is_behind:
            self._read_ahead_at = self._outside.monotonic() + _READ_AHEAD_S
        return self._is_behind

    def _may_read_on(self, decision_log: DecisionLog) -> bool:
        """Whether to read HALF further than decisions need.

        HALF is not read far ahead while stored decisions are not applied. After an outage, hundreds of thousands of
        messages would be parked for nothing, and be decided a moment later.
        """
        queue = self._state.queue
        if not queue.reads_far_ahead:
            return True
        if decision_log.waiting or queue.must_park:
            return False
        if self._outside.monotonic() >= self._level_until:
            if self._state.end_reader.watermarks()[1] > decision_log.position:
                return False
            self._level_until = self._outside.monotonic() + ROUND_S
        return True

    def _next_of(self, decision_log: DecisionLog, ready: int | None) -> Turn:
        """The next entries of END, in order, as many as one Kafka transaction should hold.

        `ready` is the number of records whose half messages are all known. None stands for all that the transaction can
        hold.
        """
        due = self.clock.due()
        if self._round_waits:
            return Turn(self._state.queue.next_end if decision_log.waiting else decision_log.position, due)
        state = self._state
        queue = state.queue
        if lacks_the_rest(queue, decision_log.waiting):
            raise LogGoneError(
                f"{self._context.names.end}[{state.partition}] offset {queue.next_end} holds another record than the "
                f"one of which {queue.next_entry} entries are applied: the log was cut, or deleted and created anew",
            )
        self._topics.begin_draft()
        batch = Batch(queue, self._size.limits, self._topics.room, due=due)
        most_aside = ROUND_LIMIT
        turn = Turn(decision_log.position, due, topics=batch.topics)
        for number, record in enumerate(decision_log.waiting):
            if number == ready:
                turn.end = record.offset
                break
            if isinstance(record, DecisionRecord):
                part = self._part_of(record, batch)
                is_whole = isinstance(part, Run) or (part is not None and part.stop == len(record.entries))
                if isinstance(part, Run) or (part is not None and part.stop > part.start):
                    turn.parts.append(part)
            else:
                is_whole = most_aside > 0 and batch.take_whole(len(record.value or b""))
                if is_whole:
                    turn.parts.append(record)
                    most_aside -= 1
            if not is_whole:
                turn.end = record.offset
                break
        return turn

    def _part_of(self, record: DecisionRecord, batch: Batch) -> Slice | Run | None:
        """The part of an END record that has room, as a run if it is one. None when a run has no room beside others."""
        run = batch.run_of(record) if self._committer.is_clear else None
        if run is not None and self._topics.are_clear(run.topics):
            if batch.take_run(run):
                return run
            if not batch.is_empty:
                return None
        self._enter(record)
        return batch.take(record)

    def _enter(self, record: DecisionRecord) -> None:
        """Make entries of the fresh half messages that a record names, to look at them one by one."""
        fresh = self._state.queue.fresh
        named = [offset for offset in record.half_offsets if offset in fresh]
        if named:
            self._half.enter_fresh(max(named) + 1)

    def _look_up(self, of_commits: AbstractSet[str], as_of: int | None) -> None:
        """Ask Kafka about the facts that the draft needs: real topics, and groups with checks due."""
        topics = of_commits | self._state.queue.timers.topics_of_due_deliveries(self.clock.due(), ROUND_LIMIT)
        if as_of is not None:
            topics |= self._round.check_topics(as_of)
        self._topics.look_up(topics)

    # --- the draft --------------------------------------------------------------------------------------------------

    def _draft(self, turn: Turn, as_of: int | None) -> tuple[Draft, list[MalformedRecord]]:
        draft = Draft(self._state.queue, self.clock.now(), turn.due)
        limits = self._size.limits
        malformed: list[MalformedRecord] = []
        for part in turn.parts:
            if isinstance(part, Run):
                if self._topics.are_clear(part.topics):
                    draft.apply_run(part)
                    continue
                self._enter(part.record)
                part = Slice(part.record, 0, len(part.record.entries))  # noqa: PLW2901 - the same, one by one
            if isinstance(part, Slice):
                draft.apply_end(part, self._topics.obstacle)
            else:
                draft.skip_end(part.offset + 1)
                malformed.append(part)
        if not self._round_waits:
            share = limits.bytes // _SHARE_OF_DUE if turn.parts else limits.bytes
            self._deliver_due(draft, min(limits.bytes, draft.bytes + share))
        most_aside = min(ROUND_LIMIT, limits.entries)
        # While transactions must be small, checks and discards go apart from decisions. Otherwise even the smallest one
        # would hold a decision, a check and a discard, and nothing would show which of them is too much. A probe of a
        # check topic always goes apart.
        is_probe = as_of is not None and self._round.is_probe
        is_apart = (self._size.is_shrunk or is_probe) and draft.bytes > 0
        self._round_waits = is_apart and as_of is not None
        if is_apart:
            as_of, most_aside = None, 0
        if as_of is not None:
            self._round.draft(draft, as_of, most_aside)
        may_copy = not is_probe and self._round.may_discard
        draft.set_aside_malformed(self._half.malformed_limit(most_aside if may_copy else 0))
        draft.park(min(_PARK_LIMIT, limits.entries), grown_old=as_of is not None)
        if as_of is not None:
            self._round.drafted(draft)
        return draft, malformed

    def _deliver_due(self, draft: Draft, max_bytes: int) -> None:
        limit = min(ROUND_LIMIT, self._size.limits.entries)
        topics = self._topics
        due_work.deliver_due(draft, topics.obstacle, topics.obstacle_of_held, limit, max_bytes, topics.room)

    # --- at rest ----------------------------------------------------------------------------------------------------

    def _settle(self, end_position: int) -> None:
        """After a while without work, write a checkpoint with the offsets at which the logs end.

        Retention may empty an idle log: it deletes transaction markers together with the records. A log start above the
        checkpoint would then look like a loss.
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
        at_ends = (queue.read_position, end_position, op_end)
        if queue.watermark < queue.read_position or at_ends == (checkpoint.half, checkpoint.end, checkpoint.op):
            return
        self._committer.settle(op_end)
        draft = Draft(queue, self.clock.now(), self.clock.due())
        draft.skip_end(end_position)
        draft.park(0)
        self._committer.commit(draft, [])
