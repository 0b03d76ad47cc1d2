"""OpenTelemetry, if the process uses it (extra `otel`): the tracer, and the W3C trace context in headers of records.

Only OpenTelemetry's API is needed. Without an SDK in the process, nothing is recorded and nothing is done here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue

#: The header of W3C's Trace Context, which instrumentation of Kafka clients in every language uses, and its companion.
TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"

#: Seconds for which the answer "no SDK" is kept. A look for an SDK reads the environment. Here it takes 0.4 µs, in the
#: library a quarter of the time of a transaction. An application sets its SDK up at its start.
_NO_SDK_S = 0.05

NS_PER_MS = 1_000_000

_no_sdk_until = 0.0
_is_broken = False


def tracer() -> Tracer | None:
    """Return a tracer, or None without the library or without an SDK. A new SDK is noticed within 50 ms."""
    global _no_sdk_until  # noqa: PLW0603  as the library's own provider, this is the process's
    if time.monotonic() < _no_sdk_until:
        return None
    provider = _provider()
    if provider is None:
        _no_sdk_until = time.monotonic() + _NO_SDK_S
        return None
    return provider.get_tracer("txbridge", _version())


def _provider() -> TracerProvider | None:
    global _is_broken  # noqa: PLW0603
    # Unless the application has imported the library or the environment names an SDK, nothing has set one up.
    if _is_broken or not ("opentelemetry.trace" in sys.modules or "OTEL_PYTHON_TRACER_PROVIDER" in os.environ):
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    try:
        provider = trace.get_tracer_provider()
    except Exception:  # noqa: BLE001 - OTEL_PYTHON_TRACER_PROVIDER may name one that is not installed
        # The library has logged why, and would do so for every message.
        _is_broken = True
        return None
    return None if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)) else provider


@cache
def _version() -> str:
    # Imported here, because it loads the e-mail library to read the metadata. Only a process with traces needs it.
    from importlib.metadata import version  # noqa: PLC0415

    return version("txbridge")


@cache
def _propagator() -> TraceContextTextMapPropagator:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator()


def start_span(
    tracer: Tracer,
    operation: str,
    topic: str,
    parent: Context | None,
    *,
    group: str,
    transaction: str,
    started_ms: int | None = None,
    **more: AttributeValue | None,
) -> Span:
    """Start the span of a step of a transaction, with the attributes of OpenTelemetry's conventions and ours.

    `transaction` is its short id, because anyone who knows the whole one may decide. A step that is over has begun at
    `started_ms`. `more` are attributes of ours, all that are known: a sampler sees only those of the start.
    """
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    return tracer.start_span(
        f"{operation} {topic}",
        parent,
        kind=SpanKind.PRODUCER,
        start_time=None if started_ms is None else started_ms * NS_PER_MS,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.name": operation,
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "txbridge.group": group,
            "txbridge.transaction": transaction,
            **{f"txbridge.{name}": value for name, value in more.items() if value is not None},
        },
    )


def context_of(headers: Iterable[tuple[str, bytes | None]]) -> Context | None:
    """Return the trace context of a message, or None without a valid one. Call it only with a tracer."""
    from opentelemetry import trace  # noqa: PLC0415

    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in {TRACEPARENT, _TRACESTATE} and value is not None:
            carrier.setdefault(name, value.decode("ascii", "replace"))
    if TRACEPARENT not in carrier:
        return None
    context = _propagator().extract(carrier)
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def headers_of_context(context: Context) -> list[tuple[str, bytes]]:
    """Return the headers that carry this context in a record. Call it only with a tracer."""
    carrier: dict[str, Any] = {}
    _propagator().inject(carrier, context)
    return [(name, value.encode()) for name, value in carrier.items()]
