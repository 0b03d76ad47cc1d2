"""Spans of client and worker, with an SDK, with the API alone, and the context that messages carry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from txbridge import Message, tracing
from txbridge.client.base import log
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.errors import EndTransactionError, PrepareError
from txbridge.client.flow.send_path import ClientTracing
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.core.fresh_halves import read_plain
from txbridge.core.half_message import HalfMessage, half_headers
from txbridge.worker.transaction.writer import record_spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01".encode()
ID = "0123456789ABCDEF0123456789ABCDEF"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An SDK with the setup of an application."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_no_sdk_until", 0.0)
    yield exporter
    provider.shutdown()


def prepare(client: ClientTracing, message: Message, result=None) -> Message:
    """Run a prepare to its end. Returns the message that would go to Kafka."""
    told: list[object] = []
    carried, report = client.watch_prepare(ID, message, told.append)
    given = result or Prepared(ID, 1, 42, 1_000, 5)
    report(given)
    assert told == [given]
    return carried


def decide(client: ClientTracing, error: Exception | None = None) -> None:
    end = Ticket(DecisionEntry(42, ID, Decision.COMMIT), 5)
    client.watch_end(1, Source.CLIENT, end, None)
    end.settle_with(error)
    client.forget_attempt(ID)


def hexadecimal(number: int, digits: int) -> str:
    return f"{number:0{digits}x}"


def test_a_message_with_a_context_is_sent_as_it_is_and_its_spans_are_below_that_context(spans: InMemorySpanExporter):
    message = Message("orders", b"x", headers=[("a", b"1"), ("traceparent", TRACEPARENT), ("tracestate", b"k=v")])
    client = ClientTracing("group")
    assert prepare(client, message) is message
    decide(client)
    first, second = spans.get_finished_spans()
    assert (first.name, second.name) == ("prepare orders", "decide orders")
    assert {hexadecimal(span.context.trace_id, 32) for span in (first, second)} == {TRACE}
    assert hexadecimal(first.parent.span_id, 16) == SPAN
    assert second.parent.span_id == first.context.span_id


def test_a_message_without_a_context_carries_that_of_its_prepare(spans: InMemorySpanExporter):
    message = Message("orders", b"x", key=b"k", headers=[("a", b"1")], timestamp=7, partition=3, check_immunity_time=9)
    tracer = trace.get_tracer_provider().get_tracer("application")
    with tracer.start_as_current_span("request") as request:
        carried = prepare(ClientTracing("group"), message)
    span, _ = spans.get_finished_spans()
    own = span.context
    context = f"00-{hexadecimal(own.trace_id, 32)}-{hexadecimal(own.span_id, 16)}-{own.trace_flags:02x}"
    assert carried == Message("orders", b"x", b"k", [("a", b"1"), ("traceparent", context.encode())], 7, 3, 9)
    # It is below the span of the caller.
    assert span.parent.span_id == request.get_span_context().span_id


def test_attributes_never_hold_the_whole_transaction_id(spans: InMemorySpanExporter):
    client = ClientTracing("group")
    prepare(client, Message("orders", b"x"))
    decide(client)
    first, second = spans.get_finished_spans()
    assert dict(first.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "prepare",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "txbridge.group": "group",
        "txbridge.transaction": "01234567",
        "txbridge.half": "1:42",
    }
    assert second.attributes["txbridge.decision"] == "commit"
    assert second.attributes["txbridge.source"] == "client"


def test_a_sampler_sees_all_attributes_that_are_known_at_the_start(spans: InMemorySpanExporter):
    at_start: list[dict[str, object]] = []
    seeing = SpanProcessor()
    seeing.on_start = lambda span, **_: at_start.append(dict(span.attributes))  # type: ignore[method-assign]
    trace.get_tracer_provider().add_span_processor(seeing)
    ClientTracing("group").watch_end(
        1, Source.CHECK, end := Ticket(DecisionEntry(42, ID, Decision.COMMIT, 2), 5), Message("orders", b"x")
    )
    end.settle_with()
    record_spans(contents(("traceparent", TRACEPARENT)), 1, 1_000, 2_000)
    assert at_start == [dict(span.attributes) for span in spans.get_finished_spans()]


def test_what_was_given_up_is_an_error(spans: InMemorySpanExporter):
    client = ClientTracing("group")
    prepare(client, Message("orders", b"x"), PrepareError("Kafka is away"))
    prepare(client, Message("orders", b"x"))
    decide(client, EndTransactionError("given up"))
    failed, _, undecided = spans.get_finished_spans()
    assert failed.status.status_code is undecided.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "PrepareError"
    assert undecided.status.description == "given up"


def test_the_answer_of_a_check_is_a_decision_of_the_context_that_the_message_carries(spans: InMemorySpanExporter):
    message = Message("orders", b"x", headers=[("traceparent", TRACEPARENT)])
    end = Ticket(DecisionEntry(42, ID, Decision.COMMIT, 2), 5)
    ClientTracing("group").watch_end(1, Source.CHECK, end, message)
    end.settle_with()
    [span] = spans.get_finished_spans()
    assert span.name == "decide orders"
    assert hexadecimal(span.parent.span_id, 16) == SPAN
    assert (span.attributes["txbridge.source"], span.attributes["txbridge.check_times"]) == ("check", 2)


def contents(*headers: tuple[str, bytes | None]) -> SimpleNamespace:
    half = HalfMessage(42, ID, "group", "orders", 0, None, b"x", [("UNIQ_KEY", b"1"), *headers], headers, 1)
    return SimpleNamespace(
        draft=SimpleNamespace(parts=[SimpleNamespace(halves=lambda bodies: bodies.values())]), bodies={42: half}
    )


def contents_of_a_run() -> SimpleNamespace:
    user_headers = [("traceparent", TRACEPARENT)]
    headers = half_headers(user_headers, transaction_id=ID, group="group", real_topic="orders")
    halves = read_plain(42, [0], [None], [b"x"], [headers], "")
    assert halves is not None
    value, end_headers = encode_end([DecisionEntry(42, ID, Decision.COMMIT)], "group", Source.CLIENT)
    run = halves.run_of(parse_end(0, value, end_headers))
    return SimpleNamespace(draft=SimpleNamespace(parts=[run]), bodies={})


@pytest.mark.parametrize("delivered", [contents(("traceparent", TRACEPARENT)), contents_of_a_run()])
def test_a_delivery_spans_the_kafka_transaction(spans: InMemorySpanExporter, delivered: SimpleNamespace):
    record_spans(delivered, 1, 1_000, 1_025)
    [span] = spans.get_finished_spans()
    assert span.name == "deliver orders"
    assert hexadecimal(span.parent.span_id, 16) == SPAN
    assert (span.start_time, span.end_time) == (1_000_000_000, 1_025_000_000)
    assert span.attributes["txbridge.half"] == "1:42"


@pytest.mark.parametrize(
    "headers", [(), (("traceparent", None),), (("traceparent", b"\xff"),), (("traceparent", b"00-0-0-00"),)]
)
def test_without_a_valid_context_there_is_no_span_of_a_delivery(spans: InMemorySpanExporter, headers):
    record_spans(contents(*headers), 1, 1_000, 1_025)
    assert spans.get_finished_spans() == ()


def test_a_header_that_is_no_context_is_not_touched_either(spans: InMemorySpanExporter):
    message = Message("orders", b"x", headers=[("traceparent", b"something of the user's")])
    assert prepare(ClientTracing("group"), message) is message
    assert len(spans.get_finished_spans()) == 1


class Raises:
    """A span processor of the application, which is out of order."""

    def __init__(self, at: str, error: BaseException) -> None:
        def refuse(*_: object) -> None:
            raise error

        setattr(self, at, refuse)

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


@pytest.mark.parametrize("error", [RuntimeError("no disk"), StopIteration()], ids=repr)
@pytest.mark.parametrize("at", ["on_start", "on_end"])
def test_a_span_processor_that_raises_stops_no_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: str, error: BaseException
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Raises(at, error))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_no_sdk_until", 0.0)
    log.forget()
    client, message = ClientTracing("group"), Message("orders", b"x")
    prepare(client, message)
    decide(client)
    assert {line.event for line in caplog.records} == {"spans_not_recorded"}


def test_a_provider_that_is_not_installed_is_reported_once_and_stops_no_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "nobody_has_this")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(tracing, "_no_sdk_until", 0.0)
    monkeypatch.setattr(tracing, "_is_broken", False)
    client, message = ClientTracing("group"), Message("orders", b"x")
    for _ in range(30):
        monkeypatch.setattr(tracing, "_no_sdk_until", 0.0)
        assert prepare(client, message) is message
        decide(client)
    record_spans(contents(("traceparent", TRACEPARENT)), 1, 1_000, 1_025)
    # The library says it itself.
    assert [line.name for line in caplog.records] == ["opentelemetry.util._providers"]


def test_without_an_sdk_nothing_is_added_and_nothing_kept():
    assert tracing.tracer() is None
    message = Message("orders", b"x")
    client = ClientTracing("group")
    told: list[object] = []
    report = told.append
    assert client.watch_prepare(ID, message, report) == (message, report)
    decide(client)
    record_spans(contents(("traceparent", TRACEPARENT)), 1, 1_000, 1_025)


def test_without_an_sdk_the_environment_is_not_read_for_each_message(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing, "_no_sdk_until", 0.0)
    monkeypatch.setattr(tracing, "sys", SimpleNamespace(modules={}))
    monkeypatch.setattr(tracing, "time", SimpleNamespace(monotonic=lambda: 1.0))
    read: list[str] = []

    class Environment(dict[str, str]):
        def __contains__(self, name: object) -> bool:
            read.append(str(name))
            return False

    monkeypatch.setattr(tracing, "os", SimpleNamespace(environ=Environment()))
    client = ClientTracing("group")
    for _ in range(1_000):
        prepare(client, Message("orders", b"x"))
    assert len(read) == 1


@pytest.mark.parametrize(
    ("named", "installed", "names"),
    [
        # Nobody has imported the library, so it is not asked.
        (False, True, []),
        (True, True, ["prepare orders"]),
        (True, False, []),
    ],
)
def test_an_sdk_is_used_if_the_environment_names_it_and_the_library_is_there(
    monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter, named: bool, installed: bool, names: list[str]
) -> None:
    monkeypatch.setattr(tracing, "sys", SimpleNamespace(modules={}))
    if named:
        monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    if not installed:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
    message = Message("orders", b"x")
    assert (prepare(ClientTracing("group"), message) is message) == (names == [])
    assert [span.name for span in spans.get_finished_spans()] == names
