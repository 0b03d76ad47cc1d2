"""Messages that name a time: their lateness at a steady rate, against RocketMQ's timer messages at the same rate.

A second measurement drains many messages that are due at once, while commits and checks go on. RocketMQ is measured
with its default precision and with the best one that its broker allows. Its messages are plain ones: in a transaction
the time is lost.
"""

from __future__ import annotations

import argparse
from os import getloadavg
from typing import Any

from tests.bench import lateness
from tests.bench.due import Due, headstart_of
from tests.bench.feed import memory, say
from tests.bench.measure import PER_SECOND, SIZE, Ratio, once, percentiles
from tests.bench.rocketmq import rocketmq
from tests.peer.jars import ROCKETMQ_VERSION
from tests.support.harness import Bridge
from txbridge.embedded import EmbeddedKafka

_MIB = 1024 * 1024
#: Goals. Lateness at the 99th percentile at 1,000 due a second (s). Rate of the drain of messages that are due at once
#: (1/s). Part of the usual rate that other commits keep meanwhile. Lateness of a check that is due meanwhile (s).
_LATE_S, _DRAINED, _BESIDE, _CHECK_S = 0.1, 10_000, 0.8, 1.0
#: `timerPrecisionMs`: the default, and the smallest (MessageStoreConfig.setTimerPrecisionMs).
_PRECISIONS = (1_000, 100)
_WARM_UP_S = 20.0


OPTIONS = {
    "rate": (1_000, "messages due a second"),
    "seconds": (20, "of that rate"),
    "at_once": (20_000, "due in the same second"),
    "beside": (1_000, "commits a second meanwhile"),
    "headstart": (
        None,
        "seconds from the first half message to the first time; without it 5, and one for 4,000 messages",
    ),
    "size": SIZE,
    "no_peer": (False, "without RocketMQ"),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    late: dict[str, list[float]] = {}
    for precision in () if options.no_peer else _PRECISIONS:
        name = f"RocketMQ {ROCKETMQ_VERSION}, timerPrecisionMs {precision}: lateness"
        late[name] = _of_rocketmq(options, precision)
        _say(name, late[name])
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench later", partitions=2) as bridge,
        Due(bridge, options.size) as due,
    ):
        worker = bridge.worker(
            session_timeout=6_000, transaction_timeout=3_600_000, transaction_check_interval=3_600_000
        )
        # The first messages warm everything up.
        due.late([0] * 1_000, _WARM_UP_S)
        offsets = [number * 1_000 // options.rate for number in range(options.rate * options.seconds)]
        steady = late["lateness"] = due.late(offsets, options.headstart or headstart_of(len(offsets)))
        _say("lateness", steady)
        drain = due.drain(options.at_once, options.beside, options.headstart, lambda: memory(worker.pid))
        late["lateness, all at once"] = drain.late
        _say("lateness, all at once", drain.late)
    p99 = sorted(steady)[int(len(steady) * 0.99)]
    return {
        "bytes_per_scheduled": round((drain.scheduled_memory - drain.memory) / options.at_once),
        "worker_mib": {
            "before": drain.memory // _MIB,
            "all_scheduled": drain.scheduled_memory // _MIB,
            "drained": drain.drained_memory // _MIB,
        },
        "histograms": {name: lateness.histogram(one) for name, one in late.items()},
        "figures": {
            **{name: once(lateness.extremes(one)) for name, one in late.items()},
            "scheduled": once({PER_SECOND: drain.scheduled_rate}),
            "commits, before the drain": once({PER_SECOND: drain.before.rate, **percentiles(drain.before.late)}),
            "commits, during the drain": once({PER_SECOND: drain.during.rate, **percentiles(drain.during.late)}),
            "checks due during the drain, lateness": once(lateness.extremes(drain.checks)),
        },
        "ratios": {
            "lateness at p99 (s)": Ratio(p99, _LATE_S, at_most=True),
            "drained a second": Ratio(drain.rate, _DRAINED),
            "commits during the drain to before": Ratio(drain.during.rate / drain.before.rate, _BESIDE),
            "check that is due during the drain, latest (s)": Ratio(max(drain.checks), _CHECK_S, at_most=True),
        },
    }


def _of_rocketmq(options: argparse.Namespace, precision: int) -> list[float]:
    count = options.rate * options.seconds
    with rocketmq({"timerPrecisionMs": precision}) as peer:
        return peer.timers(count, options.rate, options.size, options.headstart or 2 * headstart_of(count))


def _say(name: str, late: list[float]) -> None:
    say(f"load {getloadavg()[0]:.1f}: {name}: {lateness.in_words(lateness.histogram(late))}")
