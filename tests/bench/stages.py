"""The stages of the time from a decision to its visibility, as far as Kafka's logs show them afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.measure import Found
from tests.support import http
from tests.support.harness import Bridge

#: Samples without labels of a worker's metrics.
Scraped = Mapping[str, float]

_WHOLE = "ms, mean"
_STORED, _WAITED = "ms, decision to END stored", "ms, wait for the transaction before"
_WRITTEN, _SEEN = "ms, worker until OP is stored", "ms, OP stored to visible"
#: Descriptions of the stages. They are means, so that the four of them add up to the whole.
STAGES = {
    _STORED: "the client batches and sends the decision, Kafka appends it to END",
    _WAITED: "until the messages of the Kafka transaction before are visible: one at a time, so this is group commit",
    _WRITTEN: "the worker reads END, drafts, and writes the records, those of OP behind the messages",
    _SEEN: "the rest is written, the Kafka transaction commits, markers are written, the reader gets the message",
}
#: Kafka's append times are truncated to whole milliseconds: on average half a millisecond is missing.
_CUT_OFF_S = 0.0005
TRANSACTIONS = "Kafka transactions per second"


class Stages:
    """Stages of the transactions of partition 0 that are decided from now on."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._starts = {topic: bridge.bounds(topic, 0)[1] for topic in (bridge.names.end, bridge.names.op)}
        # Append times are by the wall clock.
        self._wall = time.time() - time.monotonic()

    def between(self, half_offsets: Sequence[int], decided: Sequence[float], seen: Sequence[float]) -> Found:
        """Stages of these committed transactions, by half offset, times of decision and of visibility (monotonic)."""
        ends = self._append_times(self._bridge.names.end, lambda value: map(int, re.findall(rb"(?m)^\d+", value)))
        ops = self._append_times(self._bridge.names.op, lambda value: map(int, value.split(b",")))
        parts = stages(
            [
                Times(since, ends[offset], ops[offset], at)
                for offset, since, at in zip(half_offsets, decided, seen, strict=True)
            ]
        )
        # All are commits, so a Kafka transaction has one record of OP. No two of them are within a millisecond.
        return {**parts, TRANSACTIONS: len(set(ops.values())) / (max(seen) - min(decided))}

    def _append_times(self, topic: str, entries: Callable[[bytes], Iterable[int]]) -> dict[int, float]:
        """Append time of the record that names each half offset (monotonic, s)."""
        found: dict[int, float] = {}
        for message in self._bridge.read(topic, committed=False):
            if message.offset() >= self._starts[topic]:
                at = message.timestamp()[1] / 1e3 + _CUT_OFF_S - self._wall
                for offset in entries(message.value() or b""):
                    found.setdefault(offset, at)
        return found


class Times(NamedTuple):
    """Times of one transaction (s)."""

    decided: float
    end_stored: float
    #: Equal for all transactions of one Kafka transaction.
    op_stored: float
    seen: float


def stages(transactions: Sequence[Times]) -> Found:
    """Average duration of each stage (ms)."""
    seen_first: dict[float, float] = {}
    for one in transactions:
        seen_first[one.op_stored] = min(one.seen, seen_first.get(one.op_stored, one.seen))
    in_order = sorted(seen_first)
    before = {later: seen_first[earlier] for earlier, later in pairwise(in_order)}
    # The worker cannot begin before its decision is stored and the previous Kafka transaction is finished.
    begun = [min(max(one.end_stored, before.get(one.op_stored, one.end_stored)), one.op_stored) for one in transactions]
    return {
        _WHOLE: _mean_ms(one.seen - one.decided for one in transactions),
        _STORED: _mean_ms(one.end_stored - one.decided for one in transactions),
        _WAITED: _mean_ms(at - one.end_stored for at, one in zip(begun, transactions, strict=True)),
        _WRITTEN: _mean_ms(one.op_stored - at for at, one in zip(begun, transactions, strict=True)),
        _SEEN: _mean_ms(one.seen - one.op_stored for one in transactions),
    }


def scrape(port: int) -> Scraped:
    """The metrics without labels of the worker with this port."""
    families = text_string_to_metric_families(http.ask(f"http://127.0.0.1:{port}/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def registrations(before: Scraped, after: Scraped) -> Found:
    """Requests of the worker's Kafka transactions to their coordinator between two readings of its metrics."""

    def more(name: str) -> float:
        return after[name] - before[name]

    transactions = more("txbridge_commit_seconds_count")
    return {
        "AddPartitionsToTxn, each Kafka transaction": more("txbridge_registrations_total") / transactions,
        "CONCURRENT_TRANSACTIONS, each Kafka transaction": more("txbridge_concurrent_transactions_total")
        / transactions,
    }


def _mean_ms(seconds: Iterable[float]) -> float:
    return fmean(seconds) * 1e3
