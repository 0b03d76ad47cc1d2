"""A histogram for a whole Kafka transaction at once, and a bound of label values: what prometheus_client lacks."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from txbridge.core.open_messages import OTHER


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
