"""Commit of a draft: its bodies, the Kafka transaction, and the consequences of the outcome."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from txbridge.backoff import Backoff
from txbridge.core.checkpoint import Checkpoint, encode_ops
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.plan.choice import TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord
from txbridge.failpoints import fault_point
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.errors import (
    AbortedError,
    FencedError,
    IndefiniteError,
    OutdatedError,
    RecordFailure,
    RecordKind,
    RecordsRefusedError,
    UnansweredError,
    UnendedTransactionError,
)
from txbridge.log import get_logger
from txbridge.worker.gates.lanes import Probe
from txbridge.worker.gates.topic_health import TopicHealth, load_bodies
from txbridge.worker.ingest.decision_log import DecisionLog
from txbridge.worker.ingest.half_log import HalfLog
from txbridge.worker.partition_context import PartitionContext, PartitionState
from txbridge.worker.takeover.restore import StateReader
from txbridge.worker.transaction.writer import Contents, Receipt, log_effects, log_fields

#: Back-off after an aborted transaction.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
#: Kafka transactions in a row that fail for no record's fault, before all topics in them are suspected.
_SUSPECT_AFTER = 3
#: Bytes of the history in a copy for the discard topic.
_COPY_ROOM = 2 * 1024
#: After a refusal by the discard topic, copies go without what it may not take for this long (s).
_BARE_S = 60.0

_log = get_logger("txbridge.worker")


class Committer:
    """Writes drafts of one partition, each in one Kafka transaction. Applies a draft once Kafka has committed it."""

    def __init__(
        self,
        context: PartitionContext,
        state: PartitionState,
        half_log: HalfLog,
        decision_log: DecisionLog,
        topics: TopicHealth,
        size: TransactionSize,
        clock: BrokerClock,
    ) -> None:
        self._context = context
        self._state = state
        self._state_reader = StateReader(context, state.partition, state.stopping)
        self._half, self._decisions = half_log, decision_log
        #: The last committed checkpoint, and its offset in OFFSET.
        self.checkpoint = state.checkpoint
        self._checkpoint_offset = state.checkpoint_offset
        # OFFSET offset at which the next record must land. None unless OFFSET was read to its end since the last write.
        self._offset_topic_end: int | None = state.offset_topic_end
        self._topics = topics
        self._clock = clock
        self._size = size
        self._outside = context.outside
        self._metrics = context.metrics
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._paused_until = 0.0
        self._failures = 0
        # Bytes of the largest record that the discard topic takes with its key and value, and until when (monotonic
        # time, s) that counts.
        self._largest_discard = sys.maxsize
        self._bare_until = 0.0
        #: All of OP below it is known. A take-over needs only the records that the state names.
        self.settled_op = 0
        #: False after a Kafka transaction that was not committed: each message is then looked at by itself.
        self.is_clear = True

    @property
    def pause(self) -> float:
        """Seconds for which nothing should be written, after a failure."""
        return max(0.0, self._paused_until - self._outside.monotonic())

    def commit_draft(self, draft: Draft, malformed: Sequence[MalformedRecord], probe: Probe | None = None) -> bool:
        """Write and apply the draft; False when it was abandoned and must be drafted anew.

        `probe` is what the draft delivers, if it is nothing else.
        Raises FencedError, OutdatedError, LogGoneError, TimeoutError, and KafkaException when Kafka cannot be asked;
        AbortedError and UnendedTransactionError for a topic without room for a marker, before and after the write.
        """
        state = self._state
        receipt = Receipt()
        self.is_clear = False
        try:
            bodies = load_bodies(draft, state.bodies, self._topics)
            if bodies is not None and self._refuses_checks(draft, bodies):
                bodies = None
        except BaseException:
            draft.abandon()
            raise
        if bodies is None:
            draft.abandon()
            return False
        replies = [(self._context.names.check(group), reply) for group, reply in draft.replies]
        contents = Contents(
            draft=draft,
            bodies=bodies,
            malformed=malformed,
            # Without those that would fail the Kafka transaction. Nobody waits for them for long.
            replies=[(topic, reply) for topic, reply in replies if self._topics.is_open(topic)],
            checkpoint=self._next_checkpoint(draft),
            # The messages of one transaction may be small enough, and their common batch too large.
            limits=dict.fromkeys(draft.real_topics, 1) if probe and len(probe.offsets) == 1 else self._topics.limits,
            largest_discard=self._largest_discard,
            named=probe is not None,
        )
        began = self._outside.monotonic()
        if state.writer.must_fence:
            self._require_no_other_write(self._fence_again().checkpoint)
        try:
            self._require_room(contents)
        except UnansweredError:
            draft.abandon()
            raise
        contents = replace(
            contents,
            offset_topic_end=self._offset_topic_end,
            # The checkpoint is the last record of its Kafka transaction, and a marker stands behind it.
            offset_topic_least=0 if self._checkpoint_offset < 0 else self._checkpoint_offset + 2,
            op_least=max(state.queue.ops.end, self.checkpoint.op),
        )
        started = self._outside.monotonic()
        receipt.appended = partial(self._clock.note_append, began=started)
        try:
            state.writer.write_transaction(contents, receipt)
        except RecordsRefusedError as error:
            draft.abandon()
            self._require_end(error)
            self._on_refused(contents, error, probe, self._outside.monotonic() - began)
            return False
        except AbortedError as error:
            draft.abandon()
            self._on_aborted(draft, "transaction_aborted", error)
            return False
        except OutdatedError:
            draft.abandon()
            raise
        except IndefiniteError as error:
            if not self._was_committed(receipt):
                draft.abandon()
                self._on_aborted(draft, "outcome_unknown", error)
                return False
            self._metrics.count_failure("outcome_learnt")
            _log.warning("outcome_learnt", partition=state.partition, error=str(error))
        seconds = self._outside.monotonic() - started
        self._size.got_through(*_load(contents), seconds)
        if probe is not None:
            self._topics.lanes.note_taken(*probe, self._outside.monotonic())
        self._apply_draft(contents, receipt)
        self._metrics.note_commit(draft, malformed, seconds, self._clock.now())
        self._metrics.note_registrations(state.writer.take_registrations())
        return True

    def _require_room(self, contents: Contents) -> None:
        """Raises AbortedError if a topic that this writes to cannot take Kafka's marker."""
        names, draft = self._context.names, contents.draft
        topics = {names.op, names.offset, *(names.check(entry.group) for entry in draft.checks)}
        if draft.discards or draft.abandoned or contents.malformed:
            topics.add(names.discard)
        if (why := self._topics.why_endless(topics.union(draft.real_topics, dict(contents.replies)))) is not None:
            raise AbortedError(why)

    def _require_end(self, error: RecordsRefusedError) -> None:
        """Raises UnendedTransactionError if a topic that refused records for their size cannot take the marker."""
        too_large, memory = {one.topic for one in error.failures if one.too_large}, self._context.topic_memory
        memory.too_large |= too_large
        memory.forget()
        if (why := self._topics.why_endless(too_large)) is not None:
            raise UnendedTransactionError(why)

    def _next_checkpoint(self, draft: Draft) -> Checkpoint:
        queue, last = self._state.queue, self.checkpoint
        marks = {"half": self._half.mark_of_last(), "end": self._decisions.mark_of_last()}
        # The start of the OP replay never moves back: a higher watermark needs fewer records.
        op = max(queue.ops.start, last.op)
        if draft.watermark >= max(queue.read_position, last.read or 0):
            # Everything read, here or by a predecessor, is finished or parked: no OP record up to here names anything
            # that is still needed.
            op = max(op, self.settled_op)
        return Checkpoint(
            half=draft.watermark,
            end=draft.next_end,
            op=op,
            topics=last.topics,
            # Messages that a predecessor has read count as read, although this owner reads them again.
            read=max(queue.read_position, last.read or 0),
            ops=queue.ops.count_from(op) + sum(len(encode_ops(offsets)) for _, offsets in draft.ops()),
            recent=self._recent_start(),
            entry=draft.next_entry,
            marks={short: mark for short, mark in marks.items() if mark is not None},
            cut=last.cut,
        )

    def _recent_start(self) -> int:
        state, last = self._state, self.checkpoint
        if state.half_reader.position >= state.queue.half_position:
            return state.queue.recent_start
        # The owner has not read the ids of all the last messages yet, since its take-over.
        return min(state.queue.recent_start, last.half if last.recent is None else last.recent)

    def _apply_draft(self, contents: Contents, receipt: Receipt) -> None:
        """Apply a committed draft to the state, and let everyone note what became of it."""
        state, draft, names = self._state, contents.draft, self._context.names
        for op_offset, half_offsets in receipt.ops:
            state.queue.ops.note_record(op_offset, half_offsets)
        draft.apply(self._clock.now_at_latest())
        assert receipt.checkpoint is not None
        self.checkpoint, self._checkpoint_offset = receipt.checkpoint, receipt.checkpoint_offset
        self._offset_topic_end = receipt.offset_topic_end
        if self._largest_discard != sys.maxsize and self._outside.monotonic() >= self._bare_until:
            self._largest_discard = sys.maxsize
        self._backoff.reset()
        self._failures, self.is_clear = 0, True
        self._half.on_committed(draft)
        self._topics.on_committed(
            draft, names, has_discards=bool(draft.discards or draft.abandoned or contents.malformed)
        )
        log_effects(contents, state.partition)
        self._context.no_longer_held.note_delivered(state.partition, draft.deliver, self._outside.monotonic())
        fault_point("commit.applied")

    def _was_committed(self, receipt: Receipt) -> bool:
        """Take the fence again, and read from the topics whether the transaction was committed.

        Raises as `_require_no_other_write` when it was not.
        """
        offset_topic = self._fence_again()
        if offset_topic.checkpoint is not None and offset_topic.checkpoint == receipt.checkpoint:
            receipt.checkpoint_offset, receipt.offset_topic_end = offset_topic.checkpoint_offset, offset_topic.position
            return True
        self._require_no_other_write(offset_topic.checkpoint)
        return False

    def _fence_again(self) -> OffsetTopic:
        """Take the fence again, and read OFFSET from the last checkpoint to its end."""
        state = self._state
        state.writer.take_fence()
        start = max(self._checkpoint_offset, 0)
        offset_topic = self._state_reader.read_offset_topic(start)
        self._offset_topic_end = offset_topic.position
        return offset_topic

    def _require_no_other_write(self, last: Checkpoint | None) -> None:
        """Require that the last checkpoint of OFFSET, and the last record of OP, are those that this owner knows.

        Raises FencedError when another worker has written meanwhile, OutdatedError when OFFSET or OP has lost records.
        """
        state, names = self._state, self._context.names
        if last is None and self._checkpoint_offset >= 0:
            raise OutdatedError(
                f"{names.offset}[{state.partition}] had a checkpoint at offset {self._checkpoint_offset}, and has none "
                f"from there on: its last records are lost"
            )
        if last is not None and last != self.checkpoint:
            raise FencedError("another worker has written the checkpoint meanwhile")
        # No take-over needs the records below the checkpoint's.
        known = state.queue.ops.last if state.queue.ops.last >= self.checkpoint.op else -1
        found = self._state_reader.last_op(self.checkpoint, max(known, self.checkpoint.op))
        if found > known:
            # A second attempt would deliver its messages twice.
            raise OutdatedError(
                f"{names.op}[{state.partition}] holds a Kafka transaction of which {names.offset} holds nothing"
            )
        if found < known:
            raise OutdatedError(
                f"{names.op}[{state.partition}] had a record at offset {known}, and has none from there on: its last "
                f"records are lost"
            )

    def _on_refused(self, contents: Contents, error: RecordsRefusedError, probe: Probe | None, seconds: float) -> None:
        """Act on the refused records in a way that lets all others pass. `seconds`: what the attempt has cost."""
        draft = contents.draft
        refused = [failure for failure in error.failures if failure.kind is not RecordKind.REPLY]
        for topic in {failure.topic for failure in error.failures if failure.kind is RecordKind.REPLY}:
            # The next attempt is without its replies, whatever the reason: no decision waits for them.
            self._topics.block_topic(topic, f"topic {topic}: {error}")
            self._metrics.count_failure("reply_refused")
            _log.warning("reply_refused", partition=self._state.partition, topic=topic, error=str(error))
        ours = any(failure.kind is RecordKind.INTERNAL for failure in refused)
        late = [failure for failure in refused if failure.timed_out]
        if late and (ours or self._is_too_slow(late)):
            # Not the topics' fault: the next transactions hold less.
            self._size.timed_out(*_load(contents), in_part=any(failure.in_part for failure in late))
            if not ours:
                self._back_off("records_timed_out", error)
                return
        if ours:
            # Nothing can be committed until our own topics take records again. Then the other topics may be fine, too.
            self._topics.forget_answers()
            self._back_off("internal_topic_refused", error)
            return
        by_topic: dict[str, list[RecordFailure]] = {}
        for failure in refused:
            by_topic.setdefault(failure.topic, []).append(failure)
        for topic, failures in by_topic.items():
            whole = next((failure for failure in failures if failure.whole_topic), None)
            reason = f"topic {topic}: {(whole or failures[0]).reason}"
            checks = [entry for entry in draft.checks if self._context.names.check(entry.group) == topic]
            if checks:
                about = log_fields(self._state.partition, checks[0])
                self._metrics.count_failure("check_refused")
                _log.warning("check_refused", **about, count=len(checks), error=reason)
            if failures[0].kind is RecordKind.DISCARD:
                self._discard_refused(contents, topic, reason, error, is_closed=whole is not None)
            elif whole is not None:
                self._topics.block_topic(topic, reason)
            else:
                self._note_refused(contents, topic, checks, failures, seconds, is_probe=probe is not None)

    def _is_too_slow(self, late: Sequence[RecordFailure]) -> bool:
        """Whether records were late because there were too many: their topic took others, or several topics were late.

        If a transaction holds one message only, the topic is at fault.
        """
        in_part = any(failure.in_part for failure in late)
        return not self._size.is_smallest and (in_part or len({failure.topic for failure in late}) > 1)

    def _note_refused(
        self,
        contents: Contents,
        topic: str,
        checks: Sequence[HalfEntry],
        failures: Sequence[RecordFailure],
        seconds: float,
        *,
        is_probe: bool,
    ) -> None:
        """Let what is for this topic go by itself, unless its rules explain the refusal: the next draft follows them.

        Of several messages another topic may have refused one. The topic of a probe is not to blame then.
        """
        draft, lanes, reason = contents.draft, self._topics.lanes, f"topic {topic}: {failures[0].reason}"
        records = [(one.offset, contents.bodies[one.offset].key, draft.now, 0) for one in checks]
        records = records or [*contents.records_for(topic, self._state.partition)]
        if not is_probe and self._topics.explain_refusal(topic, reason, records, draft.now):
            return
        offsets, named = [*dict.fromkeys(record[0] for record in records)], _culprits(failures)
        now, is_apart = self._outside.monotonic(), is_probe or bool(checks)
        culprits = lanes.note_refused(topic, reason, offsets, named, seconds, now, is_apart=is_apart)
        for entry in (checks or draft.deliver) if all(failure.too_large for failure in failures) else ():
            if entry.offset in culprits and entry.messages == 1:
                lanes.note_too_large(topic, entry.size)

    def _refuses_checks(self, draft: Draft, bodies: dict[int, HalfMessage]) -> bool:
        """Whether a check topic refuses checks of the draft by its rules. The next draft puts them off."""
        found = False
        for entry in draft.checks:
            topic = self._context.names.check(entry.group)
            why = self._topics.refusal_of(topic, bodies[entry.offset].key, draft.now, draft.now)
            if why is not None:
                self._topics.note_refusal(topic, entry.offset, why)
                found = True
        return found

    def _discard_refused(
        self, contents: Contents, topic: str, reason: str, error: RecordsRefusedError, *, is_closed: bool
    ) -> None:
        """Write the next copies without key and value if the discard topic has no room for them, or refuses again.

        Those stay in the original record. If it takes no copy at all, discards wait, and everything else goes on.
        """
        if self._largest_discard == 0 or is_closed:
            pause = self._topics.block_topic(topic, reason)
            if contents.draft.abandoned or contents.malformed:
                # A decision or a record of END cannot wait: what comes after it would overtake it.
                self._back_off("internal_topic_refused", error)
            else:
                self._tell_failure("internal_topic_refused", error, pause)
            return
        self._topics.look_up([topic])
        most = self._topics.limits.get(topic, 0) - _COPY_ROOM
        self._largest_discard = max(0, most) if self._largest_discard == sys.maxsize else 0
        self._bare_until = self._outside.monotonic() + _BARE_S

    def _on_aborted(self, draft: Draft, event: str, error: Exception) -> None:
        """Back off after an aborted transaction in which no record is known to be at fault."""
        self._topics.forget_answers()
        self._failures += 1
        if self._failures >= _SUSPECT_AFTER:
            # Kafka does not name the topic that it forbids. The other topics must be able to go on without it.
            names = self._context.names
            groups = {one.group for one in draft.checks} | {group for group, _ in draft.replies}
            topics = draft.real_topics | set(map(names.check, groups))
            for topic in sorted(topics):
                self._topics.block_topic(topic, f"a Kafka transaction with topic {topic} in it failed: {error}")
        self._back_off(event, error)

    def _back_off(self, event: str, error: Exception) -> None:
        pause = self._backoff.next()
        self._tell_failure(event, error, pause)
        self._paused_until = self._outside.monotonic() + pause

    def _tell_failure(self, event: str, error: Exception, pause: float) -> None:
        self._metrics.count_failure(event)
        _log.warning(event, partition=self._state.partition, error=str(error), retry_seconds=round(pause, 1))


def _culprits(failures: Sequence[RecordFailure]) -> dict[int, str]:
    """Reasons by half offset of the messages that are known to be at fault."""
    return {
        failure.which: f"topic {failure.topic}: {failure.reason}"
        for failure in failures
        if failure.is_culprit and isinstance(failure.which, int)
    }


def _load(contents: Contents) -> tuple[int, int]:
    """Entries and bytes of a Kafka transaction: how large it was."""
    draft = contents.draft
    aside = sum(len(record.value or b"") for record in contents.malformed)
    return max(draft.entries + draft.more, draft.size + draft.more, 1), draft.bytes + aside
