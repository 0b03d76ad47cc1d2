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
from txbridge.client.checks.calls import CheckRequest
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.errors import PrepareError
from txbridge.client.listener import ListenerOutcome
from txbridge.client.message import Message
from txbridge.client.prepare.half_writer import Report
from txbridge.client.prepare.prepared import Prepared
from txbridge.client.several_messages import Several, with_headers
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
        span = tracer.start_span(
            f"prepare {message.topic}",
            parent,
            kind=trace.SpanKind.PRODUCER,
            attributes=self._attributes_of("prepare", message.topic, transaction_id),
        )
        context = trace.set_span_in_context(span, parent)
        carried = message
        if span.get_span_context().is_valid:
            headers = tracing.headers_of_context(context)
            if isinstance(message, Several):
                carried = message.with_headers(headers, unless=tracing.TRACEPARENT)
            elif not any(name == tracing.TRACEPARENT for name, _ in message.headers):
                carried = with_headers(message, headers)
        self._prepared[transaction_id] = (context, message.topic)

        def end_span(result: Prepared | PrepareError) -> None:
            _end_prepare(span, result)
            on_done(result)

        return carried, end_span

    def watch_decision(self, prepared: Prepared, outcome: ListenerOutcome, end: Ticket) -> None:
        """Start the span `decide` of a local transaction that is over, with its END on the way."""
        known, tracer = self._prepared.get(prepared.transaction_id), tracing.tracer()
        if known is not None and tracer is not None:
            context, topic = known
            where = (prepared.partition, prepared.offset)
            self._start_decide(tracer, context, topic, prepared.transaction_id, where, outcome, end, Source.CLIENT)

    def watch_answer(self, request: CheckRequest, outcome: ListenerOutcome, end: Ticket) -> None:
        """Start the span `decide` of an answered check, with its END on the way."""
        message, tracer = request.message, tracing.tracer()
        if tracer is None:
            return
        where = (message.half_partition, message.half_offset)
        context = tracing.context_of(message.headers)
        self._start_decide(
            tracer,
            context,
            message.topic,
            message.transaction_id,
            where,
            outcome,
            end,
            Source.CHECK,
            message.check_times,
        )

    def forget_attempt(self, transaction_id: str) -> None:
        """Forget a transaction that is decided or given up."""
        self._prepared.pop(transaction_id, None)

    @_costs_spans
    def _start_decide(
        self,
        tracer: Tracer,
        context: Context | None,
        topic: str,
        transaction_id: str,
        where: tuple[int, int],
        outcome: ListenerOutcome,
        end: Ticket,
        source: Source,
        check_times: int | None = None,
    ) -> None:
        from opentelemetry import trace  # noqa: PLC0415

        span = tracer.start_span(
            f"decide {topic}",
            context,
            kind=trace.SpanKind.PRODUCER,
            attributes={
                **self._attributes_of("decide", topic, transaction_id),
                "txbridge.decision": outcome.decision.name.lower(),
                "txbridge.source": source.value,
            },
        )
        _place(span, *where)
        if check_times is not None:
            span.set_attribute("txbridge.check_times", check_times)

        @_costs_spans
        def over(future: Future[None]) -> None:
            if (error := future.exception()) is not None:
                _failed(span, error)
            span.end()

        end.as_future().add_done_callback(over)

    def _attributes_of(self, operation: str, topic: str, transaction_id: str) -> dict[str, str]:
        return {
            **tracing.SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "txbridge.group": self._group,
            # Shortened, because anyone who knows the whole id may decide.
            "txbridge.transaction": short_id(transaction_id),
        }


@_costs_spans
def _end_prepare(span: Span, result: Prepared | PrepareError) -> None:
    if isinstance(result, Prepared):
        _place(span, result.partition, result.offset)
    else:
        _failed(span, result)
    span.end()


def _place(span: Span, partition: int, offset: int) -> None:
    span.set_attribute("txbridge.half", f"{partition}:{offset}")


def _failed(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    span.set_attribute("error.type", type(error).__name__)
    span.set_status(StatusCode.ERROR, masked(str(error)))
