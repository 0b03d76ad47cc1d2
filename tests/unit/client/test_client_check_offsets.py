"""The offsets up to which checks are processed."""

from __future__ import annotations

from txbridge.client.checks.consumer import CheckOffsets


def test_only_what_has_nothing_unfinished_before_it_is_committed():
    offsets = CheckOffsets()
    taken = {offset: offsets.take_request(0, offset) for offset in (10, 11, 13, 14)}
    assert offsets.to_commit() == {}
    offsets.finish_request(taken[11], 0, 11)
    offsets.finish_request(taken[14], 0, 14)
    assert offsets.to_commit() == {}
    offsets.finish_request(taken[10], 0, 10)
    assert offsets.to_commit() == {0: 12}
    offsets.note_commit({0: 12})
    assert offsets.to_commit() == {}
    offsets.finish_request(taken[13], 0, 13)
    assert offsets.to_commit() == {0: 15}


def test_partitions_are_separate():
    offsets = CheckOffsets()
    first, second = offsets.take_request(0, 5), offsets.take_request(1, 7)
    offsets.finish_request(second, 1, 7)
    assert offsets.to_commit() == {1: 8}
    offsets.finish_request(first, 0, 5)
    assert offsets.to_commit() == {0: 6, 1: 8}


def test_a_partition_that_was_given_away_and_came_back_starts_anew():
    offsets = CheckOffsets()
    old = offsets.take_request(0, 5)
    offsets.drop_partition(0)
    offsets.finish_request(old, 0, 5)
    assert offsets.to_commit() == {}
    again = offsets.take_request(0, 5)
    offsets.finish_request(old, 0, 5)
    assert offsets.to_commit() == {}
    offsets.finish_request(again, 0, 5)
    assert offsets.to_commit() == {0: 6}
    offsets.drop_partition(0)
    offsets.note_commit({0: 6})
    offsets.drop_partition(3)
