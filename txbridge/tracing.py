"""OpenTelemetry, if the process uses it (extra `otel`): the tracer, and the W3C trace context in headers of records.

Only the API is needed. As long as the process has not set up an SDK nothing is recorded, and nothing is done here.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True
    _PROPAGATOR = TraceContextTextMapPropagator()
    _VERSION = version("txbridge")

#: The header of W3C's Trace Context, which instrumentation of Kafka clients in every language uses, and its companion.
TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"

#: OpenTelemetry's semantic conventions for messaging.
SYSTEM = {"messaging.system": "kafka"}


def tracer() -> Tracer | None:
    """A tracer, or None when the library is not installed or no SDK is set up yet."""
    if not INSTALLED:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider.get_tracer("txbridge", _VERSION)


def context_of(headers: Iterable[tuple[str, bytes | None]]) -> Context | None:
    """The context that a message carries; None without a valid one. Only if INSTALLED."""
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in {TRACEPARENT, _TRACESTATE} and value is not None:
            carrier.setdefault(name, value.decode("ascii", "replace"))
    if TRACEPARENT not in carrier:
        return None
    context = _PROPAGATOR.extract(carrier)
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def headers_of_context(context: Context) -> list[tuple[str, bytes]]:
    """What carries this context in a record. Only if INSTALLED."""
    carrier: dict[str, Any] = {}
    _PROPAGATOR.inject(carrier, context)
    return [(name, value.encode()) for name, value in carrier.items()]
