"""The timer queue against a dictionary, and the effect of END with different cuts into transactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.reference_model import IMMUNITY
from tests.support.partition_builder import Partition, end, entry, id_of, offsets
from txbridge.core import timer_queue
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord
from txbridge.core.timer_queue import TimerQueue
from txbridge.core.transaction_size import Limits

MESSAGES = 6


@pytest.fixture(params=[1, 2, 8_192], ids=lambda page: f"pages of {page}", scope="module")
def pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Number of items of a large day that go into the heap at a time."""
    with mock.patch.object(timer_queue, "_PAGE", request.param):
        yield


@pytest.mark.usefixtures("pages")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "push", "repeat", "drop", "take", "peek"]), st.integers(0, 9), st.integers(0, 30)
        ),
        max_size=60,
    ),
)
def test_a_schedule_yields_what_is_due_once_and_in_order(steps):
    dues: dict[int, int] = {}
    schedule = TimerQueue(lambda due, offset: dues.get(offset) == due)
    for what, offset, number in steps:
        expected = [o for _, o in sorted((due, o) for o, due in dues.items() if due <= number)][:offset]
        if what == "push":
            dues[offset] = number
            schedule.push_item(number, offset)
        elif what == "repeat" and offset in dues:
            schedule.push_item(dues[offset], offset)
        elif what == "drop":
            dues.pop(offset, None)
        elif what == "peek":
            assert schedule.peek_due(number, offset) == expected
        elif what == "take":
            assert schedule.take_due(number, offset) == expected
            for taken in expected:
                del dues[taken]
        assert schedule.next_due() == min(dues.values(), default=None)


def run(records: list[DecisionRecord], sizes: Iterator[Limits]) -> tuple:
    """Apply END in Kafka transactions of these sizes; return all outcomes."""
    partition = Partition()
    for offset in range(MESSAGES):
        partition.prepare(offset, size=100 * offset)
    queue = partition.queue
    # Half message 0 stays open, so that the watermark stays below all outcomes.
    delivered: list[int] = []
    rolled_back: list[int] = []
    refused: list[tuple[int, DecisionEntry, str]] = []
    while queue.next_end < len(records):
        limits = next(sizes)
        partition.max_entries, partition.max_bytes = limits.entries, limits.bytes
        draft = partition.draft(1_000, *records)
        assert (draft.next_end, draft.next_entry) > (queue.next_end, queue.next_entry), "it stands still"
        delivered += offsets(draft.deliver)
        rolled_back += offsets(draft.rolled_back)
        refused += [(one.end_offset, one.entry, one.reason.name) for one in draft.refused]
        partition.commit(draft)
    return delivered, rolled_back, refused, offsets(partition.open_entries)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, MESSAGES), st.booleans(), st.sampled_from(Decision)), min_size=1, max_size=3),
        max_size=10,
    ),
    st.lists(st.builds(Limits, st.integers(1, 9), st.integers(1, 700)), min_size=1, max_size=6),
)
def test_p5_p14_where_transactions_are_cut_makes_no_difference(drawn, sizes):
    records = [
        end(number, *[entry(offset, decision, id_of(offset if right else 99)) for offset, right, decision in entries])
        for number, entries in enumerate(drawn)
    ]
    whole = run(records, repeat(Limits()))
    assert run(records, cycle(sizes)) == whole
    assert run(records, repeat(Limits(1, 1))) == whole


def test_the_immunity_times_of_the_reference_model_are_those_of_the_protocol():
    policy = CheckPolicy(transaction_max_age=10**12)
    assert {text: policy.first_check(0, text) for text in IMMUNITY} == IMMUNITY
