"""Spans of a client, `prepare` and `decide`.

The parent of `prepare` is the trace context in the message, or else that of the caller. The parent of `decide` is
`prepare`, or in a check the context in the message.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from txbridge import tracing
from txbridge.client.base.contained import contained
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.errors import PrepareError
from txbridge.client.message import Message, MessageExt
from txbridge.client.prepare.half_writer import Report
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.several_messages import with_headers
from txbridge.core.decision_record import Source
from txbridge.core.names import short_id
from txbridge.masking import masked

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer


#: A failure of the application's SDK costs spans alone.
_costs_spans = partial(contained, event="spans_not_recorded", level=logging.WARNING)


class ClientTracing:
    """Traces the transactions of one producer; thread-safe."""

    def __init__(self, group: str) -> None:
        self._group = group
        #: Context of `prepare` and real topic of each running transaction.
        self._prepared: dict[str, tuple[Context, str]] = {}

    def watch_prepare(self, transaction_id: str, message: Message, on_done: Report) -> tuple[Message, Report]:
        """Start the span `prepare`. Returns the message for Kafka, and a report that ends the span and calls `on_done`.

        A message without a trace context gets that of the span, so that the worker and consumers can continue the
        trace. A message with one is not changed.
        """
        tracer = tracing.tracer()
        watched = None if tracer is None else self._start_prepare(tracer, transaction_id, message, on_done)
        return watched or (message, on_done)

    @_costs_spans
    def _start_prepare(
        self, tracer: Tracer, transaction_id: str, message: Message, on_done: Report
    ) -> tuple[Message, Report]:
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        parent = tracing.context_of(message.messages[0].headers)
        transaction = short_id(transaction_id)
        span = tracing.start_span(tracer, "prepare", message.topic, parent, group=self._group, transaction=transaction)
        context = trace.set_span_in_context(span, parent)
        carried = message
        if span.get_span_context().is_valid:
            carried = with_headers(message, tracing.headers_of_context(context), unless=tracing.TRACEPARENT)
        self._prepared[transaction_id] = (context, message.topic)

        def end_span(result: Prepared | PrepareError) -> None:
            _end_prepare(span, result)
            on_done(result)

        return carried, end_span

    def watch_end(self, partition: int, source: Source, end: Ticket, checked: MessageExt | None) -> None:
        """Start the span `decide` of a decision whose END is on the way; that of a check names the checked message."""
        tracer = tracing.tracer()
        if tracer is None:
            return
        if checked is not None:
            self._start_decide(tracer, tracing.context_of(checked.headers), checked.topic, partition, source, end)
        elif (known := self._prepared.get(end.entry.transaction_id)) is not None:
            self._start_decide(tracer, *known, partition, source, end)

    def forget_attempt(self, transaction_id: str) -> None:
        """Forget a transaction that is decided or given up."""
        self._prepared.pop(transaction_id, None)

    @_costs_spans
    def _start_decide(
        self, tracer: Tracer, context: Context | None, topic: str, partition: int, source: Source, end: Ticket
    ) -> None:
        entry = end.entry
        span = tracing.start_span(
            *(tracer, "decide", topic, context),
            group=self._group,
            transaction=short_id(entry.transaction_id),
            decision=entry.decision.name.lower(),
            source=source.value,
            half=f"{partition}:{entry.half_offset}",
            check_times=entry.check_times,
        )

        @_costs_spans
        def over(future: Future[None]) -> None:
            if (error := future.exception()) is not None:
                _failed(span, error)
            span.end()

        end.as_future().add_done_callback(over)


@_costs_spans
def _end_prepare(span: Span, result: Prepared | PrepareError) -> None:
    if isinstance(result, Prepared):
        span.set_attribute("txbridge.half", f"{result.partition}:{result.offset}")
    else:
        _failed(span, result)
    span.end()


def _failed(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    span.set_attribute("error.type", type(error).__name__)
    span.set_status(StatusCode.ERROR, masked(str(error)))
