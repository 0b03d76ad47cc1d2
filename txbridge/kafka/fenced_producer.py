"""A fenced producer: Kafka transactions whose outcome is known, or must be looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from confluent_kafka import KafkaException, Producer

from txbridge.failpoints import fault_point
from txbridge.kafka.config import librdkafka_logger
from txbridge.kafka.endtxn_watch import FENCED_CODES, EndTxnWatch, Registrations
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import FATAL, STATE
from txbridge.kafka.failures import AbortedError, FencedError, IndefiniteError, RecordsRefusedError
from txbridge.kafka.fence import guarded, is_fenced, open_fence
from txbridge.kafka.record_failures import Reports

#: Errors of a call after an earlier error of the same transaction. Aborting reveals that error.
_FAILED_BEFORE = frozenset({STATE, FATAL})


class TransactionFailedError(Exception):
    """The Kafka transaction can only be aborted; its reports say why."""


class FencedProducer:
    """Owns the producer of a transactional.id; `topic` is any existing topic. Not thread-safe."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        transactional_id: str,
        topic: str,
        commit_timeout_ms: int,
        outside: Outside = OUTSIDE,
    ) -> None:
        self._kafka = kafka
        self._transactional_id = transactional_id
        self._topic = topic
        self._commit_timeout_ms = commit_timeout_ms
        self._outside = outside
        # The requests around the records of a transaction have the transaction's own time-out.
        self._timeout_s = commit_timeout_ms / 1000
        self._watch = EndTxnWatch(librdkafka_logger(), forward_debug=bool(kafka.get("debug")))
        self._producer: Producer | None = None

    def take_fence(self) -> None:
        """Take the fence, for the first time or again. The previous holder can write no more.

        Raises FencedError, TakeOverRefusedError, UnendedTransactionError, KafkaException.
        """
        self._producer = None
        self._producer = open_fence(
            self._kafka, self._transactional_id, self._topic, self._commit_timeout_ms, self._watch, self._outside
        )

    @property
    def must_fence(self) -> bool:
        """Whether the fence has to be taken again before the next transaction."""
        return self._producer is None

    def take_registrations(self) -> Registrations:
        """Requests to register partitions since the last call, as far as librdkafka has logged them."""
        return self._watch.take_registrations()

    def commit_records(self, fill: Callable[[Producer], None], reports: Reports) -> None:
        """Commit a Kafka transaction of the records that `fill` produces and flushes; their reports go to `reports`.

        `fill` raises TransactionFailedError, or KafkaException, if the transaction can only be aborted.

        Raises:
            RecordsRefusedError: aborted, because Kafka did not take some records.
            AbortedError: aborted for another reason; nothing is visible.
            FencedError: another owner has the fence.
            IndefiniteError: the outcome can only be learnt from the topics.

        """
        producer = self._producer
        assert producer is not None
        try:
            fault_point("commit.before_begin")
            guarded(producer.poll, 0)
            self._watch.forget_trouble()
            producer.begin_transaction()
            fault_point("commit.begun")
            fill(producer)
            fault_point("commit.flushed")
            guarded(producer.commit_transaction, self._timeout_s)
            fault_point("commit.committed")
            guarded(producer.poll, 0)
        except TransactionFailedError as error:
            cause = error.__cause__
            self._abort_transaction(producer, reports, cause if isinstance(cause, KafkaException) else None)
        except KafkaException as error:
            self._abort_transaction(producer, reports, error)
        trouble = self._watch.trouble_of_commit()
        if trouble is not None:
            # A late copy of EndTxn can end the next transaction, unless the next one is of a new epoch.
            raise IndefiniteError(f"connection trouble during a commit: {trouble}")

    def _abort_transaction(self, producer: Producer, reports: Reports, error: KafkaException | None) -> NoReturn:
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
        # The records and markers of this transaction may have landed where the owner's topics had lost records, and
        # hide the loss. So the owner looks at these again, behind a new fence. It needs a new producer after connection
        # trouble, too: a late copy of this abort could divide the next transaction. And after a refused batch
        # librdkafka goes on with sequence numbers that the broker has not seen.
        self._producer = None
        failures = reports.failures
        if failures:
            raise RecordsRefusedError(failures) from error
        raise AbortedError(
            kafka_error.str() if kafka_error is not None else "Kafka or librdkafka did not take all records of it"
        ) from error
