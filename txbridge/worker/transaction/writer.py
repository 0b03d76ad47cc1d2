"""Writer of a partition's Kafka transactions, each from its begin to an outcome that is known or must be looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, NoReturn

from confluent_kafka import KafkaException, Producer

from txbridge import tracing
from txbridge.core.names import Names, short_id
from txbridge.failpoints import fault_point
from txbridge.kafka.endtxn_watch import FENCED_CODES, EndTxnWatch, Registrations
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import FATAL, STATE
from txbridge.kafka.failures import (
    AbortedError,
    FencedError,
    IndefiniteError,
    OutdatedError,
    RecordFailure,
    RecordsRefusedError,
)
from txbridge.kafka.fence import guarded, is_fenced, open_fence
from txbridge.kafka.log import librdkafka_logger
from txbridge.log import get_logger
from txbridge.worker.transaction.records import (
    Contents,
    LogMovedError,
    Receipt,
    TransactionFailedError,
    TransactionRecords,
)

#: Errors of a call after an earlier error of the same transaction. Aborting reveals that error.
_FAILED_BEFORE = frozenset({STATE, FATAL})
#: Interval (s) at which deliveries without spans are logged.
_TELL_EVERY_S = 60.0
_NS_PER_MS = 1_000_000

_log = get_logger("txbridge.worker")


class TransactionalWriter:
    """Owns the transactional producer of one partition."""

    def __init__(
        self, kafka: Mapping[str, Any], names: Names, partition: int, commit_timeout_ms: int, outside: Outside = OUTSIDE
    ) -> None:
        self._kafka = kafka
        self._names = names
        self._partition = partition
        self._commit_timeout_ms = commit_timeout_ms
        self._outside = outside
        # The requests around the records of a transaction have the transaction's own time-out.
        self._timeout_s = commit_timeout_ms / 1000
        #: Name of the owner in checkpoints. No other take-over has this name.
        self.owner = outside.owner_name()
        self._seq = 0
        self._watch = EndTxnWatch(librdkafka_logger(), forward_debug=bool(kafka.get("debug")))
        self._producer: Producer | None = None
        #: Monotonic time (s) at which deliveries without spans were logged last.
        self._told = float("-inf")

    def take_fence(self) -> None:
        """Take the fence, for the first time or again. The previous holder can write no more.

        Raises FencedError, TakeOverRefusedError, KafkaException.
        """
        self._producer = None
        self._producer = open_fence(
            self._kafka,
            self._names.transactional_id(self._partition),
            self._names.half,
            self._commit_timeout_ms,
            self._watch,
            self._outside,
        )

    @property
    def must_fence(self) -> bool:
        """Whether the fence has to be taken again before the next write."""
        return self._producer is None

    def take_registrations(self) -> Registrations:
        """Requests to register partitions since the last call, as far as librdkafka has logged them."""
        return self._watch.take_registrations()

    def write_transaction(self, contents: Contents, receipt: Receipt) -> None:
        """Write one Kafka transaction; `receipt` is complete when this returns or raises IndefiniteError.

        Raises:
            RecordsRefusedError: aborted, because Kafka did not take some records; with `contents.named` they are named.
            AbortedError: aborted for another reason; nothing is visible.
            FencedError: another worker owns the partition.
            IndefiniteError: the outcome can only be learnt from the topics.
            OutdatedError: aborted, because OFFSET holds more than was read of it, or OFFSET or OP has lost records.

        """
        producer = self._producer
        assert producer is not None
        self._seq += 1
        receipt.checkpoint = replace(contents.checkpoint, owner=self.owner, seq=self._seq)
        transaction = TransactionRecords(producer, self._names, self._partition, self._timeout_s, receipt)
        began = self._outside.now()
        try:
            fault_point("commit.before_begin")
            guarded(producer.poll, 0)
            self._watch.forget_trouble()
            producer.begin_transaction()
            fault_point("commit.begun")
            transaction.produce_all(contents)
            fault_point("commit.flushed")
            guarded(producer.commit_transaction, self._timeout_s)
            fault_point("commit.committed")
            guarded(producer.poll, 0)
        except LogMovedError as error:
            try:
                self._abort_transaction(producer, transaction, None)
            except (AbortedError, IndefiniteError):
                # The commit was not requested, so nothing is visible. A second attempt would hide the loss: behind
                # these records the next one lands where it should.
                raise OutdatedError(str(error)) from error
        except TransactionFailedError as error:
            cause = error.__cause__
            self._abort_transaction(producer, transaction, cause if isinstance(cause, KafkaException) else None)
        except KafkaException as error:
            self._abort_transaction(producer, transaction, error)
        trouble = self._watch.trouble_of_commit()
        if trouble is not None:
            # A late copy of EndTxn can end the next transaction, unless the next one is of a new epoch.
            raise IndefiniteError(f"connection trouble during a commit: {trouble}")
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

    def _abort_transaction(
        self, producer: Producer, transaction: TransactionRecords, error: KafkaException | None
    ) -> NoReturn:
        """Abort the transaction, and raise the error that names the outcome."""
        kafka_error = None if error is None else error.args[0]
        if error is not None and kafka_error is not None:
            if kafka_error.code() in FENCED_CODES:
                raise FencedError(kafka_error.str()) from error
            if not kafka_error.txn_requires_abort() and kafka_error.code() not in _FAILED_BEFORE:
                raise IndefiniteError(kafka_error.str()) from error
        try:
            guarded(producer.abort_transaction, self._timeout_s)
            # Reports of records that were still queued come with the abort.
            guarded(producer.poll, 0)
        except KafkaException as abort_error:
            if is_fenced(abort_error):
                raise FencedError(abort_error.args[0].str()) from abort_error
            raise IndefiniteError(abort_error.args[0].str()) from abort_error
        # The records and markers of this transaction may have landed where OFFSET or OP had lost records, and hide the
        # loss. So the owner looks at both again, behind a new fence. It needs a new producer after connection trouble,
        # too: a late copy of this abort could divide the next transaction. And after a refused batch librdkafka goes on
        # with sequence numbers that the broker has not seen.
        self._producer = None
        failures: list[RecordFailure] = transaction.reports.failures
        if failures:
            raise RecordsRefusedError(failures) from error
        raise AbortedError(
            kafka_error.str() if kafka_error is not None else "Kafka or librdkafka did not take all records of it"
        ) from error


def record_spans(contents: Contents, partition: int, started_ms: int, ended_ms: int) -> None:
    """Record a span for each delivered message that has a trace context. Times are in ms since 1970."""
    tracer = tracing.tracer()
    if tracer is None:
        return
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - an extra

    for half in chain.from_iterable(part.halves(contents.bodies) for part in contents.draft.parts):
        context = tracing.context_of(half.headers)
        if context is None:
            continue
        span = tracer.start_span(
            f"deliver {half.real_topic}",
            context,
            kind=SpanKind.PRODUCER,
            start_time=started_ms * _NS_PER_MS,
            attributes={
                **tracing.SYSTEM,
                "messaging.operation.name": "deliver",
                "messaging.operation.type": "send",
                "messaging.destination.name": half.real_topic,
                "txbridge.group": half.group,
                "txbridge.transaction": short_id(half.transaction_id),
                "txbridge.half": f"{partition}:{half.offset}",
            },
        )
        span.end(ended_ms * _NS_PER_MS)
