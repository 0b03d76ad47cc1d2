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
def store() -> BodyCache:
    return BodyCache(250, Names(), _Reader())  # type: ignore[arg-type]


def in_memory(store: BodyCache, offset: int) -> bool:
    try:
        return offset in store.load([offset])
    except _AskedError:
        return False


def kept(store: BodyCache, *offsets: int) -> list[int]:
    return [offset for offset in offsets if in_memory(store, offset)]


def test_what_comes_first_stays_while_it_is_young(store):
    for offset in (1, 2, 3):
        store.put(half(offset))
    assert kept(store, 1, 2, 3) == [1, 2]
    store.drop([1])
    store.put(half(4))
    assert kept(store, 2, 4) == [2, 4]


def test_what_was_parked_makes_room_the_oldest_first(store):
    store.put(half(1))
    store.put(half(2))
    store.yield_room([1, 2, 77])
    assert kept(store, 1, 2) == [1, 2]
    store.put(half(3))
    assert kept(store, 1, 2, 3) == [2, 3]
    store.put(half(4))
    store.put(half(5))
    assert kept(store, 2, 3, 4, 5) == [3, 4]
    assert store.bytes == 200


def test_what_is_larger_than_all_that_may_be_kept_is_not(store):
    store.put(half(1))
    store.put(half(2, 300))
    assert kept(store, 1, 2) == [1]
    # Nor does it drive out what it could not replace.
    store.yield_room([1])
    store.put(half(3, 300))
    assert kept(store, 1, 3) == [1]


def test_one_that_was_decided_after_it_was_parked_makes_room_once(store):
    store.put(half(1))
    store.yield_room([1])
    store.drop([1])
    for offset in (2, 3, 4):
        store.put(half(offset))
    assert kept(store, 2, 3, 4) == [2, 3]
    assert store.bytes == 200


def test_nothing_is_left_of_many_that_were_parked_and_decided(store):
    for offset in range(10_000):
        store.put(half(offset))
        store.yield_room([offset])
        store.drop([offset])
    assert store.bytes == 0
    assert len(store._yielding) < 2_000
