"""Prometheus metrics of a relay. docs/metrics.md lists them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy.exc import SQLAlchemyError
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.relay import Relay

from txbridge.log import get_logger

_log = get_logger("txbridge.relay")

#: Seconds between two counts of the rows that wait. A count reads the whole table, so a slow one is followed by a pause
#: of so many times its duration.
_COUNT_EVERY_S = 5.0
_RARELY = 20
#: Seconds after which a refused row is forgotten: the relay meets it again every minute while it is there.
_REFUSED_FOR_S = 90.0


class RelayMetrics:
    """Counts what a relay does, and how much is left to do. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"txbridge_relay_{name}", text, registry=registry)

        self._sent = Counter("txbridge_relay_rows_sent_total", "Rows that were sent and deleted", registry=registry)
        batches = Counter(
            "txbridge_relay_batches_total", "Batches, by what became of them", ["outcome"], registry=registry
        )
        # The series are created now, because Prometheus sees an increase only in a series that it has seen before.
        self._batches = {outcome: batches.labels(outcome) for outcome in ("committed", "rolled_back")}
        self._waiting = gauge("rows_waiting", "Rows in the outbox")
        self._oldest = gauge("oldest_row_seconds", "Age of the oldest row in the outbox; 0 without one")
        self._lanes = gauge("lanes", "Lanes that this relay holds")
        self._ready = gauge("ready", "Whether rows are sent, here or by the relays that hold the other lanes")
        gauge("rows_refused", "Rows of this relay's lanes that cannot be sent").set_function(
            lambda: len(self.list_refusals())
        )
        self._refused: dict[tuple[int, Any], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def on_batch(self, outcome: str, rows: int) -> None:
        self._batches[outcome].inc()
        if outcome == "committed":
            self._sent.inc(rows)

    def on_refusal(self, lane: int, row_id: Any, reason: str) -> None:
        is_known = (lane, row_id) in self.list_refusals()
        with self._lock:
            self._refused[lane, row_id] = (time.monotonic(), reason)
        if not is_known:
            _log.error("outbox_row_refused", row=str(row_id), lane=lane, reason=reason, next="it stays in the table")

    def list_refusals(self) -> dict[tuple[int, Any], str]:
        """Rows that cannot be sent, by lane and id, with the reasons."""
        since = time.monotonic() - _REFUSED_FOR_S
        with self._lock:
            self._refused = {row: one for row, one in self._refused.items() if one[0] >= since}
            return {row: reason for row, (_, reason) in self._refused.items()}

    def watch_relay(
        self, relay: Relay, rows: OutboxRows, why_not_ready: Callable[[], list[str]], ended: threading.Event
    ) -> None:
        """Measure this relay until `ended` is set, and count these rows."""
        self._lanes.set_function(lambda: relay.lanes)
        self._ready.set_function(lambda: not why_not_ready())
        threading.Thread(target=self._count_rows, args=(rows, ended), name="txbridge-count", daemon=True).start()

    def _count_rows(self, rows: OutboxRows, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.monotonic()
            try:
                found = rows.count_waiting()
            except SQLAlchemyError:
                # `/readyz` has the reason. An unknown value is not reported as one.
                waiting, oldest = math.nan, math.nan
            else:
                waiting, oldest = found.rows, found.oldest or 0.0
            self._waiting.set(waiting)
            self._oldest.set(oldest)
            ended.wait(max(_COUNT_EVERY_S, _RARELY * (time.monotonic() - began)))
