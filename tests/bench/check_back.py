"""Messages that nobody decided, answered when they are checked: from due to visible, against RocketMQ.

Both get the same messages at the same pace, and have the same times: time-out 1 s, check interval 1 s. RocketMQ has its
RocksDB store, with which it delivers no message twice, and the threads for checks that it does best with.

A message is due one time-out after its half message was acknowledged, which is when its local transaction is called:
the same moment on both sides. What counts is how long the whole crowd takes: from when the last one is due until the
last one is visible. From the first one due would add, on both sides, the time in which they were sent.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from tests.bench.load import paced
from tests.bench.measure import P50, P99, Found, Ratio, by_turns, percentiles
from tests.bench.rocketmq import RocketMQ, rocketmq
from tests.bench.stand import Stand
from tests.bench.values import Values
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer
from txbridge.embedded import EmbeddedKafka

_TIMEOUT_MS = _INTERVAL_MS = 1_000
_ROCKETMQ = {
    "transRocksDBEnable": "true",
    "transWriteOriginTransHalfEnable": "false",
    "transactionTimeOut": _TIMEOUT_MS,
    "transactionCheckInterval": _INTERVAL_MS,
}
_OURS, _PEER = "txbridge", "RocketMQ"
_LAST, _COPIES = "s, last due to last visible", "copies"
#: A second copy comes of a second check, one interval later at the soonest.
_SETTLE_S = 2 * _INTERVAL_MS / 1e3
_PEER_THREADS = 32


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transactions", type=int, default=10_000, help="per measurement (default 10,000)")
    parser.add_argument("--rate", type=int, default=5_000, help="of sending, a second (default 5,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        rocketmq(_ROCKETMQ) as peer,
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        Stand(kafka, check_after=_TIMEOUT_MS, check_again_after=_INTERVAL_MS) as stand,
    ):
        ours = _Ours(stand)
        found = by_turns(
            options.rounds,
            {
                _OURS: lambda: ours.measure(options.transactions, options.rate, options.size),
                _PEER: lambda: _by_peer(peer, options),
            },
        )
    ratios = {
        "check back, last due to last visible, RocketMQ's time to ours": Ratio(_times_as_fast(found, _LAST), 3),
        "check back, median of a message, RocketMQ's time to ours": Ratio(_times_as_fast(found, P50)),
        "check back, copies": Ratio(found.median(_OURS, _COPIES), 0, at_most=True),
    }
    return {
        "rate": options.rate,
        "figures": found.report(),
        "ratios": {name: ratio.report() for name, ratio in ratios.items()},
    }


def _times_as_fast(found, what: str) -> float:
    return found.median(_PEER, what) / found.median(_OURS, what)


def _by_peer(peer: RocketMQ, options: argparse.Namespace) -> Found:
    done = peer.measure(
        options.transactions, _PEER_THREADS, options.size, rate=options.rate, unknown=100, settle_s=_SETTLE_S
    )
    timeout = _TIMEOUT_MS
    return {
        _LAST: done["last_decided_to_last_visible_s"] - timeout / 1e3,
        **{what: ms - timeout for what, ms in zip((P50, P99), done["visible_ms"], strict=True)},
        "checks of a message": done["checks"] / options.transactions,
        _COPIES: done["copies"],
    }


class _Unknown(TransactionListener):
    """Does not know, until it is asked."""

    def __init__(self) -> None:
        self.called: dict[int, float] = {}
        self.checks = 0

    def execute_local_transaction(self, message, arg):
        self.called[arg] = time.monotonic()
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message):
        self.checks += 1
        return LocalTransactionState.COMMIT_MESSAGE


class _Ours:
    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._next = 0

    def measure(self, count: int, rate: float, size: int) -> Found:
        first, self._next = self._next, self._next + count
        notes, values, topic = _Unknown(), Values(size), self._stand.real_topic
        bridge = self._stand.bridge
        settings = {"bootstrap.servers": bridge.bootstrap_servers}
        self._stand.reader.expect_numbers(first, count, _SETTLE_S)
        with TransactionProducer("bench", notes, settings, namespace=bridge.namespace) as producer:
            for place in paced(count, rate):
                number = first + place
                producer.submit_message_in_transaction(Message(topic, values[number], b"%d" % number), number)
            seen = self._stand.reader.seen()
        timeout = _TIMEOUT_MS / 1e3
        due = [notes.called[first + place] + timeout for place in range(count)]
        return {
            _LAST: max(seen.times) - max(due),
            **percentiles([at - since for since, at in zip(due, seen.times, strict=True)]),
            "checks of a message": notes.checks / count,
            _COPIES: seen.copies,
        }
