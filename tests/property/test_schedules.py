"""The timer queue against a dictionary, and the effect of END with different cuts into transactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.reference_model import IMMUNITY
from txbridge.core import timer_queue
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision, DecisionEntry, DecisionRecord, Source
from txbridge.core.half_message import HalfMessage
from txbridge.core.half_queue import HalfQueue
from txbridge.core.plan.choice import EndChoice
from txbridge.core.plan.draft import Draft
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
    queue = HalfQueue(CheckPolicy())
    for offset in range(MESSAGES):
        queue.read_half(HalfMessage(offset, f"{offset:032X}", "g", "t", 0, None, b"x" * 100 * offset, ()))
    # Half message 0 stays open, so that the watermark stays below all outcomes.
    delivered: list[int] = []
    rolled_back: list[int] = []
    refused: list[tuple[int, DecisionEntry, str]] = []
    while queue.next_end < len(records):
        draft = Draft(queue, 1_000)
        choice = EndChoice(queue, next(sizes), due=0)
        for record in records[queue.next_end :]:
            part = choice.take_entries(record)
            if part.stop > part.start:
                draft.apply_end(part, lambda entry: None)
            if part.stop < len(record.entries):
                break
        assert (draft.next_end, draft.next_entry) > (queue.next_end, queue.next_entry), "it stands still"
        draft.park_entries(10)
        delivered += [entry.offset for entry in draft.deliver]
        rolled_back += [entry.offset for entry in draft.rolled_back]
        refused += [(one.end_offset, one.entry, one.reason.name) for one in draft.refused]
        for _, offsets in draft.ops():
            queue.ops.note_record(queue.next_end, offsets)
        draft.apply(draft.now)
    return delivered, rolled_back, refused, sorted(entry.offset for entry in queue.open_entries())


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, MESSAGES), st.booleans(), st.sampled_from(Decision)), min_size=1, max_size=3),
        max_size=10,
    ),
    st.lists(st.builds(Limits, st.integers(1, 9), st.integers(1, 700)), min_size=1, max_size=6),
)
def test_p5_p14_where_transactions_are_cut_makes_no_difference(drawn, sizes):
    records = [
        DecisionRecord(
            number,
            "g",
            Source.CLIENT,
            [DecisionEntry(offset, f"{offset if right else 99:032X}", decision) for offset, right, decision in entries],
        )
        for number, entries in enumerate(drawn)
    ]
    whole = run(records, repeat(Limits()))
    assert run(records, cycle(sizes)) == whole
    assert run(records, repeat(Limits(1, 1))) == whole


def test_the_immunity_times_of_the_reference_model_are_those_of_the_protocol():
    policy = CheckPolicy(transaction_max_age=10**12)
    assert {text: policy.first_check(0, text) for text in IMMUNITY} == IMMUNITY
