"""Growth in half an hour of steady load by all ways in: memory and descriptors of each process.

A slope is that of the straight line through all looks after the warm-up, for 1,000 transactions of all ways. The ways
are the blocking client, asyncio, the pipeline, the outbox with its relay, and an unmodified client of RocketMQ at the
front door, which answers some by a check. Each minute the worker stands still for longer than its session lasts, so all
partitions are lost and taken over again. The follower audits everything, and finds no violation.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import create_engine
from txbridge_sqlalchemy import create_outbox, create_table

from tests.bench.feed import memory, say
from tests.bench.follow import follower
from tests.bench.load import paced
from tests.bench.measure import Ratio, once
from tests.bench.outbox.announce import Service
from tests.bench.outbox.relay_way import RelayProgram
from tests.bench.outbox.relays import Settings, Worker
from tests.bench.outbox.shop import SETTINGS, new_shop
from tests.bench.reader_process import BenchProcess
from tests.support.harness import Bridge
from tests.support.postgres import Postgres
from tests.support.relays import make_progress
from tests.support.rocketmq_door import Door, GrpcClient
from txbridge.embedded import EmbeddedKafka

#: The goals of txbridge's own processes, for 1,000 transactions. What keeps 16 B of each grows by 16 kB.
_GOAL_KB, _GOAL_DESCRIPTORS = 16, 0.01
#: Share of the looks before which caches fill and allocators settle.
_WARM_UP = 1 / 3
#: Seconds of a step, at the end of which all processes are looked at. The worker stands still in each of so many steps,
#: for longer than its session of 6 s.
_STEP_S, _STOPPED_S, _STOPS = 10.0, 9.0, 6
#: Services of tests.bench.outbox.service, and their API. Each has numbers of its own for its orders.
_SERVICES = (("txbridge", "threads"), ("txbridge", "asyncio"), ("pipelined", "threads"), ("outbox", "threads"))
_NUMBERS, _CALLS = 10**9, 8
_WAYS = len(_SERVICES) + 1
#: One of so many messages at the door is committed by the answer to its check.
_CHECKED = 10
_KB, _DESCRIPTORS = "KiB for 1,000 transactions", "descriptors for 1,000 transactions"

OPTIONS = {"minutes": (30.0, "of load"), "rate": (150, "transactions a second, by all ways together")}


def run(options: argparse.Namespace) -> dict[str, Any]:
    steps, each = round(options.minutes * 60 / _STEP_S), round(options.rate * _STEP_S / _WAYS)
    #: KiB and descriptors of each process after each step.
    looks: dict[str, list[tuple[float, int]]] = {}
    with ExitStack() as stack:
        enter = stack.enter_context
        kafka, postgres = enter(EmbeddedKafka(heap="1g")), enter(Postgres(**SETTINGS))
        shop = enter(new_shop(kafka, postgres, Path(enter(TemporaryDirectory()))))
        create_table(engine := create_engine(shop.url))
        create_outbox(engine)
        bridge = enter(Bridge(shop.servers, "bench soak", partitions=2))
        make_progress(shop.servers, bridge.namespace)
        worker, relay = Worker(bridge, Settings()), RelayProgram(shop, bridge.namespace)
        for program in (worker, relay):
            program.start()
            stack.callback(program.stop)
        door = enter(Door(bridge, "--grpc-listen=127.0.0.1:0"))
        client = enter(GrpcClient("python", [door], [shop.topic]))
        about = json.dumps(asdict(Service(shop.url, shop.servers, shop.topic, _CALLS, bridge.namespace)))
        services = [enter(BenchProcess("outbox.service", *which, about)) for which in _SERVICES]
        assert {service.answer() for service in services} == {"ready"}
        pids = {"worker": worker.pids[0], "relay": relay.pids[0], "door": door.pid, "Kafka": kafka.pid}
        pids |= {", ".join(which): service.pid for which, service in zip(_SERVICES, services, strict=True)}
        audit = enter(follower(shop.servers, bridge.namespace))
        pids["follower"] = audit.pid
        for step in range(steps):
            for place, service in enumerate(services):
                first = place * _NUMBERS + step * each
                service.write(json.dumps({"first": first, "count": each, "calls": _CALLS, "rate": each / _STEP_S}))
            stops = step % _STOPS == 0
            if stops:
                os.kill(worker.pids[0], signal.SIGSTOP)
            for number in paced(each, each / _STEP_S):
                client.transaction(shop.topic, "v" * 100, "commit" if number % _CHECKED else "unknown", "commit")
                if stops and number == int(each * _STOPPED_S / _STEP_S):
                    os.kill(worker.pids[0], signal.SIGCONT)
            for service in services:
                service.answer()
            for name, pid in pids.items():
                looks.setdefault(name, []).append((memory(pid) / 1024, len([*Path(f"/proc/{pid}/fd").iterdir()])))
            if stops:
                sizes = (f"{name} {seen[-1][0] / 1024:.0f} MiB, {seen[-1][1]}" for name, seen in looks.items())
                say(f"{(step + 1) * each * _WAYS:,} transactions: {'; '.join(sizes)}")
    assert audit.returncode == 0, "the audit has found a violation"
    figures = {name: _slopes(seen, each * _WAYS / 1_000) for name, seen in looks.items()}
    ours = [figures[name] for name in figures if name != "Kafka"]
    return {
        "figures": {name: once(found) for name, found in figures.items()},
        "ratios": {
            what: Ratio(max(found[what] for found in ours), goal, at_most=True)
            for what, goal in ((_KB, _GOAL_KB), (_DESCRIPTORS, _GOAL_DESCRIPTORS))
        },
    }


def _slopes(looks: list[tuple[float, int]], thousands: float) -> dict[str, float]:
    """Growth for each 1,000 transactions, of which each step has so many `thousands`, and the sizes at the end."""
    settled = range(int(len(looks) * _WARM_UP), len(looks))
    by_time = {what: [look[place] for look in looks] for place, what in enumerate((_KB, _DESCRIPTORS))}
    slopes = {what: linear_regression(settled, seen[settled.start :]).slope for what, seen in by_time.items()}
    return {
        **{what: slope / thousands for what, slope in slopes.items()},
        "MiB at the end": looks[-1][0] / 1024,
        "descriptors at the end": looks[-1][1],
    }
