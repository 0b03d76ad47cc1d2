"""Prometheus metrics of clients, which are optional. docs/metrics.md lists them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.errors import PrepareError
from txbridge.client.message import Message
from txbridge.client.prepare.half_writer import Report
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.decision_record import Source
from txbridge.errors import needs

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

#: Buckets (s), from an acknowledgement by all replicas in one data centre to the default time-out of 3 s and beyond.
_PREPARE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)
#: Buckets (s), from a statement in a local database to a call without a time-out.
_LOCAL_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0)


class ClientMetrics:
    """Prometheus metrics of all producers of a process that report to one registry; thread-safe.

    Args:
        registry: Your registry, for example `prometheus_client.REGISTRY`. Your application exposes it.

    Raises:
        ValueError: The registry has these metrics already. Pass the first ClientMetrics object on instead.
        LocalProblemError: The extra `metrics` is not installed.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # Imported here, because a client without metrics does not need the library.
        with needs("metrics", "ClientMetrics needs prometheus-client"):
            from prometheus_client import Counter, Histogram  # noqa: PLC0415

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"txbridge_client_{name}", text, ("group", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"txbridge_client_{name}", text, ("group",), buckets=buckets, registry=registry)

        self._prepares = counter("prepares_total", "Half messages, by what became of them", "result")
        self._decisions = counter("decisions_total", "Decisions of local transactions and checks", "outcome", "source")
        self._ends = counter("ends_total", "END commands, by what became of them", "result")
        self._outbox = counter("stored_in_outbox_total", "Transactions stored in the outbox instead of sent")
        self._prepare = histogram(
            "prepare_seconds", "Until Kafka has acknowledged the half message", buckets=_PREPARE_SECONDS
        )
        self._local = histogram(
            "local_transaction_seconds", "From the acknowledgement to the decision", buckets=_LOCAL_SECONDS
        )

    def count_stored(self, group: str) -> Callable[[], object]:
        """Return what counts a transaction of this group that is stored in its listener's outbox."""
        return self._outbox.labels(group).inc

    def of_group(self, group: str) -> GroupMetrics:
        """Return the metrics of a producer of this group."""
        return GroupMetrics(group, self._prepares, self._decisions, self._ends, self._prepare, self._local)


class GroupMetrics:
    """Measures the transactions of one producer; thread-safe."""

    def __init__(
        self,
        group: str,
        prepares: Counter,
        decisions: Counter,
        ends: Counter,
        prepare_seconds: Histogram,
        local_seconds: Histogram,
    ) -> None:
        self._group = group
        # The series are created now, because Prometheus sees an increase only in a series that it has seen before.
        self._stored, self._failed = (prepares.labels(group, result) for result in ("stored", "failed"))
        self._acknowledged, self._given_up = (ends.labels(group, result) for result in ("acknowledged", "given_up"))
        self._prepare_seconds, self._local_seconds = prepare_seconds.labels(group), local_seconds.labels(group)
        self._decisions = decisions
        #: Start time (s) of each running attempt, by transaction id. From the acknowledgement on, the time of that.
        self._prepared: dict[str, float] = {}

    def watch_prepare(self, transaction_id: str, message: Message, on_done: Report) -> tuple[Message, Report]:
        """Return the message, and a report that updates the metrics and calls `on_done`."""
        started = self._prepared[transaction_id] = time.monotonic()

        def report(result: Prepared | PrepareError) -> None:
            now = time.monotonic()
            if isinstance(result, Prepared):
                self._stored.inc()
                self._prepare_seconds.observe(now - started)
                # Not if the caller was interrupted meanwhile, because nothing would remove the entry again.
                if transaction_id in self._prepared:
                    self._prepared[transaction_id] = now
            else:
                self._failed.inc()
            on_done(result)

        return message, report

    def watch_end(self, _partition: int, source: Source, end: Ticket, _checked: object) -> None:
        """Measure a decision whose END is on the way, and the local transaction that is over with it."""
        since = self._prepared.pop(end.entry.transaction_id, None) if source is Source.CLIENT else None
        if since is not None:
            self._local_seconds.observe(time.monotonic() - since)
        self._decisions.labels(self._group, end.entry.decision.name.lower(), source.value).inc()
        end.as_future().add_done_callback(lambda one: (self._given_up if one.exception() else self._acknowledged).inc())

    def forget_attempt(self, transaction_id: str) -> None:
        """Stop measuring an attempt, whatever its outcome."""
        self._prepared.pop(transaction_id, None)
