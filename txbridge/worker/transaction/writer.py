"""Writer of a partition's Kafka transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from confluent_kafka import Producer

from txbridge import tracing
from txbridge.core.names import Names, short_id
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.failures import AbortedError, IndefiniteError, OutdatedError
from txbridge.kafka.fenced_producer import FencedProducer, TransactionFailedError
from txbridge.kafka.produced_records import ProducedRecords
from txbridge.kafka.record_failures import Reports
from txbridge.log import get_logger
from txbridge.worker.transaction.records import Contents, LogMovedError, Receipt, TransactionRecords

#: Interval (s) at which deliveries without spans are logged.
_TELL_EVERY_S = 60.0

_log = get_logger("txbridge.worker")


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
        transaction, topic = short_id(half.transaction_id), half.real_topic
        span = tracing.start_span(
            tracer, "deliver", topic, context, group=half.group, transaction=transaction, started_ms=started_ms
        )
        tracing.place_span(span, partition, half.offset)
        span.end(ended_ms * tracing.NS_PER_MS)
