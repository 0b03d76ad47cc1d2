"""The bodies of half messages that stay in memory."""

from __future__ import annotations

import tracemalloc

import pytest

from txbridge.core.half_message import OBJECT_BYTES, HalfMessage, half_headers, parse_half
from txbridge.core.names import Names
from txbridge.kafka.body_cache import BodyCache, read_back
from txbridge.kafka.errors import LogGoneError

#: Memory for a half message of 100 bytes.
ONE = 100 + OBJECT_BYTES


class _AskedError(Exception):
    """Kafka was asked for a body."""


class _Reader:
    """A HALF whose records must not be read."""

    def watermarks(self):
        raise _AskedError


def half(offset: int, size: int = 100) -> HalfMessage:
    return HalfMessage(offset, f"{offset:032}", "group", "real", 0, None, b"v" * size, [], [], size)


@pytest.fixture
def cache() -> BodyCache:
    return BodyCache(2 * ONE + 50, Names(), _Reader())  # type: ignore[arg-type]


def in_memory(cache: BodyCache, offset: int) -> bool:
    try:
        return offset in cache.load([offset])
    except _AskedError:
        return False


def kept(cache: BodyCache, *offsets: int) -> list[int]:
    return [offset for offset in offsets if in_memory(cache, offset)]


def test_what_comes_first_stays_while_it_is_young(cache):
    for offset in (1, 2, 3):
        cache.put(half(offset))
    assert kept(cache, 1, 2, 3) == [1, 2]
    cache.drop([1])
    cache.put(half(4))
    assert kept(cache, 2, 4) == [2, 4]


def test_what_was_parked_makes_room_the_oldest_first(cache):
    cache.put(half(1))
    cache.put(half(2))
    cache.yield_room([1, 2, 77])
    assert kept(cache, 1, 2) == [1, 2]
    cache.put(half(3))
    assert kept(cache, 1, 2, 3) == [2, 3]
    cache.put(half(4))
    cache.put(half(5))
    assert kept(cache, 2, 3, 4, 5) == [3, 4]
    assert cache.bytes == 2 * ONE


def test_what_is_larger_than_all_that_may_be_kept_is_not(cache):
    cache.put(half(1))
    cache.put(half(2, 2 * ONE))
    assert kept(cache, 1, 2) == [1]
    # Nor does it remove bodies that it cannot replace.
    cache.yield_room([1])
    cache.put(half(3, 2 * ONE))
    assert kept(cache, 1, 3) == [1]


def test_one_that_was_decided_after_it_was_parked_makes_room_once(cache):
    cache.put(half(1))
    cache.yield_room([1])
    cache.drop([1])
    for offset in (2, 3, 4):
        cache.put(half(offset))
    assert kept(cache, 2, 3, 4) == [2, 3]
    assert cache.bytes == 2 * ONE


def test_nothing_is_left_of_many_that_were_parked_and_decided(cache):
    for offset in range(10_000):
        cache.put(half(offset))
        cache.yield_room([offset])
        cache.drop([offset])
    assert cache.bytes == 0
    assert len(cache._yielding) < 2_000


def test_what_is_kept_elsewhere_counts_and_drives_out_what_was_parked(cache):
    cache.put(half(1))
    cache.put(half(2))
    assert not cache.reserve(ONE)
    cache.yield_room([1])
    assert cache.reserve(ONE)
    cache.put(half(3))
    assert kept(cache, 1, 2, 3) == [2]
    assert cache.reserve(0)
    cache.put(half(3))
    assert kept(cache, 2, 3) == [2, 3]


@pytest.mark.parametrize("size", [0, 1_000, 20_000])
@pytest.mark.parametrize("more", [0, 3])
def test_it_counts_what_the_bodies_take(size: int, more: int) -> None:
    """Within a third. Without Python's objects, 100,000 small ones took 200 MB of the process, and 22 by its count."""
    cache = BodyCache(10**9, Names(), _Reader())  # type: ignore[arg-type]
    users = [(f"trace{number}", b"t" * 50) for number in range(more)]
    given = half_headers(users, transaction_id="A" * 32, group="orders", real_topic="orders.placed")
    tracemalloc.start()
    for offset in range(1_000, 2_000):
        # New objects, as for each record of Kafka.
        headers = [(name.encode().decode(), value and bytes(bytearray(value))) for name, value in given]
        cache.put(parse_half(offset, offset * 1_000, b"key%d" % offset, bytes(size), headers, Names()))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1 / 1.35 < cache.bytes / taken < 1.35


class _Record:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class _Log:
    """A reader of records 0 to 9,999 without the missing ones. A fetch returns so many of them."""

    topic, partition = "half", 0

    def __init__(self, missing=(), fetch=700, end=10_000) -> None:
        self.low, self._end, self._fetch, self._missing = 0, end, fetch, set(missing)
        #: Retention removes the records below this at the next poll.
        self.soon = 0
        self.position = 0
        self.started: list[int] = []
        self.polls = self.records = 0
        self.stopped = False

    def watermarks(self):
        return self.low, self._end

    def start(self, offset: int) -> None:
        self.position = offset
        self.started.append(offset)

    def stop(self) -> None:
        self.stopped = True

    def poll(self, limit: int, timeout: float):
        self.polls += 1
        self.low = max(self.low, self.soon)
        if self.position < self.low:
            raise LogGoneError("below the log start")
        end = min(self._end, self.position + self._fetch)
        there = [offset for offset in range(self.position, end) if offset not in self._missing][:limit]
        self.records += len(there)
        if there:
            self.position = there[-1] + 1
        return list(map(_Record, there))


def offsets(log: _Log, wanted) -> list[int]:
    return [record.offset() for record in read_back(log, wanted)]  # type: ignore[arg-type]


def test_neighbours_are_read_together_in_the_order_of_offsets():
    log = _Log()
    wanted = [*range(2_000, 4_000), 5, 6]
    assert offsets(log, reversed(wanted)) == [5, 6, *range(2_000, 4_000)]
    assert log.started == [5, 2_000]
    assert log.polls <= 5
    assert log.stopped


def test_no_more_is_read_than_to_the_last_that_is_near():
    log = _Log()
    assert offsets(log, [100, 1_101, 2_103]) == [100, 1_101, 2_103]
    assert log.started == [100, 2_103]
    assert log.records == 1_002 + 1


@pytest.mark.parametrize("fetch", [1, 3, 700])
def test_records_that_are_not_there_are_left_out(fetch):
    log = _Log(missing={11, 13, *range(20, 22)}, fetch=fetch + 2)
    assert offsets(log, [10, 11, 12, 13, 20, 22]) == [10, 12, 22]


def test_what_retention_has_eaten_before_or_meanwhile_is_left_out():
    log = _Log()
    log.low = 50
    assert offsets(log, [10, 49, 50, 51]) == [50, 51]
    log = _Log()
    log.soon = 3_000
    assert offsets(log, [10, 2_999, 3_000, 9_000]) == [3_000, 9_000]
    log = _Log()
    log.soon = 3_000
    assert offsets(log, [10, 2_999]) == []


def test_a_log_that_ends_before_them_is_gone_and_not_eaten():
    class Cut(_Log):
        def poll(self, limit, timeout):
            if self.position >= 100:
                raise LogGoneError("above the log end")
            return super().poll(limit, timeout)

    found = read_back(Cut(end=200, fetch=10), [90, 150])  # type: ignore[arg-type]
    assert next(found).offset() == 90
    with pytest.raises(LogGoneError):
        next(found)


def test_a_broker_that_brings_nothing_is_not_waited_for_for_ever():
    with pytest.raises(TimeoutError, match=r"^offset 9999 of half\[0\] did not come back$"):
        offsets(_Log(end=9_999), [9_998, 9_999])
