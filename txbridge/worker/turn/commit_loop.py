"""The commit loop of an owned partition: look, plan, write in one Kafka transaction, apply."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from txbridge.core.plan.choice import TransactionSize, first_entries, lacks_the_rest
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord
from txbridge.core.plan.planner import SHARE_OF_DUE, TurnPlanner
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.config import BATCH_BYTES
from txbridge.kafka.errors import AbortedError, LogGoneError, UnansweredError
from txbridge.worker.gates.lanes import Probe
from txbridge.worker.gates.topic_health import TopicHealth
from txbridge.worker.ingest.decision_log import DecisionLog
from txbridge.worker.ingest.half_log import HALF_BATCH, HalfLog
from txbridge.worker.partition_context import PartitionContext, PartitionState
from txbridge.worker.turn.check_round import ROUND_S, CheckRound
from txbridge.worker.turn.committer import Committer

#: Longest wait for work. HALF is looked at this often, so that a new message is known before its check is due. Only the
#: check of one whose CHECK_IMMUNITY_TIME_IN_SECONDS is 0 is this late. Each look takes a fraction of a millisecond, of
#: each partition.
_LONGEST_IDLE_S = 0.5
#: What is due is looked at this often while it has to wait for END, its topic or its group.
_IDLE_S = 0.1
#: The wait is shorter when a delivery is due earlier. It is at least this long, so that deliveries that are due one
#: after the other go together.
_LEAST_IDLE_S = 0.005
#: While decisions come, HALF is read ahead this often. The half messages that decisions name are read without this.
_READ_AHEAD_S = 0.05
#: Wait for the next fetch of HALF if the last one did not reach the end. It answers within milliseconds.
_NEXT_FETCH_S = 0.01
#: After this long without a write, the checkpoint is moved to the ends of the logs.
_SETTLE_S = 60.0


class CommitLoop:
    """Turns decisions and due times into Kafka transactions. Runs in the owner's thread."""

    def __init__(self, context: PartitionContext, state: PartitionState, decision_log: DecisionLog) -> None:
        self._context = context
        self._state = state
        self._outside = context.outside
        batch_bytes = int(context.kafka.get("batch.size", BATCH_BYTES))
        self._topics = TopicHealth(context.cluster, context.topic_memory, context.outside, batch_bytes)
        self._size = TransactionSize(context.largest)
        #: The time with which due times are compared.
        self.clock = BrokerClock(state.partition, context.outside)
        self.round = CheckRound(context, state, self._topics, self._size)
        self._half = HalfLog(state, context.outside, context.brokers, self.clock)
        self._decisions = decision_log
        self._committer = Committer(context, state, self._half, decision_log, self._topics, self._size, self.clock)
        self._planner = TurnPlanner(
            state.queue, self._size, self._topics, self._half.enter_fresh, self._half.load_frames
        )
        # Kafka transactions in a row that left out due held or scheduled messages for lack of room.
        self._left_out = 0
        # Whether the last turn was a probe: decisions have every second turn at least.
        self._has_probed = False
        self._written_at = self._outside.monotonic()
        self._more = False
        # Monotonic time (s) until which END counts as fully applied, after a look has found it so.
        self._level_until = 0.0
        self._read_ahead_at = 0.0
        # Whether the last fetch of HALF did not reach its end.
        self._is_behind = False
        self._paused_until = 0.0
        # Monotonic time (s) at which the next Kafka transaction may begin, while nothing is urgent.
        self._next_begin = 0.0

    @property
    def pause(self) -> float:
        """Seconds for which the owner should leave Kafka alone."""
        return max(self._committer.pause, self._paused_until - self._outside.monotonic())

    @property
    def rest(self) -> float:
        """Seconds to gather decisions before the next turn: what is left of `commit_interval`.

        0 while there is more work than one Kafka transaction holds. It ends when a topic with a lane may be tried
        again.
        """
        if self._more:
            return 0.0
        return max(0.0, min(self._next_begin, self._topics.lanes.next_try) - self._outside.monotonic())

    @property
    def idle(self) -> float:
        """Seconds that the owner may wait for END before the next turn."""
        if self._more:
            return 0.0
        queue, now = self._state.queue, self.clock.due()
        until = now + int(_LONGEST_IDLE_S * 1000)
        wait = _LONGEST_IDLE_S
        if (due := queue.next_due(until)) is not None:
            wait = min(wait, max(_IDLE_S, (due - now) / 1000))
        if (due := queue.timers.next_delivery(until)) is not None:
            wait = min(wait, max(_LEAST_IDLE_S, (due - now) / 1000))
        return wait

    def prove_ownership(self) -> None:
        """Write the checkpoint in a first transaction. It proves that no other worker has taken the fence meanwhile."""
        # As small as possible: a new owner does not know yet how much the link carries.
        if not self._commit_checkpoint():
            raise AbortedError("the first Kafka transaction after a take-over was aborted")

    def run(self) -> None:
        """Run one turn: at most one Kafka transaction, with waiting decisions and due work.

        Raises UnansweredError when Kafka has not answered a question: the turn can be run again. Raises FencedError,
        LogGoneError, TimeoutError, KafkaException.
        """
        state, planner, clock, decision_log = self._state, self._planner, self.clock, self._decisions
        # Look.
        state.queue.note_time(clock.now_at_latest())
        waiting = decision_log.waiting
        self._more = self._outside.monotonic() >= self._read_ahead_at and self._read_ahead()
        self._half.look_at_end()
        if waiting and self._left_out >= SHARE_OF_DUE - 1 and self._deliver_due_alone():
            return
        self._has_probed = not (waiting and self._has_probed) and self._probe_lane()
        if self._has_probed:
            return
        first = first_entries(state.queue, waiting, self._size.limits.entries)
        ready = self._half.count_ready(first, decision_log.position)
        self.round.note_what_is_due(clock, decision_log.position)
        self._require_the_rest()
        # Plan. Between the choice and the plan, Kafka is asked about what was chosen.
        choice = planner.choose(
            waiting,
            decision_log.position,
            clock.due(),
            None if ready == len(first) else ready,
            may_run=self._committer.is_clear,
        )
        as_of = self.round.as_of(choice.end)
        if as_of is not None or state.queue.must_park:
            self._half.enter_fresh(state.queue.fresh_until(clock.now()))
        if as_of is None and self.round.is_waiting:
            decision_log.compare_soon()
        self._look_up(choice.topics)
        with suppress(UnansweredError):
            # Replies to topics that Kafka has not described are left out. No decision waits for them.
            self._topics.look_up(map(self._context.names.check, choice.groups_to_reply))
        # Last, as it asks which groups are alive, and the others may take seconds.
        due_round = None if as_of is None else self.round.prepare(as_of)
        draft = planner.plan(
            choice,
            clock.now(),
            due_round,
            may_discard=self._topics.problem_of(self._context.names.discard) is None,
            most_malformed=self._half.most_malformed,
        )
        if due_round is not None and not planner.round_waits:
            self.round.note_plan(due_round, draft)
        if draft.is_empty:
            assert choice.is_empty, "an END that was applied waits again"
            draft.abandon()
            if not waiting:
                self._settle_at_ends()
            elif state.queue.must_park:
                # The discard topic takes no copy of a malformed record of HALF, and so nothing behind it can be parked.
                # Without a pause, turns would follow each other at once until it does.
                self._paused_until = self._outside.monotonic() + _IDLE_S
            return
        # Write, and apply.
        began = self._outside.monotonic()
        malformed = [*self._half.load_malformed(draft.malformed), *choice.malformed]
        if self._commit(draft, malformed):
            self._written_at = self._outside.monotonic()
            self._next_begin = began + self._context.commit_interval
            self.round.note_sent(draft)
            self._left_out = self._left_out + 1 if draft.left_out else 0
            decision_log.drop_applied()
            # The next turn follows at once, too, after what is limited in each transaction and may go on.
            is_full = draft.left_out or draft.more_due or decision_log.is_behind or self.round.is_waiting
            in_part = draft.checks or draft.discards or draft.malformed or draft.parked or draft.forgotten
            self._more = bool(self._more or is_full or in_part)

    def _deliver_due_alone(self) -> bool:
        """Write a Kafka transaction of held and scheduled messages only. False when there was nothing to write."""
        self._left_out = 0
        self._look_up(set())
        draft = self._planner.plan_due_alone(self.clock.now(), self.clock.due())
        if draft.is_empty:
            draft.abandon()
            return False
        if self._commit(draft):
            self._written_at, self._more = self._outside.monotonic(), True
        return True

    def _probe_lane(self) -> bool:
        """Try held messages of a topic that has refused some, in a Kafka transaction of their own. False if none."""
        topics, queue = self._topics, self._state.queue
        probe = topics.lanes.next_probe(self._outside.monotonic())
        if probe is None:
            return False
        entries = [entry for offset in probe.offsets if (entry := queue.entry(offset)) is not None]
        topics.look_up({probe.topic}.union(*(entry.topics for entry in entries)))
        draft = self._planner.plan_probe(entries, self.clock.now(), self.clock.due())
        offsets = [entry.offset for entry in draft.deliver]
        if not offsets:
            topics.lanes.leave_waiting(frozenset(probe.offsets))
            return False
        if self._commit(draft, probe=probe._replace(offsets=offsets)):
            self._written_at = self._outside.monotonic()
        self._more = True
        return True

    def _read_ahead(self) -> bool:
        """Read HALF further than decisions need: an undecided message must be known before its check is due.

        Return whether there is more. This is not done with every decision, so that one fetch brings many messages.
        """
        if not self._may_read_on():
            return False
        state = self._state
        came = self._half.take_in(HALF_BATCH, _NEXT_FETCH_S if self._is_behind else 0)
        self._is_behind = came > 0 and state.half_reader.position < state.half_reader.fetched_end()
        if not self._is_behind:
            self._read_ahead_at = self._outside.monotonic() + _READ_AHEAD_S
        return self._is_behind

    def _may_read_on(self) -> bool:
        """Whether to read HALF further than decisions need.

        HALF is not read far ahead while stored decisions are not applied. After an outage, hundreds of thousands of
        messages would be parked for nothing, and be decided a moment later.
        """
        queue = self._state.queue
        if not queue.reads_far_ahead:
            return True
        if self._decisions.waiting or queue.must_park:
            return False
        if self._outside.monotonic() >= self._level_until:
            if self._end_of(self._context.names.end) > self._decisions.position:
                return False
            self._level_until = self._outside.monotonic() + ROUND_S
        return True

    def _end_of(self, topic: str) -> int:
        return self._state.ends.bounds(topic, self._state.partition)[1]

    def _require_the_rest(self) -> None:
        """Require that END still has the record that is applied in part. Raises LogGoneError."""
        queue = self._state.queue
        if lacks_the_rest(queue, self._decisions.waiting):
            raise LogGoneError(
                f"{self._context.names.end}[{self._state.partition}] offset {queue.next_end} holds another record than "
                f"the one of which {queue.next_entry} entries are applied: the log was cut, or deleted and created "
                f"again"
            )

    def _look_up(self, topics: AbstractSet[str]) -> None:
        """Ask Kafka about these topics, and those of due deliveries."""
        self._topics.look_up(topics | self._planner.look_at_due(self.clock.due()))

    def _settle_at_ends(self) -> None:
        """After a while without work, write a checkpoint with the offsets at which the logs end.

        Retention may empty an idle log: it deletes transaction markers together with the records. A log start above the
        checkpoint would then look like a loss.
        """
        state = self._state
        if self.clock.should_ask_again:
            self._commit_checkpoint()
            return
        if self._outside.monotonic() - self._written_at < _SETTLE_S:
            return
        self._written_at = self._outside.monotonic()
        queue, checkpoint, end_position = state.queue, self._committer.checkpoint, self._decisions.position
        op_end = self._end_of(self._context.names.op)
        at_ends = (queue.read_position, end_position, op_end)
        if queue.watermark < queue.read_position or at_ends == (checkpoint.half, checkpoint.end, checkpoint.op):
            return
        self._committer.settled_op = op_end
        self._commit_checkpoint(end_position)

    def _commit_checkpoint(self, end: int = 0) -> bool:
        return self._commit(self._planner.plan_checkpoint(self.clock.now(), self.clock.due(), end))

    def _commit(self, draft: Draft, malformed: Sequence[MalformedRecord] = (), probe: Probe | None = None) -> bool:
        try:
            return self._committer.commit_draft(draft, malformed, probe)
        except UnansweredError as error:
            # It may be unknown whether the draft is committed: this turn cannot be run again.
            raise TimeoutError(str(error)) from error
