"""Time from a decision until its message is visible, beside what has to be refused one by one.

That is records of other topics, which Kafka refuses, and another client's ENDs for half messages beyond HALF's end.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from tests.bench.beside import beside
from tests.bench.load import paced
from tests.bench.measure import P50, P99, ROUNDS, Found, by_turns, percentiles
from tests.bench.paced import PacedClient
from tests.bench.stand import standing
from tests.support.harness import COMMIT, Bridge
from txbridge import LocalTransactionState
from txbridge.embedded import EmbeddedKafka

#: Goal: a commit takes at most so much longer beside refused records than without (ms).
_LONGER_MS = 1_000
#: Goal: a commit takes at most so many times as long beside ENDs for absent half messages as without.
_TIMES = 1.5
_P90 = "ms, p90"
#: Long enough that nothing is checked (ms).
_NO_CHECKS = 3_600_000
#: Kafka takes an hour. The worker knows this limit beforehand, and why a compacted topic takes no record without a key.
#: It does not know whether a record is small enough once it is compressed.
_TWO_HOURS_MS = 7_200_000
#: Sources of ENDs, with what they decide.
_ABSENT = (("client", COMMIT), ("find", 0), ("abandon", 0))


@dataclass(frozen=True)
class _Refused:
    """Refused records: so many at once, then so many a second, and the number of their topics."""

    at_once: int = 0
    per_second: int = 0
    topics: int = 1
    #: ENDs for absent half messages a second.
    absent: int = 0


OPTIONS = {
    "rate": (50, "commits a second for another topic"),
    "seconds": (10, "of each measurement"),
    "at_once": (300, "refused records at once"),
    "per_second": (15, "refused records a second"),
    "topics": (10, "topics that refuse records, of the last one"),
    "absent": (10, "ENDs a second for half messages beyond HALF's end"),
    "rounds": (3, ROUNDS[1]),
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    loads = {
        "without": _Refused(),
        f"{options.at_once} at once": _Refused(at_once=options.at_once),
        f"{options.per_second} a second": _Refused(per_second=options.per_second),
        f"{options.per_second} a second, {options.topics} topics": _Refused(
            per_second=options.per_second, topics=options.topics
        ),
    }
    absent = f"{options.absent} absent a second"
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        standing(kafka, check_after=_NO_CHECKS) as stand,
        PacedClient(stand, LocalTransactionState.COMMIT_MESSAGE) as client,
    ):
        measures = {
            name: partial(_measured, client, stand.bridge, load, options.rate, options.seconds)
            for name, load in {**loads, absent: _Refused(absent=options.absent)}.items()
        }
        found = by_turns(options.rounds, measures)
    ratios = {
        f"commit beside refused records, {what}, ms longer, {name}": found.ratio(
            lambda of, name=name, figure=figure: of(name, figure) - of("without", figure), _LONGER_MS, at_most=True
        )
        for name in loads
        if name != "without"
        for what, figure in (("median", P50), ("p99", P99))
    } | {
        f"commit beside ENDs for absent half messages, {what}, times as long": found.ratio(
            lambda of, figure=figure: of(absent, figure) / of("without", figure), _TIMES, at_most=True
        )
        for what, figure in (("median", P50), ("p90", _P90))
    }
    return {"figures": found.report(), "ratios": ratios}


def _measured(client: PacedClient, bridge: Bridge, load: _Refused, rate: int, seconds: int) -> Found:
    with _refused(bridge, load, seconds):
        sent = client.send(rate * seconds, rate, 100)
    seconds = sorted(at - since for since, at in zip(sent.called, sent.seen.times, strict=True))
    return percentiles(seconds) | {_P90: seconds[int(len(seconds) * 0.9)] * 1e3}


@contextmanager
def _refused(bridge: Bridge, load: _Refused, seconds: int) -> Iterator[None]:
    """Commit refused records, each with a good one for its topic, from another thread. The topics are new ones."""
    suffix, kinds = time.monotonic_ns(), cycle(({}, {"cleanup_policy": "compact"}, {"max_message_bytes": "3000"}))
    topics = [
        (bridge.create_topic(f"bad-{suffix}-{number}", 1, **config), config)
        for number, config in zip(range(load.topics if load.at_once or load.per_second else 0), kinds, strict=False)
    ]

    def send(_: threading.Event) -> None:
        for number in paced(load.absent * seconds, load.absent or 1):
            source, decision = _ABSENT[number % len(_ABSENT)]
            bridge.end([f"{10**12 + number},{'F' * 32},{decision}"], 0, source=source)
        paces = [0] * load.at_once, paced(load.per_second * seconds, load.per_second or 1)
        for number, _ in enumerate(place for pace in paces for place in pace):
            topic, config = topics[number % len(topics)]
            value = random.randbytes(4_000) if "max_message_bytes" in config else b"refused"
            ahead = [("BORN_TIMESTAMP", b"%d" % (time.time() * 1000 + _TWO_HOURS_MS))]
            bad = bridge.prepare(topic, value, partition=0, extra=[] if config else ahead)
            good = bridge.prepare(topic, b"good", key=b"key", partition=0)
            bridge.decide_many([bad, good], COMMIT)

    with beside(send):
        yield
