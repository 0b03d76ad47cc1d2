"""Undecided messages that are answered when checked: time from due to visible, against RocketMQ.

Both get the same messages at the same pace, with the same times: time-out 1 s, check interval 1 s. RocketMQ has its
best settings for checks. One is the RocksDB store, which delivers no message twice as long as all answers come within
the interval. The other is its best number of check threads. Copies are counted on both sides, including later ones.

A message is due one time-out after the acknowledgement of its half message. Its local transaction is called at that
moment on both sides. Two times count, because either alone could hide a defect. One is that of the median message, from
its own due time. The other is that of all messages, from the due time of the last one until all are visible. Counted
from the due time of the first one, it would include the time of sending, which is the same on both sides.
"""

from __future__ import annotations

import argparse
from typing import Any

from tests.bench.measure import P50, P99, ROUNDS, SIZE, Found, Ratio, Rounds, by_turns, percentiles
from tests.bench.paced import PacedClient
from tests.bench.rocketmq import RocketMQ, rocketmq
from tests.bench.stand import Stand, cpu_us_each, standing
from txbridge import LocalTransactionState
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
#: A second copy comes from a second check, one interval later at the earliest.
_SETTLE_S = 2 * _INTERVAL_MS / 1e3
_PEER_THREADS = 32


OPTIONS = {
    "transactions": (10_000, "per measurement"),
    "rate": (5_000, "of sending, a second"),
    "size": SIZE,
    "rounds": ROUNDS,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="1g") as kafka,
        standing(kafka, check_after=_TIMEOUT_MS, check_again_after=_INTERVAL_MS) as stand,
        PacedClient(stand, LocalTransactionState.UNKNOWN) as ours,
        rocketmq(_ROCKETMQ) as peer,
    ):
        found = by_turns(
            options.rounds, {_OURS: lambda: _measured(ours, stand, options), _PEER: lambda: _by_peer(peer, options)}
        )
    ratios = {
        "check back, last due to last visible, RocketMQ's time to ours": _times_as_fast(found, _LAST),
        "check back, median of a message, RocketMQ's time to ours": _times_as_fast(found, P50),
        "check back, copies": found.ratio(lambda of: of(_OURS, _COPIES), 0, at_most=True),
    }
    return {"figures": found.report(), "ratios": ratios}


def _times_as_fast(found: Rounds, what: str) -> Ratio:
    return found.ratio(lambda of: of(_PEER, what) / of(_OURS, what), 3)


def _by_peer(peer: RocketMQ, options: argparse.Namespace) -> Found:
    cpu = peer.cpu_seconds()
    done = peer.measure(
        options.transactions, _PEER_THREADS, options.size, rate=options.rate, unknown=100, settle_s=_SETTLE_S
    )
    timeout = _TIMEOUT_MS
    return {
        _LAST: done["last_decided_to_last_visible_s"] - timeout / 1e3,
        **{what: ms - timeout for what, ms in zip((P50, P99), done["visible_ms"], strict=True)},
        "checks of a message": done["checks"] / options.transactions,
        _COPIES: done["copies"],
        **cpu_us_each(cpu, peer.cpu_seconds(), options.transactions),
    }


def _measured(client: PacedClient, stand: Stand, options: argparse.Namespace) -> Found:
    count, checks, cpu = options.transactions, client.checks, stand.cpu_seconds()
    _, called, seen = client.send(count, options.rate, options.size, _SETTLE_S)
    cost = cpu_us_each(cpu, stand.cpu_seconds(), count)
    due = [at + _TIMEOUT_MS / 1e3 for at in called]
    return {
        _LAST: max(seen.times) - max(due),
        **percentiles([at - since for since, at in zip(due, seen.times, strict=True)]),
        "checks of a message": (client.checks - checks) / count,
        _COPIES: seen.copies,
        **cost,
    }
