"""Spans of the worker: `deliver`, for each message with a trace context that a Kafka transaction has made visible."""

from __future__ import annotations

from itertools import chain

from txbridge import tracing
from txbridge.core.names import short_id
from txbridge.worker.transaction.records import Contents

_NS_PER_MS = 1_000_000


def delivered(contents: Contents, partition: int, started_ms: int, ended_ms: int) -> None:
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
