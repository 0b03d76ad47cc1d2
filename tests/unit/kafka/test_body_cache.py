"""Which bodies of half messages stay in memory."""

from __future__ import annotations

import pytest

from txbridge.core.half_message import HalfMessage
from txbridge.core.names import Names
from txbridge.kafka.body_cache import BodyCache


class _AskedError(Exception):
    """Kafka was asked for a body."""


class _Reader:
    """HALF as long as nobody reads it."""

    def watermarks(self):
        raise _AskedError


def half(offset: int, size: int = 100) -> HalfMessage:
    return HalfMessage(offset, f"{offset:032}", "group", "real", 0, None, b"v" * size, [])


@pytest.fixture
def cache() -> BodyCache:
    return BodyCache(250, Names(), _Reader())  # type: ignore[arg-type]


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
    assert cache.bytes == 200


def test_what_is_larger_than_all_that_may_be_kept_is_not(cache):
    cache.put(half(1))
    cache.put(half(2, 300))
    assert kept(cache, 1, 2) == [1]
    # Nor does it drive out what it could not replace.
    cache.yield_room([1])
    cache.put(half(3, 300))
    assert kept(cache, 1, 3) == [1]


def test_one_that_was_decided_after_it_was_parked_makes_room_once(cache):
    cache.put(half(1))
    cache.yield_room([1])
    cache.drop([1])
    for offset in (2, 3, 4):
        cache.put(half(offset))
    assert kept(cache, 2, 3, 4) == [2, 3]
    assert cache.bytes == 200


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
    assert not cache.reserve(100)
    cache.yield_room([1])
    assert cache.reserve(100)
    cache.put(half(3))
    assert kept(cache, 1, 2, 3) == [2]
    assert cache.reserve(0)
    cache.put(half(3))
    assert kept(cache, 2, 3) == [2, 3]
