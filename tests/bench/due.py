"""Half messages with a time of delivery, scheduled before it comes, and other work while many are due at once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Self

from tests.bench import lateness
from tests.bench.beside import beside
from tests.bench.feed import Feed, LastCheckpoint, say
from tests.bench.reader_process import NamedTimes, ReaderProcess
from tests.support.harness import Bridge, CheckMember, eventually
from txbridge.core import names as header_names

#: Messages that are prepared and then committed. The worker schedules these while the next ones are prepared.
_CHUNK = 50_000
#: Duration of the measurement of commits before the drain, and of the warm-up before that (s).
_BEFORE_S, _WARM_S = 10.0, 5.0
#: A reader goes on until the last message.
_NO_END = 2**62
#: Interval between decisions of the commits beside the drain (s).
_TICK_S = 0.1
#: Messages whose check falls due during the drain, for each half partition.
_CHECKS = 20
#: The rate at which many messages that are due at once should drain (1/s). Checks are due during the time that this
#: takes.
_EXPECTED = 10_000


class HeadstartError(RuntimeError):
    """The first message was due before the last was scheduled: the measurement would include the scheduling."""


class Beside(NamedTuple):
    """Other commits meanwhile: number a second that became visible, and time from prepare to visible of each (s)."""

    rate: float
    late: list[float]


class Drain(NamedTuple):
    """Results with many messages due at once."""

    late: list[float]
    #: Messages a second, from the first due time until the last message was seen.
    rate: float
    #: Messages a second that were prepared, committed and scheduled.
    scheduled_rate: float
    #: Memory of the worker (bytes): before, when all were scheduled, and when all were delivered.
    memory: int
    scheduled_memory: int
    drained_memory: int
    before: Beside
    during: Beside
    #: Delay of the checks that fell due during the drain, by the broker's clock (s).
    checks: list[float]


def headstart_of(count: int) -> float:
    """Seconds that preparing, committing and scheduling so many messages takes."""
    return 5.0 + count / 4_000


def spread(start: int, seconds: float, count: int, now: int) -> list[int]:
    """Whole seconds from `now` until each of `count` times that are spread over `seconds` from `start` on (ms)."""
    return [math.ceil((start + number * seconds * 1_000 / count - now) / 1_000) for number in range(count)]


def commits_beside(found: NamedTimes, start: float, end: float) -> Beside:
    """Rate and delays of the commits that became visible from `start` on and before `end` (ms)."""
    late = [late for late, seen in zip(found.late, found.seen, strict=True) if start <= seen < end]
    assert late, "no commit became visible meanwhile"
    return Beside(lateness.rate(found.seen, start, end) * 1_000, late)


class Due:
    """Measurements with due messages of half partition 0. A reader process sees the delivered ones."""

    def __init__(self, bridge: Bridge, size: int) -> None:
        self._bridge, self._size = bridge, size
        self._feed = Feed(bridge)
        self._real, self._other = (bridge.create_topic(name, partitions=1) for name in ("real", "beside"))
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._seen, self._seen_beside = (
            self._open.enter_context(ReaderProcess(self._bridge.bootstrap_servers, topic))
            for topic in (self._real, self._other)
        )
        self._applied = LastCheckpoint(self._bridge)
        self._open.callback(self._applied.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)

    def late(self, offsets: Sequence[int], headstart: float) -> list[float]:
        """Measure how late each message became visible to a reader (s). They are due `offsets` ms after the first."""
        self._schedule(offsets, headstart, spare=0.0)
        return self._delivered(len(offsets)).late

    def drain(self, count: int, beside_rate: int, headstart: float | None, memory: Callable[[], int]) -> Drain:
        """Measure `count` messages that are due within the same second, while commits and checks go on."""
        before = memory()
        since = time.monotonic()
        offsets = [number * 1_000 // count for number in range(count)]
        spare = _BEFORE_S + _WARM_S
        start = self._schedule(offsets, headstart or headstart_of(count) + spare, spare)
        scheduled, seconds = memory(), time.monotonic() - since
        say(f"all {count:,} are scheduled after {seconds:.0f} s; the first is due in {start / 1e3 - time.time():.0f} s")
        self._seen_beside.expect_times(_NO_END)
        with self._bridge.member("asked") as member:
            _sleep_until(start / 1e3 - spare)
            with beside(partial(self._commit_steadily, beside_rate)):
                asked = self._pending(start, max(1.0, count / _EXPECTED))
                seen = self._delivered(count)
                end = max(seen.seen)
                say(f"all were seen after {(end - start) / 1e3:.1f} s")
                _sleep_until(max(asked.values()) / 1e3)
                eventually(lambda: member.count >= len(asked), 60, "not all checks were sent")
            checks = [(sent - asked[where]) / 1e3 for where, sent in _sent(member)]
        found = self._seen_beside.named_times()
        return Drain(
            late=seen.late,
            rate=count / (end - start) * 1e3,
            scheduled_rate=count / seconds,
            memory=before,
            scheduled_memory=scheduled,
            drained_memory=memory(),
            before=commits_beside(found, start - _BEFORE_S * 1e3, start),
            during=commits_beside(found, start, end),
            checks=checks,
        )

    def _commit_steadily(self, rate: int, ended: threading.Event) -> None:
        """Commit messages without a time of delivery in the other topic. The last one names no time."""
        since, done = time.monotonic(), 0
        while not ended.wait(_TICK_S):
            # Commits that were left out in a slow moment are made up for.
            owed = int((time.monotonic() - since) * rate) - done
            if owed > 0:
                self._commit([(_now(), None)] * owed, self._other)
                done += owed
        self._commit([(0, None)], self._other)

    def _commit(self, times: Iterable[tuple[int, int | None]], topic: str) -> None:
        """Prepare and commit messages: the time that each names in its value, and its time of delivery."""
        prepared: list[tuple[int, str]] = []
        for named, due in times:
            headers = self._bridge.half_headers(topic)
            if due is not None:
                headers.append((header_names.DELIVER_AT, b"%d" % due))
            self._feed.produce((b"%d " % named).ljust(self._size, b"x"), headers, prepared)
        self._feed.flush()
        self._feed.commit(prepared)

    def _schedule(self, offsets: Sequence[int], headstart: float, spare: float) -> int:
        """Have messages scheduled.

        Returns when the first is due (ms). HeadstartError if fewer than `spare` seconds are left.
        """
        start = _now() + int(headstart * 1_000)
        for first in range(0, len(offsets), _CHUNK):
            self._commit(((start + one, start + one) for one in offsets[first : first + _CHUNK]), self._real)
        self._applied.wait("end", self._bridge.bounds(self._bridge.names.end, 0)[1])
        lacks = (_now() - start) / 1_000 + spare
        if lacks > 0:
            raise HeadstartError(
                f"{len(offsets):,} messages were scheduled {lacks:.1f} s too late, with a head start of "
                f"{headstart:.0f} s: give --headstart {math.ceil(headstart + lacks * 1.2)}"
            )
        return start

    def _delivered(self, count: int) -> NamedTimes:
        self._seen.expect_times(count)
        found = self._seen.named_times()
        assert min(found.late) >= 0, "early"
        return found

    def _pending(self, start: int, seconds: float) -> dict[bytes, int]:
        """Prepare undecided messages in both half partitions, whose checks fall due from `start` on.

        Returns due times by coordinates.
        """
        asked: dict[bytes, int] = {}
        for immunity in spread(start, seconds, _CHECKS, _now()):
            for partition in (0, 1):
                now = _now()
                one = self._bridge.prepare(
                    self._other,
                    partition=partition,
                    group="asked",
                    extra=[(header_names.CHECK_IMMUNITY_TIME, b"%d" % immunity)],
                )
                asked[b"%d:%d" % (partition, one.offset)] = now + immunity * 1_000
        return asked


def _sent(member: CheckMember) -> list[tuple[bytes, int]]:
    """Coordinates of each received check, and the time when the broker appended it (ms)."""
    return [
        (dict(message.headers() or ())[header_names.HALF_COORDINATES], message.timestamp()[1])
        for message in member.all_requests()
    ]


def _now() -> int:
    return time.time_ns() // 1_000_000


def _sleep_until(seconds: float) -> None:
    time.sleep(max(0.0, seconds - time.time()))
