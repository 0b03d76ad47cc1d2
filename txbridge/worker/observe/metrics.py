"""The worker's metrics: all names, labels and buckets, and the events that they count. docs/metrics.md lists them.

Events are counted once for each Kafka transaction, and only after Kafka has committed it. States (open messages, lag,
ownership) are not counted: they are read at every scrape.
"""

from __future__ import annotations

import platform
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import confluent_kafka
from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from txbridge.core.decision_record import GIVE_UP, Source
from txbridge.core.open_messages import OTHER, SLOT_MS, OpenCounts
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import EXPIRED, MAX_CHECKS, MalformedRecord
from txbridge.core.states import RefusalReason, TransactionState
from txbridge.kafka.fenced_producer import Registrations


class BulkHistogram(Collector):
    """A histogram that takes many values in one call.

    prometheus_client's own takes one value at a time, in 1 to 2 microseconds: too slow for 60,000 a second.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = list(bounds)
        #: Number of values by bucket, not cumulative. The last bucket is for values above all bounds.
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe_milliseconds(self, values: list[int]) -> None:
        """Observe many values, for a metric in seconds. Negative ones, from clocks that differ, count as 0."""
        if not values:
            return
        # Values in the order of the messages are almost sorted already, which makes this cheap.
        values = sorted(values)
        below = [bisect_right(values, round(bound * 1000)) for bound in self._bounds]
        total = sum(values) if values[0] >= 0 else sum(value for value in values if value > 0)
        with self._lock:
            before = 0
            for place, upto in enumerate([*below, len(values)]):
                self._counts[place] += upto - before
                before = upto
            self._sum += total / 1000

    def observe_weighted(self, values: Iterable[tuple[float, int]]) -> None:
        """Observe values, each with its number of occurrences. Negative ones count as 0."""
        with self._lock:
            for value, number in values:
                self._counts[bisect_left(self._bounds, value)] += number
                self._sum += max(value, 0.0) * number

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._text)]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets, so_far = [], 0
        for bound, count in zip([*self._bounds, float("inf")], counts, strict=True):
            so_far += count
            buckets.append((floatToGoString(bound), so_far))  # type: ignore[no-untyped-call]
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=total)


class KnownNames:
    """Label values: the first `limit` names keep their own, all later ones share one. Thread-safe.

    Any client that may write to HALF can invent producer groups. Every value of a label costs the worker and Prometheus
    memory for good.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()

    def label(self, name: str) -> str:
        """The label value for this name."""
        if name in self._names:
            return name
        with self._lock:
            label = name if name in self._names or len(self._names) < self._limit else OTHER
            self._names[label] = None
            return label

    @property
    def seen(self) -> list[str]:
        """Every label value so far."""
        return list(self._names)


#: Producer groups with a label value of their own, unless the settings say otherwise.
DEFAULT_MAX_GROUPS = 100
#: A Kafka transaction takes 5 ms on an idle cluster and up to the commit time-out (10 s by default) on a sick one.
_COMMIT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Up to the most that one Kafka transaction takes.
_COMMIT_MESSAGES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
#: From a decision on an idle worker to one that waited for a worker over a weekend.
_VISIBLE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0, 3_600.0)
#: A local transaction of milliseconds, checks after seconds, and then RocketMQ's buckets: 5 s to 24 h.
_FINISH_SECONDS = (0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
#: An idle partition takes less than a second, a million pending messages about ten seconds.
_TAKEOVER_SECONDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
#: Ages of pending messages, oldest first, with the least age (s) of each. They part the first check and its answers,
#: the reaction of a person, a night, and the rest.
_AGES = {"over_24h": 86_400, "6h_to_24h": 21_600, "1h_to_6h": 3_600, "10m_to_1h": 600, "1m_to_10m": 60, "under_1m": 0}


#: Everything that can go wrong, as names of log events, which docs/logs.md explains.
CAUSES = (
    "check_refused",
    "end_not_readable_by_faust",
    "faust_crashed",
    "fenced",
    "hanging_transaction",
    "no_slot",
    "internal_topic_refused",
    "kafka_unavailable",
    "outcome_learnt",
    "outcome_unknown",
    "records_timed_out",
    "refused",
    "reply_refused",
    "topics_changed",
    "transaction_aborted",
    "transactional_decisions",
    "transactional_half_messages",
    "unexpected_error",
)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Facts that an owner knows of its partition at the moment."""

    partition: int
    serving: bool
    #: Open messages; None until the partition is restored.
    open: OpenCounts | None = None
    #: Records of END that are known and not applied.
    end_lag: int | None = None
    #: Seconds for which checks have been due without a dead group as the reason (CheckWatch).
    checks_overdue: float | None = None
    #: Seconds by which this machine's clock is ahead of the brokers'.
    clock_ahead: float | None = None


class WorkerMetrics:
    """Metrics of one process, in a registry of its own: a program that embeds a worker keeps the global one for itself.

    Thread-safe. `max_groups` bounds the values of the label group.
    """

    def __init__(self, max_groups: int = DEFAULT_MAX_GROUPS) -> None:
        self.registry = registry = CollectorRegistry()
        self.groups = KnownNames(max_groups)
        #: Half partitions of the namespace, on all workers; 0 until they are known.
        self.partitions_found = 0

        def counter(name: str, text: str, *labels: str) -> CounterMetric:
            return CounterMetric(f"txbridge_{name}", text, labels, registry=registry)

        self._decisions = counter("decisions_total", "END entries that were applied", "outcome", "source")
        self._delivered = counter("messages_delivered_total", "Messages that became visible in their real topics")
        self._held = counter("messages_held_total", "Commits whose real topic did not take the message at once")
        self._scheduled = counter("messages_scheduled_total", "Commits that came before the time of their message")
        self._late = BulkHistogram(
            "txbridge_scheduled_lateness_seconds",
            "From the time that a scheduled message names until it is visible",
            _VISIBLE_SECONDS,
        )
        self._refused = counter("end_refused_total", "END entries without effect", "reason", "source")
        self._checks = counter("checks_sent_total", "Check requests to producer groups", "group")
        self._discards = counter("discards_total", "Undecided messages that were given up", "reason")
        self._abandoned = counter(
            "messages_abandoned_total", "Committed messages that an operator or an application has given up"
        )
        self._malformed = counter("malformed_records_total", "Records of HALF and END set aside that are not ours")
        self._copies = counter("copies_total", "Half messages set aside that were stored twice")
        self._errors = counter("errors_total", "What went wrong, by the name of its log event", "cause")
        self._commit = Histogram(
            "txbridge_commit_seconds", "Duration of a Kafka transaction", buckets=_COMMIT_SECONDS, registry=registry
        )
        self._commit_messages = Histogram(
            "txbridge_commit_messages",
            "Half messages that a Kafka transaction decides, checks, holds or discards",
            buckets=_COMMIT_MESSAGES,
            registry=registry,
        )
        self._registrations = counter("registrations_total", "AddPartitionsToTxn requests of Kafka transactions")
        self._concurrent = counter(
            "concurrent_transactions_total",
            "AddPartitionsToTxn requests that came before the last markers were written",
        )
        #: Notes that a partition is served, so many seconds after its take-over began.
        self.taken_over = Histogram(
            "txbridge_takeover_seconds",
            "From the begin of a take-over until the partition is served",
            buckets=_TAKEOVER_SECONDS,
            registry=registry,
        ).observe
        self._visible = BulkHistogram(
            "txbridge_decision_to_visible_seconds",
            "From a commit's append to END until its message is visible; one observation for each message",
            _VISIBLE_SECONDS,
        )
        self._finish = BulkHistogram(
            "txbridge_finish_seconds",
            "From the birth of a half message until it is visible; one observation for each message",
            _FINISH_SECONDS,
        )
        self._ready = Gauge("txbridge_ready", "Whether /readyz says yes", registry=registry)
        build = Gauge(
            "txbridge_build_info", "What runs here; always 1", ["version", "python", "librdkafka"], registry=registry
        )
        build.labels(version("txbridge"), platform.python_version(), confluent_kafka.libversion()[0]).set(1)
        for collector in (self._visible, self._finish, self._late):
            registry.register(collector)
        ProcessCollector(registry=registry)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Create each series at 0. Otherwise Prometheus would not see its first increase, such as the first discard."""
        for source in (Source.CLIENT, Source.CHECK, Source.OPERATOR):
            for outcome in ("commit", "rollback", "unknown"):
                self._decisions.labels(outcome, source.value)
        self._decisions.labels("resume", Source.RESUME.value)
        for source in GIVE_UP:
            self._decisions.labels("abandon", source.value)
        for reason in RefusalReason:
            for source in Source:
                self._refused.labels(reason.value, source.value)
        for why in (MAX_CHECKS, EXPIRED):
            self._discards.labels(why)
        for cause in CAUSES:
            self._errors.labels(cause)

    # --- events, counted after Kafka has committed them -------------------------------------------------------------

    def note_commit(self, draft: Draft, malformed: Iterable[MalformedRecord], seconds: float, now: int) -> None:
        """Count a committed draft. Its Kafka transaction took `seconds`, and `now` is the time (ms) after it."""
        for (source, event), number in (+draft.decisions).items():
            self._decisions.labels(event.value, source.value).inc(number)
        self._delivered.inc(draft.delivered)
        self._visible.observe_weighted(
            [((now - since) / 1000, number) for since, number in draft.delivered_since.items()]
        )
        self._finish.observe_milliseconds([now - born for part in draft.parts for born in part.births])
        self._held.inc(len(draft.held))
        self._scheduled.inc(len(draft.scheduled))
        self._late.observe_milliseconds(
            [now - entry.next_due for entry in draft.deliver if entry.state is TransactionState.SCHEDULED]
        )
        for (reason, by), number in Counter((one.reason.value, one.source.value) for one in draft.refused).items():
            self._refused.labels(reason, by).inc(number)
        for group, number in Counter(entry.group for entry in draft.checks).items():
            self._checks.labels(self.groups.label(group)).inc(number)
        for why, number in Counter(entry.reason for entry in draft.discards).items():
            self._discards.labels(why).inc(number)
        self._abandoned.inc(len(draft.abandoned))
        for record in malformed:
            if record.copy_of is not None:
                self._copies.inc()
            else:
                self._malformed.inc()
        self._commit.observe(seconds)
        self._commit_messages.observe(
            sum(map(len, (draft.rolled_back, draft.held, draft.checks, draft.discards)))
            + sum(len(part.commits) + len(part.rollbacks) for part in draft.parts)
        )

    def note_registrations(self, registrations: Registrations) -> None:
        """Count requests to register partitions: those sent, and those that came too soon."""
        self._registrations.inc(registrations.sent)
        self._concurrent.inc(registrations.concurrent)

    def count_failure(self, cause: str) -> None:
        """Count a failure; `cause` is the name of the log event."""
        self._errors.labels(cause).inc()

    def totals(self) -> dict[str, float]:
        """Totals since the start of the process, by name, for the status page."""
        decided: Counter[str] = Counter()
        for sample in _samples(self._decisions):
            decided[sample.labels["outcome"]] += int(sample.value)
        return {
            "delivered": _sum(self._delivered),
            "committed": decided["commit"],
            "rolled_back": decided["rollback"],
            "checks": _sum(self._checks),
            "discarded": _sum(self._discards),
            "refused": _sum(self._refused),
            "errors": _sum(self._errors),
        }

    # --- states, read at every scrape -------------------------------------------------------------------------------

    def watch_partitions(
        self, partitions: Callable[[], list[PartitionFacts] | None], is_ready: Callable[[], bool]
    ) -> None:
        """Set the sources of the states; to be called once. `partitions` returns None while they are not known."""
        self._ready.set_function(lambda: float(is_ready()))
        self.registry.register(_States(partitions, self.groups, lambda: self.partitions_found))


def _samples(counter: CounterMetric) -> list[Sample]:
    return [one for metric in counter.collect() for one in metric.samples if one.name.endswith("_total")]


def _sum(counter: CounterMetric) -> float:
    return sum(one.value for one in _samples(counter))


def brokers_now(facts: Iterable[PartitionFacts], own: int) -> int:
    """The brokers' time (ms), as far as it is known, when this machine's is `own`: births are by the brokers' clock."""
    ahead = next((one.clock_ahead for one in facts if one.clock_ahead is not None), 0.0)
    return own - int(ahead * 1000)


#: The gauges of each partition: text, and value; None where it is not known.
_OF_PARTITIONS: dict[str, tuple[str, Callable[[PartitionFacts], float | None]]] = {
    "partition_owned": ("Assigned to this worker", lambda _: 1),
    "partition_serving": ("Restored and served", lambda one: float(one.serving)),
    "end_lag_records": ("END records not applied yet", lambda one: one.end_lag),
    "checks_overdue_seconds": (
        "For how long checks have been due that no dead group explains",
        lambda one: one.checks_overdue,
    ),
    "clock_ahead_seconds": ("This machine's clock against the brokers'", lambda one: one.clock_ahead),
}


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"txbridge_{name}", text, labels=labels)


class _States(Collector):
    """Gauges of the owners' facts, computed at every scrape."""

    def __init__(
        self, partitions: Callable[[], list[PartitionFacts] | None], groups: KnownNames, found: Callable[[], int]
    ) -> None:
        self._partitions = partitions
        self._found = found
        self._groups = groups

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that no owner is asked at the registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        answer = self._partitions()
        facts = answer or []
        total = _gauge("partitions", "Half partitions of the namespace")
        if found := self._found():
            total.add_metric([], found)
        yield total
        for name, (text, value_of) in _OF_PARTITIONS.items():
            family = _gauge(name, text, "partition")
            for one in facts:
                if (value := value_of(one)) is not None:
                    family.add_metric([str(one.partition)], value)
            yield family
        yield self._of_partitions(facts)
        # Unknown is not zero: with one partition unknown, no sum is true.
        counts = [one.open for one in facts if one.open is not None]
        is_known = answer is not None and len(counts) == len(facts)
        yield from self._open_messages(counts if is_known else None, brokers_now(facts, time.time_ns() // 1_000_000))

    @staticmethod
    def _of_partitions(facts: list[PartitionFacts]) -> Metric:
        """Open messages of each partition, as far as they are known."""
        family = _gauge("partition_half_messages", "Open half messages of a partition", "partition", "state")
        for one in facts:
            if one.open is not None:
                for state, number in one.open.by_state().items():
                    family.add_metric([str(one.partition), state.value], number)
        return family

    def _open_messages(self, counts: list[OpenCounts] | None, now: int) -> Iterator[Metric]:
        """Open messages of all partitions, by group, state and age; no sample when they are not known."""
        states = {state: Counter[str]() for state in TransactionState if state.is_open}
        ages = {name: Counter[str]() for name in _AGES}
        names = list(_AGES)
        # The age of a slot is that of its end, so that no age is exaggerated. `edges` has the last slot number of each
        # age.
        edges = [(now - least * 1000) // SLOT_MS - 1 for least in list(_AGES.values())[:-1]]
        oldest: dict[str, float] = {}
        for count in counts or ():
            for group, slots in count.pending.items():
                label = self._groups.label(group)
                by_age = [0] * len(names)
                # With a message in each slot of 72 h this runs 26,000 times for a group: nothing more belongs in here.
                for slot, number in slots.items():
                    by_age[bisect_left(edges, slot)] += number
                for name, number in zip(names, by_age, strict=True):
                    ages[name][label] += number
                states[TransactionState.PENDING][label] += sum(by_age)
                age = max(0, now - (min(slots) + 1) * SLOT_MS) / 1000
                oldest[label] = max(oldest.get(label, 0.0), age)
            for (group, state), number in count.others.items():
                states[state][self._groups.label(group)] += number
        # A group without open messages is 0, instead of vanishing from the graphs.
        groups = self._groups.seen if counts is not None else []
        half = _gauge("half_messages", "Open half messages", "group", "state")
        pending = _gauge("half_messages_pending", "Undecided half messages by age", "group", "age")
        oldest_age = _gauge("half_oldest_pending_seconds", "Age of the oldest undecided half message", "group")
        for group in groups:
            for state, by_group in states.items():
                half.add_metric([group, state.value], by_group[group])
            for age_name, by_group in ages.items():
                pending.add_metric([group, age_name], by_group[group])
            oldest_age.add_metric([group], oldest.get(group, 0.0))
        yield from (half, pending, oldest_age)
