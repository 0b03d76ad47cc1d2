"""Writer of a partition's Kafka transactions: contents, the records that they become, their offsets and log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, Producer

from txbridge import tracing
from txbridge.core.checkpoint import Checkpoint, encode_ops, offset_headers, op_headers
from txbridge.core.decision_record import Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, Reply, check_headers, reply_headers
from txbridge.core.names import Headers, Names, short_id
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import MalformedRecord, abandoned_headers, given_up_headers
from txbridge.failpoints import fault_point
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import AbortedError, IndefiniteError, OutdatedError, RecordKind, RecordName
from txbridge.kafka.fenced_producer import FencedProducer, TransactionFailedError
from txbridge.kafka.headers import offset_of
from txbridge.kafka.produced_records import OnStored, ProducedRecords, size_of_record
from txbridge.kafka.record_failures import Reports
from txbridge.log import get_logger

#: Interval (s) at which deliveries without spans are logged.
_TELL_EVERY_S = 60.0

_log = get_logger("txbridge.worker")


class LogMovedError(Exception):
    """OFFSET or OP does not end where it should. The Kafka transaction must be aborted."""


@dataclass(slots=True)
class Receipt:
    """Offsets of the records of a committed transaction."""

    #: Offset of each OP record, and the half offsets that it names.
    ops: list[tuple[int, list[int]]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    checkpoint_offset: int = -1
    #: OFFSET offset of the owner's next record, if it was learnt by reading.
    offset_topic_end: int | None = None
    #: Called with the append time (ms) of the checkpoint as soon as it is known, even if the transaction is aborted
    #: later.
    appended: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that one Kafka transaction writes."""

    draft: Draft
    #: Bodies by half offset: of all messages that the draft copies, except those of its runs.
    bodies: Mapping[int, HalfMessage]
    malformed: Sequence[MalformedRecord]
    #: Replies of the draft whose topics take them, by topic.
    replies: Sequence[tuple[str, Reply]]
    checkpoint: Checkpoint
    #: By topic, the bytes of records that may go together. Topics that never refused a batch are not in here.
    limits: Mapping[str, int]
    #: Bytes of the largest record that the discard topic takes with its key and value.
    largest_discard: int
    #: Whether each delivered record gets a report of its own, instead of one for all of a topic.
    named: bool = False
    #: OFFSET offset at which the first record must land, because OFFSET was read up to there.
    offset_topic_end: int | None = None
    #: OFFSET and OP offsets below which no record may land: committed records, of this owner or an earlier one, are
    #: there.
    offset_topic_least: int = 0
    op_least: int = 0

    def records_for(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None, int, int]]:
        """Half offset, key, timestamp and size of the records that it delivers to this real topic."""
        # Of several messages without their sizes: one that is too large holds the others, and only Kafka knows.
        several = {entry.offset for entry in self.draft.deliver if entry.messages > 1}
        for part in self.draft.parts:
            for copy in part.copies(partition, self.bodies) if topic in part.topics else ():
                offset, to, _, key, _, timestamp, _ = copy
                if to == topic:
                    yield offset, key, timestamp, 0 if offset in several else size_of_record(copy)


class TransactionRecords:
    """Produces the contents of one Kafka transaction, in the order of the protocol."""

    def __init__(self, records: ProducedRecords, names: Names, partition: int, receipt: Receipt) -> None:
        self._records = records
        self._names = names
        self._partition = partition
        self._receipt = receipt
        # For OP and OFFSET: the lowest offset at which a record has landed.
        self._landed: dict[str, int] = {}

    def produce_all(self, contents: Contents) -> None:
        """Produce and flush everything.

        Raises TransactionFailedError as soon as the transaction can only be aborted, LogMovedError, KafkaException.
        """
        draft, bodies, names, partition = contents.draft, contents.bodies, self._names, self._partition
        for part in draft.parts:
            for copy in part.copies(partition, bodies):
                self._records.deliver(*copy)
        fault_point("commit.real_records")
        for entry in draft.checks:
            half, topic = bodies[entry.offset], names.check(entry.group)
            headers = check_headers(half, partition, entry.checks, draft.next_end)
            self._records.produce_record(RecordKind.CHECK, (entry.offset, topic, half.value, half.key, -1, 0, headers))
        for topic, reply in contents.replies:
            # With a key, in case the topic is compacted by mistake.
            headers = reply_headers(reply, partition)
            self._records.produce_record(RecordKind.REPLY, (None, topic, None, reply.name.encode(), -1, 0, headers))
        self._produce_discards(contents)
        fault_point("commit.discards")
        before_checkpoint = self._write_op_and_offset(draft)
        self._records.flush()
        landed = self._receipt.checkpoint_offset - before_checkpoint
        if contents.offset_topic_end is not None and landed != contents.offset_topic_end:
            # A reader trusts any broker that takes itself for the leader. But a record with acks=all is stored by the
            # true leader, at the true end.
            raise LogMovedError(
                f"{names.offset}[{partition}] was read up to {contents.offset_topic_end}, the next record landed at "
                f"{landed}"
            )
        if (lost := self._lost_tail(contents)) is not None:
            raise LogMovedError(lost)

    def _lost_tail(self, contents: Contents) -> str | None:
        """Describe the loss if a record has landed at an offset that a committed record had; None if none has.

        The committed records are lost, even if this transaction is aborted. The next owner would not know of them.
        """
        for topic, least in ((self._names.offset, contents.offset_topic_least), (self._names.op, contents.op_least)):
            if (first := self._landed.get(topic, least)) < least:
                where = first if first >= 0 else "an offset that Kafka did not tell"
                return (
                    f"{topic}[{self._partition}] had records up to offset {least - 1}, the next one landed at {where}: "
                    f"its last records are lost"
                )
        return None

    def _produce_discards(self, contents: Contents) -> None:
        draft, partition = contents.draft, self._partition
        for record in contents.malformed:
            which = (record.topic, record.offset)
            theirs = () if record.size > contents.largest_discard else record.headers
            self._set_aside(contents, which, record, [*theirs, *record.discard_headers()])
        for entry in draft.discards:
            half = contents.bodies[entry.offset]
            headers = given_up_headers(half, entry, partition, draft.next_end)
            self._set_aside(contents, entry.offset, half, headers, partial(_note_discard, draft, entry.offset))
        for abandoned in draft.abandoned:
            half = contents.bodies[abandoned.entry.offset]
            self._set_aside(contents, half.offset, half, abandoned_headers(half, abandoned, partition, draft.next_end))
        if draft.discards:
            # The parked entries of this same transaction contain their coordinates.
            self._records.flush()

    def _set_aside(
        self,
        contents: Contents,
        which: RecordName,
        record: HalfMessage | MalformedRecord,
        headers: Headers,
        on_stored: OnStored | None = None,
    ) -> None:
        """Copy one record to the discard topic, without key and value if the topic does not take it with them.

        Those stay in the original record.
        """
        topic, is_bare = self._names.discard, record.size > contents.largest_discard
        value, key = (None, None) if is_bare else (record.value, record.key)
        self._records.produce_record(RecordKind.DISCARD, (which, topic, value, key, -1, 0, headers), on_stored)

    def _write_op_and_offset(self, draft: Draft) -> int:
        """Write OP and OFFSET, the checkpoint last. Return the number of records before the checkpoint in OFFSET."""
        names, partition, receipt = self._names, self._partition, self._receipt
        for outcome, offsets in draft.ops():
            headers = op_headers(outcome, draft.ends_of(outcome, offsets))
            for value in encode_ops(offsets):
                half_offsets = [int(offset) for offset in value.split(b",")]
                self._produce_internal(names.op, value, None, headers, partial(_note_op, receipt, half_offsets))
        fault_point("commit.ops")
        headers = offset_headers()
        changed, tombstones = draft.changed, draft.tombstones
        for entry in changed:
            key = names.parked_key(partition, entry.offset)
            self._produce_internal(names.offset, entry.encode(draft.next_end), key, headers)
        for offset in tombstones:
            self._produce_internal(names.offset, None, names.parked_key(partition, offset), headers)
        fault_point("commit.parked")
        assert receipt.checkpoint is not None
        key = names.checkpoint_key(partition)
        self._produce_internal(
            names.offset, receipt.checkpoint.encode(), key, headers, partial(_note_checkpoint, receipt)
        )
        fault_point("commit.checkpoint")
        return len(changed) + len(tombstones)

    def _produce_internal(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers, on_stored: OnStored | None = None
    ) -> None:
        landed = partial(self._note_landed, topic, on_stored)
        self._records.produce_record(
            RecordKind.INTERNAL, (None, topic, value, key, self._partition, 0, headers), landed
        )

    def _note_landed(self, topic: str, on_stored: OnStored | None, message: Message) -> None:
        offset = offset_of(message)
        # Negative when Kafka did not tell the producer. Then it may be that of a lost record.
        self._landed[topic] = min(offset, self._landed.get(topic, offset))
        if on_stored is not None:
            on_stored(message)


def _note_op(receipt: Receipt, half_offsets: list[int], message: Message) -> None:
    receipt.ops.append((offset_of(message), half_offsets))


def _note_checkpoint(receipt: Receipt, message: Message) -> None:
    receipt.checkpoint_offset = offset_of(message)
    kind, milliseconds = message.timestamp()
    if kind == TIMESTAMP_LOG_APPEND_TIME:
        receipt.appended(milliseconds)


def _note_discard(draft: Draft, half_offset: int, message: Message) -> None:
    partition = message.partition()
    assert partition is not None
    draft.note_discarded(half_offset, partition, offset_of(message))


class TransactionalWriter(FencedProducer):
    """Owns the transactional producer of one partition."""

    def __init__(
        self, kafka: Mapping[str, Any], names: Names, partition: int, commit_timeout_ms: int, outside: Outside = OUTSIDE
    ) -> None:
        super().__init__(kafka, names.transactional_id(partition), names.half, commit_timeout_ms, outside)
        self._names = names
        self._partition = partition
        #: Name of the owner in checkpoints. No other take-over has this name.
        self.owner = outside.owner_name()
        self._seq = 0
        #: Monotonic time (s) at which deliveries without spans were logged last.
        self._told = float("-inf")

    def write_transaction(self, contents: Contents, receipt: Receipt) -> None:
        """Write one Kafka transaction; `receipt` is complete when this returns or raises IndefiniteError.

        With `contents.named`, RecordsRefusedError names the records.

        Raises as `commit_records`, and OutdatedError: aborted, because OFFSET holds more than was read of it, or OFFSET
        or OP has lost records.
        """
        self._seq += 1
        receipt.checkpoint = replace(contents.checkpoint, owner=self.owner, seq=self._seq)
        reports, moved, began = Reports(), "", self._outside.now()

        def fill(producer: Producer) -> None:
            nonlocal moved
            records = ProducedRecords(producer, self._timeout_s, reports, contents.limits, named=contents.named)
            try:
                TransactionRecords(records, self._names, self._partition, receipt).produce_all(contents)
            except LogMovedError as error:
                moved = str(error)
                raise TransactionFailedError from error

        try:
            self.commit_records(fill, reports)
        except (AbortedError, IndefiniteError) as error:
            if moved:
                # The commit was not requested, so nothing is visible. A second attempt would hide the loss: behind
                # these records the next one lands where it should.
                raise OutdatedError(moved) from error
            raise
        self._trace_deliveries(contents, began)

    def _trace_deliveries(self, contents: Contents, began: int) -> None:
        """Record the spans of a committed transaction. Without them it is committed all the same."""
        try:
            record_spans(contents, self._partition, began, self._outside.now())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an SDK and its exporter may raise anything
            now = self._outside.monotonic()
            if now - self._told >= _TELL_EVERY_S:
                self._told = now
                _log.warning("deliveries_not_traced", partition=self._partition, error=repr(error))


def record_spans(contents: Contents, partition: int, started_ms: int, ended_ms: int) -> None:
    """Record a span for each delivered message that has a trace context. Times are in ms since 1970."""
    tracer = tracing.tracer()
    if tracer is None:
        return
    for half in chain.from_iterable(part.halves(contents.bodies) for part in contents.draft.parts):
        context = tracing.context_of(half.headers)
        if context is None:
            continue
        span = tracing.start_span(
            *(tracer, "deliver", half.real_topic, context),
            group=half.group,
            transaction=short_id(half.transaction_id),
            started_ms=started_ms,
            half=f"{partition}:{half.offset}",
        )
        span.end(ended_ms * tracing.NS_PER_MS)


#: Most lines of one event for one Kafka transaction. All further cases share one more line.
_MOST_LINES = 10
_OTHERS = object()

_Item = TypeVar("_Item")


def log_effects(contents: Contents, partition: int) -> None:
    """Log the effects that an operator needs to know. Nothing is logged when all is well."""
    draft = contents.draft
    for entry, count in _first_of_each(draft.held, lambda entry: (entry.real_topic, entry.error)):
        _log.warning("held", **log_fields(partition, entry), count=count, error=entry.error)
    for entry, count in _first_of_each(draft.discards, lambda entry: (entry.group, entry.reason)):
        _log.warning("discarded", **log_fields(partition, entry), count=count, reason=entry.reason)
    for entry, count in _first_of_each(draft.resumed, lambda entry: entry.group):
        _log.info("resumed", **log_fields(partition, entry), count=count)
    cancelled = (one for one in draft.abandoned if one.source is Source.CANCEL)
    for one, count in _first_of_each(cancelled, lambda one: one.entry.group):
        _log.info("cancelled", **log_fields(partition, one.entry), count=count, reason=one.reason)
    for one in draft.abandoned:
        # One line for each: the operator and the reason are its own.
        if one.source is Source.ABANDON:
            told = {"operator": one.operator, "reason": one.reason, "error": one.entry.error}
            _log.warning("abandoned", **log_fields(partition, one.entry), **told)
    for refusal, count in _first_of_each(draft.refused, lambda refusal: refusal.reason):
        _log.warning(
            "end_refused",
            partition=partition,
            reason=refusal.reason.value,
            count=count,
            end_offset=refusal.end_offset,
            half_offset=refusal.entry.half_offset,
            source=refusal.source.value,
        )
    for record, count in _first_of_each(contents.malformed, lambda record: (record.topic, record.copy_of is None)):
        _log.warning(
            "malformed_records",
            topic=record.topic,
            partition=partition,
            offset=record.offset,
            count=count,
            error=record.error,
        )


def _first_of_each(items: Iterable[_Item], kind: Callable[[_Item], object]) -> Iterator[tuple[_Item, int]]:
    """Yield the first item of each kind, and the number of its items.

    After _MOST_LINES kinds all others count as one kind: clients can invent thousands of groups and topics.
    """
    kinds: dict[object, list[_Item]] = {}
    for item in items:
        name = kind(item)
        kinds.setdefault(name if name in kinds or len(kinds) < _MOST_LINES else _OTHERS, []).append(item)
    for found in kinds.values():
        yield found[0], len(found)


def log_fields(partition: int, entry: HalfEntry) -> dict[str, object]:
    return {
        "partition": partition,
        "half_offset": entry.offset,
        "transaction_id": short_id(entry.transaction_id),
        "group": entry.group,
        "topic": entry.real_topic,
    }
