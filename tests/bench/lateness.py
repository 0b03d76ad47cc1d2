"""Lateness of messages that name a time: percentiles, a histogram, and the rate of other work. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.bench.measure import percentiles

EARLIEST, LATEST = "ms, earliest", "ms, latest"
#: Upper bounds of the histogram (ms). RocketMQ's timers work in slots of `timerPrecisionMs`: 1,000 or, at least, 100.
_BOUNDS = (10, 20, 50, 100, 200, 500, 1_000, 2_000)
_EARLY = "early"


def extremes(late: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and extremes of these seconds, in ms."""
    return {**percentiles(late), EARLIEST: min(late) * 1e3, LATEST: max(late) * 1e3}


def histogram(late: Iterable[float]) -> dict[str, int]:
    """Number of these seconds in each bucket. Negative ones are early."""
    names = [_EARLY, *(f"to {bound} ms" for bound in _BOUNDS), f"over {_BOUNDS[-1]} ms"]
    counts = dict.fromkeys(names, 0)
    for seconds in late:
        if seconds < 0:
            counts[_EARLY] += 1
            continue
        place = next((place for place, bound in enumerate(_BOUNDS) if seconds * 1e3 <= bound), len(_BOUNDS))
        counts[names[1 + place]] += 1
    return counts


def in_words(counts: Mapping[str, int]) -> str:
    """A histogram in one line, as shares; empty buckets are left out."""
    total = sum(counts.values())
    return ", ".join(f"{name} {count / total:.1%}" for name, count in counts.items() if count)


def rate(seen: Iterable[float], start: float, end: float) -> float:
    """Number of these times per second from `start` on and before `end`."""
    return sum(start <= at < end for at in seen) / (end - start)
