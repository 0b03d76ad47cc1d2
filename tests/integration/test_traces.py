"""One trace from the application through the worker to the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.listeners import Answers, AsyncCommits
from txbridge import AsyncTransactionProducer, LocalTransactionState, Message, TransactionProducer

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An SDK for this process, which is both application and worker here."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def users_headers(bridge: Bridge, topic: str) -> list[list[tuple[str, bytes]]]:
    ours = ("TXB_", "UNIQ_KEY")
    return [
        [(name, value) for name, value in message.headers() if not name.startswith(ours)]
        for message in bridge.read(topic)
    ]


def test_prepare_decide_and_deliver_are_one_trace(bridge: Bridge, spans: InMemorySpanExporter):
    topic = bridge.create_topic("spans", partitions=1)
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with (
        bridge.local_owner(0),
        bridge.local_owner(1),
        TransactionProducer("spans", Answers(None), settings, namespace=bridge.namespace) as producer,
    ):
        producer.send_message_in_transaction(Message(topic, b"x"), LocalTransactionState.COMMIT_MESSAGE)
        bridge.wait_visible(topic, [b"x"])
        eventually(lambda: len(spans.get_finished_spans()) == 3)
    by_name: dict[str, ReadableSpan] = {span.name.partition(" ")[0]: span for span in spans.get_finished_spans()}
    prepare, decide, deliver = by_name["prepare"], by_name["decide"], by_name["deliver"]
    assert decide.parent.span_id == deliver.parent.span_id == prepare.context.span_id
    assert {span.context.trace_id for span in by_name.values()} == {prepare.context.trace_id}
    [[(name, carried)]] = users_headers(bridge, topic)
    assert name == "traceparent"
    assert carried.split(b"-")[1:3] == [b"%032x" % prepare.context.trace_id, b"%016x" % prepare.context.span_id]


class Broken(SpanProcessor):
    """An exporter that is out of order."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no room on the disk")


def test_p8_a_broken_exporter_costs_no_delivery_and_no_take_over(bridge: Bridge, monkeypatch: pytest.MonkeyPatch):
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    topic = bridge.create_topic("untraced", partitions=1)
    with capture_logs() as logs, bridge.local_owner(0) as owner:
        owner.wait_serving()
        for value in (b"first", b"second"):
            bridge.decide(bridge.prepare(topic, value, partition=0, headers=[("traceparent", TRACEPARENT)]), COMMIT)
            bridge.wait_visible(topic, [value])
    assert bridge.visible(topic) == {b"first": 1, b"second": 1}
    assert [line["event"] for line in logs if line["log_level"] != "info"] == ["deliveries_not_traced"]
    assert [line["error"] for line in logs if "error" in line] == ["RuntimeError('no room on the disk')"]
    assert [line["event"] for line in logs].count("partition_taken_over") == 1


def test_the_span_of_an_asyncio_task_is_the_parent_of_what_it_sends(bridge: Bridge, spans: InMemorySpanExporter):
    tracer = trace.get_tracer_provider().get_tracer("application")
    settings = {"bootstrap.servers": bridge.bootstrap_servers}

    async def request(producer: AsyncTransactionProducer) -> int:
        with tracer.start_as_current_span("request") as span:
            await producer.send_message_in_transaction(Message("spans.async", b"x"))
            return span.get_span_context().span_id

    async def both() -> list[int]:
        async with AsyncTransactionProducer("async", AsyncCommits(), settings, namespace=bridge.namespace) as producer:
            return await asyncio.gather(request(producer), request(producer))

    requests = asyncio.run(both())
    prepared = [span for span in spans.get_finished_spans() if span.name == "prepare spans.async"]
    assert {span.parent.span_id for span in prepared} == set(requests)
    assert len(prepared) == 2
