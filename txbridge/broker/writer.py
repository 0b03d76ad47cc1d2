"""Writing a draft: one Kafka transaction, step by step."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from txbridge.broker.errors import AbortedError, FencedError, IndefiniteError, RecordFailure, RecordsRefusedError
from txbridge.broker.faults import fault_point
from txbridge.broker.fence import FENCED_CODES, is_fenced, open_fence
from txbridge.core import names as header_names
from txbridge.core.draft import Draft
from txbridge.core.half_message import HalfMessage, copy_headers, delivered_headers, delivered_timestamp
from txbridge.core.half_queue import HalfEntry
from txbridge.core.names import Headers, Names
from txbridge.core.progress import Progress, encode_ops, offset_headers, op_headers

#: What follows from another error of the same transaction and tells nothing of its own.
_CONSEQUENCES = frozenset(
    {
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - librdkafka's public name for it
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
        KafkaError._STATE,  # noqa: SLF001
    },
)
#: Bytes of an error text or a stranger's name that are copied into a header.
_MAX_ERROR = 1_000


@dataclass(frozen=True, slots=True)
class MalformedRecord:
    """A record that breaks the protocol, as it came, and the rule that it breaks."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: str

    def discard_headers(self) -> list[tuple[str, bytes | None]]:
        """Its headers as they were, then ours: the last of a name is ours."""
        source = f"{self.topic}:{self.partition}:{self.offset}"
        return [
            *self.headers,
            (header_names.VERSION, header_names.PROTOCOL_VERSION),
            (header_names.REASON, b"MALFORMED"),
            (header_names.ERROR, self.error[:_MAX_ERROR].encode(errors="replace")),
            (header_names.RECORD_SOURCE, source.encode()),
        ]


@dataclass(slots=True)
class Receipt:
    """Where the records of a committed transaction landed."""

    #: OP offset and the half offsets named there.
    ops: list[tuple[int, list[int]]] = field(default_factory=list)
    progress: Progress | None = None
    progress_offset: int = -1


class TransactionalWriter:
    """Owns the transactional producer of one partition."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        names: Names,
        partition: int,
        commit_timeout_ms: int,
    ) -> None:
        self._kafka = kafka
        self._names = names
        self._partition = partition
        self._commit_timeout_ms = commit_timeout_ms
        # Requests around the records of a transaction: within the transaction's own time-out or not at all.
        self._timeout_s = commit_timeout_ms / 1000
        #: Who we are in progress records: no other take-over has this name.
        self.owner = secrets.token_hex(8)
        self._seq = 0
        self._trouble: list[KafkaError] = []
        self._failures: list[RecordFailure] = []
        self._producer: Producer | None = None

    def fence(self) -> None:
        """Take the fence (again): whoever held it is out. Raises FencedError, KafkaException."""
        self._producer = None
        self._producer = open_fence(
            self._kafka,
            self._names.transactional_id(self._partition),
            self._commit_timeout_ms,
            self._trouble.append,
        )
        self._trouble.clear()

    def write(
        self,
        draft: Draft,
        bodies: Mapping[int, HalfMessage],
        malformed: Sequence[MalformedRecord],
        progress: Progress,
        careful: frozenset[str] | set[str],
        receipt: Receipt,
    ) -> None:
        """Write a draft in one Kafka transaction; `receipt` is complete when this returns or raises IndefiniteError.

        Raises:
            RecordsRefusedError: aborted, because Kafka did not take some records; they are named.
            AbortedError: aborted for another reason; nothing is visible.
            FencedError: another worker owns the partition.
            IndefiniteError: the outcome can only be learnt from the topics.

        """
        producer = self._producer
        if producer is None:
            raise IndefiniteError("the last attempt to take the fence again failed")
        self._failures.clear()
        self._seq += 1
        receipt.progress = Progress(
            half=progress.half,
            end=progress.end,
            op=progress.op,
            topics=progress.topics,
            owner=self.owner,
            seq=self._seq,
        )
        try:
            fault_point("commit.before_begin")
            producer.poll(0)
            self._trouble.clear()
            producer.begin_transaction()
            fault_point("commit.begun")
            self._produce_all(producer, draft, bodies, malformed, careful, receipt)
            remaining = producer.flush(self._timeout_s)
        except (KafkaException, BufferError) as error:
            self._abort(producer, error)
        fault_point("commit.flushed")
        if self._failures or remaining:
            self._abort(producer, None)
        self._commit(producer)
        fault_point("commit.committed")

    # --- the records, in the order of the protocol ------------------------------------------------------------------

    def _produce_all(
        self,
        producer: Producer,
        draft: Draft,
        bodies: Mapping[int, HalfMessage],
        malformed: Sequence[MalformedRecord],
        careful: frozenset[str] | set[str],
        receipt: Receipt,
    ) -> None:
        names, partition = self._names, self._partition
        for entry in draft.deliver:
            self._deliver(producer, bodies[entry.offset], entry.real_topic in careful)
        fault_point("commit.real_records")
        for entry in draft.checks:
            half = bodies[entry.offset]
            headers = copy_headers(half, partition, entry.checks, draft.next_end)
            self._produce(producer, names.check(entry.group), half.value, half.key, headers)
        self._discard(producer, draft, bodies, malformed)
        fault_point("commit.discards")
        for outcome, offsets in draft.ops():
            headers = op_headers(outcome)
            for value in encode_ops(offsets):
                named = [int(offset) for offset in value.split(b",")]
                self._produce(
                    producer,
                    names.op,
                    value,
                    None,
                    headers,
                    partition=partition,
                    note=partial(_note_op, receipt, named),
                )
        fault_point("commit.ops")
        headers = offset_headers()
        for entry in draft.changed:
            value = entry.to_parked(draft.next_end).encode()
            key = names.parked_key(partition, entry.offset)
            self._produce(producer, names.offset, value, key, headers, partition=partition)
        for offset in draft.tombstones:
            self._produce(
                producer, names.offset, None, names.parked_key(partition, offset), headers, partition=partition
            )
        fault_point("commit.parked")
        assert receipt.progress is not None
        self._produce(
            producer,
            names.offset,
            receipt.progress.encode(),
            names.progress_key(partition),
            headers,
            partition=partition,
            note=partial(_note_progress, receipt),
        )
        fault_point("commit.progress")

    def _deliver(self, producer: Producer, half: HalfMessage, alone: bool) -> None:
        self._produce(
            producer,
            half.real_topic,
            half.value,
            half.key,
            delivered_headers(half, self._partition),
            partition=half.real_partition,
            timestamp=delivered_timestamp(half),
            half_offset=half.offset,
        )
        if alone:
            producer.flush(self._timeout_s)

    def _discard(
        self,
        producer: Producer,
        draft: Draft,
        bodies: Mapping[int, HalfMessage],
        malformed: Sequence[MalformedRecord],
    ) -> None:
        topic = self._names.discard
        for record in malformed:
            self._produce(producer, topic, record.value, record.key, record.discard_headers())
        for entry in draft.discards:
            half = bodies[entry.offset]
            headers = [
                *copy_headers(half, self._partition, entry.checks, draft.next_end),
                (header_names.REASON, (entry.reason or "").encode()),
            ]
            self._produce(producer, topic, half.value, half.key, headers, note=partial(_note_discard, entry))
        if draft.discards:
            # Their coordinates go into the parked entries of this same transaction.
            producer.flush(self._timeout_s)

    def _produce(
        self,
        producer: Producer,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        *,
        partition: int | None = None,
        timestamp: int = 0,
        half_offset: int | None = None,
        note: Any = None,
    ) -> None:
        on_delivery = partial(self._delivered, half_offset, note)
        arguments: dict[str, Any] = {} if partition is None else {"partition": partition}
        while True:
            try:
                producer.produce(
                    topic,
                    value=value,
                    key=key,
                    headers=list(headers),
                    timestamp=timestamp,
                    on_delivery=on_delivery,
                    **arguments,
                )
            except BufferError:
                # librdkafka's queue is full: let it send. A broker that is away ends this by message.timeout.ms.
                producer.poll(0.1)
            except KafkaException as error:
                self._failures.append(RecordFailure(half_offset, topic, error.args[0].str()))
                return
            else:
                return

    def _delivered(self, half_offset: int | None, note: Any, error: KafkaError | None, message: Message) -> None:
        if error is None:
            if note is not None:
                note(message)
        elif error.code() not in _CONSEQUENCES:
            timed_out = error.code() == KafkaError._MSG_TIMED_OUT  # noqa: SLF001
            self._failures.append(RecordFailure(half_offset, message.topic() or "", error.str(), timed_out=timed_out))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _commit(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(self._timeout_s)
        except KafkaException as error:
            self._abort(producer, error)
        producer.poll(0)
        if self._trouble:
            # librdkafka re-sends EndTxn by itself after a broken connection, and with transaction protocol V1 such a
            # late copy can end the next transaction (KAFKA-17754): a commit that saw trouble is not believed.
            raise IndefiniteError(f"connection trouble during a commit: {self._trouble[0].str()}")

    def _abort(self, producer: Producer, error: KafkaException | BufferError | None) -> None:
        """Abort and raise what follows from it."""
        kafka_error = error.args[0] if isinstance(error, KafkaException) else None
        if kafka_error is not None and kafka_error.code() in FENCED_CODES:
            raise FencedError(kafka_error.str()) from error
        if kafka_error is not None and not kafka_error.txn_requires_abort():
            raise IndefiniteError(kafka_error.str()) from error
        try:
            producer.abort_transaction(self._timeout_s)
        except KafkaException as abort_error:
            if is_fenced(abort_error):
                raise FencedError(abort_error.args[0].str()) from abort_error
            raise IndefiniteError(abort_error.args[0].str()) from abort_error
        if self._failures:
            raise RecordsRefusedError(list(self._failures)) from error
        raise AbortedError(
            str(kafka_error.str() if kafka_error is not None else "records were not acknowledged in time")
        )


def _note_op(receipt: Receipt, half_offsets: list[int], message: Message) -> None:
    offset = message.offset()
    assert offset is not None
    receipt.ops.append((offset, half_offsets))


def _note_progress(receipt: Receipt, message: Message) -> None:
    offset = message.offset()
    assert offset is not None
    receipt.progress_offset = offset


def _note_discard(entry: HalfEntry, message: Message) -> None:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    entry.discarded_at = (partition, offset)
