"""The cycle of an owned partition: look, draft, write in one Kafka transaction, apply."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence

from txbridge.broker.errors import AbortedError, FencedError, IndefiniteError, RecordsRefusedError
from txbridge.broker.faults import fault_point
from txbridge.broker.groups import GroupDirectory
from txbridge.broker.real_topics import RealTopics
from txbridge.broker.takeover import PartitionContext, PartitionState, read_offset_topic
from txbridge.broker.writer import MalformedRecord, Receipt
from txbridge.core import names as header_names
from txbridge.core.draft import Draft
from txbridge.core.end_transaction import Decision, EndRecord
from txbridge.core.half_message import HalfMessage, half_headers
from txbridge.core.half_queue import HalfEntry
from txbridge.core.progress import Progress
from txbridge.core.states import TransactionState
from txbridge.log import get_logger

#: END entries and bytes of messages in one Kafka transaction. 10,000 messages of 1 KB take about 0.2 s, well within
#: transaction.timeout.ms; larger ones make readers of the real topics wait without making the worker faster.
_MAX_ENTRIES = 10_000
_MAX_BYTES = 16 * 1024 * 1024
#: Records of HALF read at a time, so that a backlog there does not keep decisions waiting.
_HALF_BATCH = 10_000
#: Waiting for work: HALF is looked at this often, which bounds how late a check can be noticed.
_IDLE_S = 0.1
#: Least time between two rounds that ask Kafka whether checks may be sent; a round that was full is followed at once.
_ROUND_S = 0.1
#: Messages that one round checks, discards, parks or retries: one Kafka transaction of moderate size.
_ROUND_LIMIT = 1_000
#: Reading HALF up to an offset that Kafka says is there.
_HALF_TIMEOUT_S = 10.0
#: Back-off after an aborted transaction or an unanswered request.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

_log = get_logger("txbridge.broker")


class Cycle:
    """Turns decisions and due times into Kafka transactions. Runs in the owner's thread."""

    def __init__(self, context: PartitionContext, state: PartitionState) -> None:
        self._context = context
        self._state = state
        self._topics = RealTopics(context.admin)
        self._groups = GroupDirectory(context.admin, context.names)
        self._next_round = 0.0
        self._pause = _FIRST_PAUSE_S
        self._paused_until = 0.0
        self._tokens = float(context.check_rate)
        self._tokens_at = time.monotonic()

    def idle_for(self) -> float:
        """Seconds that the owner may wait for END before the next run."""
        return max(_IDLE_S, self._paused_until - time.monotonic())

    def prove_ownership(self) -> None:
        """Write the progress in a first transaction: nobody came in between the fence and here."""
        draft = Draft(self._state.queue, _now(), _MAX_BYTES)
        draft.park(_ROUND_LIMIT)
        if not self._write(draft, []):
            raise AbortedError("the first Kafka transaction after a take-over was aborted")

    def run(self, waiting: deque[EndRecord | MalformedRecord]) -> None:
        """One turn: at most one Kafka transaction. What it applied is gone from `waiting`.

        Raises FencedError, LogGoneError, KafkaException and IndefiniteError when Kafka can not be asked.
        """
        if time.monotonic() < self._paused_until:
            return
        self._state.take_in_half(_HALF_BATCH, 0)
        batch = _first_entries(waiting)
        self._read_half_for(batch)
        as_of = self._round_as_of(batch[-1].offset + 1 if batch else self._state.queue.next_end)
        self._look_up(batch, as_of)
        draft, taken, malformed = self._draft(batch, as_of)
        if draft.is_empty:
            draft.abandon()
            return
        if self._write(draft, [*(self._state.malformed[offset] for offset in draft.malformed), *malformed]):
            for _ in range(taken):
                waiting.popleft()

    # --- before the draft -------------------------------------------------------------------------------------------

    def _read_half_for(self, batch: Sequence[EndRecord | MalformedRecord]) -> None:
        """Read HALF to min(highest offset named + 1, its end fetched after the END was read)."""
        state = self._state
        named = [entry.half_offset for record in batch if isinstance(record, EndRecord) for entry in record.entries]
        target = max(named, default=-1) + 1
        if target <= state.queue.half_position:
            return
        target = min(target, state.half_reader.watermarks()[1])
        deadline = time.monotonic() + _HALF_TIMEOUT_S
        while state.queue.half_position < target:
            if not state.take_in_half(_HALF_BATCH, 0.05) and time.monotonic() > deadline:
                raise TimeoutError(f"{state.half_reader.topic}[{state.partition}] did not come up to offset {target}")

    def _round_as_of(self, next_end: int) -> int | None:
        """The time up to which checks and discards may be done now, or None.

        Only once END has been applied up to its end as of a time after they fell due: a decision that is stored
        must stop the check.
        """
        due = self._state.queue.next_due()
        now = _now()
        if due is None or due > now or time.monotonic() < self._next_round:
            return None
        self._next_round = time.monotonic() + _ROUND_S
        return now if self._state.end_reader.watermarks()[1] <= next_end else None

    def _look_up(self, batch: Sequence[EndRecord | MalformedRecord], as_of: int | None) -> None:
        """Ask Kafka what the draft will want to know: real topics of commits, groups that are to be checked."""
        queue, names = self._state.queue, self._context.names
        topics = {
            entry.real_topic
            for record in batch
            if isinstance(record, EndRecord)
            for command in record.entries
            if command.decision is Decision.COMMIT
            and (entry := queue.entry(command.half_offset)) is not None
            and entry.state is TransactionState.PENDING
        }
        topics |= queue.topics_of_due_retries(_now(), _ROUND_LIMIT)
        if as_of is not None:
            groups = queue.groups_with_checks_due(as_of)
            self._groups.refresh(groups)
            topics |= {names.check(group) for group in groups if self._groups.is_alive(group)}
        self._topics.look_up(topics)

    # --- the draft --------------------------------------------------------------------------------------------------

    def _draft(
        self,
        batch: Sequence[EndRecord | MalformedRecord],
        as_of: int | None,
    ) -> tuple[Draft, int, list[MalformedRecord]]:
        draft = Draft(self._state.queue, _now(), _MAX_BYTES)
        malformed: list[MalformedRecord] = []
        taken = 0
        for record in batch:
            if draft.bytes >= _MAX_BYTES:
                break
            taken += 1
            if isinstance(record, EndRecord):
                draft.apply_end(record, self._topics.obstacle)
            else:
                draft.skip_end(record.offset + 1)
                malformed.append(record)
        draft.retry_held(self._topics.obstacle, _ROUND_LIMIT)
        # What was found due stands under the condition that all of END up to its end is in this draft or before it.
        if as_of is not None and taken == len(batch):
            draft.send_checks(as_of, self._may_check, min(_ROUND_LIMIT, self._check_tokens()))
            self._tokens -= len(draft.checks)
            draft.discard(as_of, _ROUND_LIMIT)
            if len(draft.checks) + len(draft.discards) >= _ROUND_LIMIT:
                self._next_round = 0.0
        draft.set_aside_malformed()
        draft.park(_ROUND_LIMIT)
        return draft, taken, malformed

    def _may_check(self, group: str) -> bool:
        return self._groups.is_alive(group) and self._topics.problem_of(self._context.names.check(group)) is None

    def _check_tokens(self) -> int:
        now = time.monotonic()
        rate = self._context.check_rate
        self._tokens = min(float(rate), self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        return int(self._tokens)

    # --- writing it -------------------------------------------------------------------------------------------------

    def _write(self, draft: Draft, malformed: Sequence[MalformedRecord]) -> bool:
        """Write and apply the draft; False when it was abandoned and must be drafted anew."""
        state = self._state
        receipt = Receipt()
        bodies = self._bodies(draft)
        if bodies is None:
            draft.abandon()
            return False
        progress = Progress(
            half=draft.watermark,
            end=draft.next_end,
            op=state.queue.replay_op,
            topics=state.progress.topics,
        )
        try:
            state.writer.write(draft, bodies, malformed, progress, self._topics.careful, receipt)
        except RecordsRefusedError as error:
            draft.abandon()
            self._block(error)
            return False
        except AbortedError as error:
            draft.abandon()
            self._topics.forget()
            self._back_off("transaction_aborted", error)
            return False
        except IndefiniteError as error:
            _log.warning("outcome_unknown", partition=state.partition, error=str(error))
            if not self._was_committed(receipt):
                draft.abandon()
                return False
        self._apply(draft, receipt)
        return True

    def _bodies(self, draft: Draft) -> dict[int, HalfMessage] | None:
        """Bodies of all messages that the draft copies; None when a delivery has to be held for want of one."""
        entries = [*draft.deliver, *draft.checks, *draft.discards]
        if not entries:
            return {}
        bodies = self._state.payloads.load(entry.offset for entry in entries)
        gone = [entry for entry in entries if entry.offset not in bodies]
        undeliverable = [entry for entry in draft.deliver if entry.offset not in bodies]
        for entry in undeliverable:
            self._topics.block_record(entry.offset, "its half message is gone from HALF: retention has eaten it")
        if undeliverable:
            return None
        bodies.update((entry.offset, _without_body(entry)) for entry in gone)
        return bodies

    def _apply(self, draft: Draft, receipt: Receipt) -> None:
        state = self._state
        for op_offset, half_offsets in receipt.ops:
            state.queue.note_op(op_offset, half_offsets)
        draft.apply()
        assert receipt.progress is not None
        state.progress, state.progress_offset = receipt.progress, receipt.progress_offset
        for _, half_offsets in draft.ops():
            state.payloads.drop(half_offsets)
        for offset in draft.malformed:
            del state.malformed[offset]
        self._topics.worked({entry.real_topic for entry in draft.deliver})
        self._pause = _FIRST_PAUSE_S
        self._report(draft)
        fault_point("commit.applied")

    def _was_committed(self, receipt: Receipt) -> bool:
        """Take the fence again and ask the topics. Raises FencedError when somebody else was here meanwhile."""
        state = self._state
        state.writer.fence()
        last, offset, _ = read_offset_topic(self._context, state.partition, start=max(state.progress_offset, 0))
        if last is not None and last == receipt.progress:
            receipt.progress_offset = offset
            return True
        nothing_yet = last is None and state.progress_offset < 0
        if nothing_yet or last == state.progress:
            return False
        raise FencedError("another worker has written the progress meanwhile")

    # --- what went wrong --------------------------------------------------------------------------------------------

    def _block(self, error: RecordsRefusedError) -> None:
        """Let everything pass but what Kafka refuses: it will be held."""
        failed = Counter(failure.topic for failure in error.failures)
        for failure in error.failures:
            if failure.half_offset is None:
                # A topic of ours: nothing can pass until it takes records again.
                self._topics.forget()
                self._back_off("internal_topic_refused", error)
            elif failure.timed_out:
                self._topics.block_topic(failure.topic, f"topic {failure.topic}: {failure.reason}")
            elif failed[failure.topic] > 1 and failure.topic not in self._topics.careful:
                # One bad record fails its whole batch: find it by sending this topic's records one by one.
                self._topics.careful.add(failure.topic)
            elif failure.topic in self._topics.careful or failed[failure.topic] == 1:
                self._topics.block_record(failure.half_offset, f"topic {failure.topic}: {failure.reason}")

    def _back_off(self, event: str, error: Exception) -> None:
        _log.warning(event, partition=self._state.partition, error=str(error), retry_seconds=self._pause)
        self._paused_until = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_S)

    def _report(self, draft: Draft) -> None:
        """Quiet when all is well: what is logged is what somebody will want to know."""
        partition = self._state.partition
        for entry in draft.held:
            _log.warning("held", **_fields(partition, entry), error=entry.error)
        for entry in draft.discards:
            _log.warning("discarded", **_fields(partition, entry), reason=entry.reason, checks=entry.checks)
        for entry in draft.resumed:
            _log.info("resumed", **_fields(partition, entry))
        for reason, count in Counter(refusal.reason for refusal in draft.refused).items():
            first = next(refusal for refusal in draft.refused if refusal.reason is reason)
            _log.warning(
                "end_refused",
                partition=partition,
                reason=reason.value,
                count=count,
                first_end_offset=first.end_offset,
                first_half_offset=first.entry.half_offset,
                source=first.source.value,
            )
        if draft.malformed:
            _log.warning("malformed_half_messages", partition=partition, count=len(draft.malformed))


def _fields(partition: int, entry: HalfEntry) -> dict[str, object]:
    return {
        "partition": partition,
        "half_offset": entry.offset,
        "transaction_id": header_names.short_id(entry.transaction_id),
        "group": entry.group,
        "topic": entry.real_topic,
    }


def _first_entries(waiting: deque[EndRecord | MalformedRecord]) -> list[EndRecord | MalformedRecord]:
    """As many whole END records as one Kafka transaction should hold, at least one."""
    batch: list[EndRecord | MalformedRecord] = []
    entries = 0
    for record in waiting:
        entries += len(record.entries) if isinstance(record, EndRecord) else 1
        if batch and entries > _MAX_ENTRIES:
            break
        batch.append(record)
    return batch


def _without_body(entry: HalfEntry) -> HalfMessage:
    """Stands for a half message that retention has eaten, so that its discard can still be told."""
    headers = half_headers(
        (),
        transaction_id=entry.transaction_id,
        group=entry.group,
        real_topic=entry.real_topic,
    )
    return HalfMessage(
        offset=entry.offset,
        transaction_id=entry.transaction_id,
        group=entry.group,
        real_topic=entry.real_topic,
        born=entry.born,
        key=None,
        value=None,
        headers=[*headers, (header_names.ERROR, b"the half message is gone from the log")],
    )


def _now() -> int:
    return time.time_ns() // 1_000_000
