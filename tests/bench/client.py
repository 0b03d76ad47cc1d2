"""Cost of a transaction in the client, by API, against a bare idempotent producer of the same records."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Producer

from tests.bench.load import Clients, Load, Span
from tests.bench.measure import PER_SECOND, ROUNDS, SIZE, Found, by_turns
from tests.bench.report import CPU
from tests.bench.values import Values
from tests.support.harness import Bridge
from txbridge.core.half_message import half_headers
from txbridge.embedded import EmbeddedKafka

_CLIENT_CPU = f"{CPU}client"
_BARE, _PIPELINED, _TEN = "bare", "pipelined", "pipelined, ten messages each"

OPTIONS = {
    "transactions": (50_000, "per measurement"),
    "blocking": (10_000, "of the blocking API"),
    "size": SIZE,
    "threads": (32, "of the blocking API"),
    "rounds": ROUNDS,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench client", partitions=8) as bridge,
    ):
        clients = Clients(kafka.bootstrap_servers, bridge.namespace)
        load, many = partial(Load, "real", size=options.size), options.transactions
        blocking = f"blocking, {options.threads} threads"
        kinds: dict[str, tuple[Callable[[Load], Span], Load]] = {
            _BARE: (partial(_send_bare, bridge), load(count=many)),
            blocking: (clients.blocking(options.threads), load(count=options.blocking)),
            _PIPELINED: (clients.pipelined, load(count=many)),
            _TEN: (clients.pipelined, load(count=many // 5, together=10)),
            "asyncio": (clients.asyncio, load(count=many)),
        }
        found = by_turns(options.rounds, {name: partial(_measured, *kind) for name, kind in kinds.items()})
    ratios = {
        f"client, {name} to bare": found.ratio(lambda of, name=name: of(name, PER_SECOND) / of(_BARE, PER_SECOND))
        for name in (blocking, _PIPELINED, "asyncio")
    }
    ratios["client, ten messages in a transaction to one, processor time"] = found.ratio(
        lambda of: of(_TEN, _CLIENT_CPU) / of(_PIPELINED, _CLIENT_CPU), 2.5, at_most=True
    )
    return {"figures": found.report(), "ratios": ratios}


def _measured(send: Callable[[Load], Span], load: Load) -> Found:
    before = time.process_time()
    sent = send(load)
    cpu = time.process_time() - before
    return {PER_SECOND: load.count / (sent.until - sent.since), _CLIENT_CPU: cpu / load.count * 1e6}


def _send_bare(bridge: Bridge, load: Load) -> Span:
    settings = {"enable.idempotence": True, "linger.ms": 0, "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": bridge.bootstrap_servers, **settings})
    headers = half_headers((), transaction_id="0" * 32, group="bench", real_topic=load.topic)
    half, values = bridge.names.half, Values(load.size)
    since = time.monotonic()
    for number in range(load.count):
        while True:
            try:
                producer.produce(half, values[number], b"%d" % number, headers=headers, on_delivery=_must_be_delivered)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    until = time.monotonic()
    producer.close()
    return Span(since, until)


def _must_be_delivered(error: object, _: object) -> None:
    assert error is None, error
