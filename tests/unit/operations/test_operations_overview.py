"""Open messages by cause."""

from __future__ import annotations

from dataclasses import replace

from tests.support import open_messages
from tests.support.open_messages import HELD
from txbridge.core.states import TransactionState
from txbridge.errors import EnvironmentProblemError
from txbridge.operations import overview
from txbridge.operations.overview import Cause, read_overview
from txbridge.operations.reading import TooMuchToReadError

#: Never overdue.
PENDING = replace(open_messages.PENDING, next_due=None)


class View:
    """The part of a partition's view that is used here."""

    warnings = ("odd",)

    def __init__(self, messages):
        self._messages = messages

    def open_messages(self):
        return iter(self._messages)


class Connection:
    partitions = 3


def test_the_oldest_of_a_cause_are_kept_and_all_are_counted():
    cause = Cause("text", TransactionState.PENDING)
    for born in (50, 10, 40, 20, 30):
        cause.add_message(replace(PENDING, born=born, half_offset=born), 3)
    assert cause.count == 5
    assert [message.born for message in cause.oldest] == [10, 20, 30]


def test_partitions_are_read_one_after_the_other_and_one_that_can_not_be_read_is_named(monkeypatch):
    views = {0: View([PENDING, HELD]), 1: TooMuchToReadError("900,000 records"), 2: View([replace(HELD, partition=2)])}
    told = []

    def read(_connection, partition, _stopping, _most):
        if isinstance(views[partition], Exception):
            raise views[partition]
        return views[partition]

    monkeypatch.setattr(overview.GroupStates, "problem_of", lambda _self, _group: None)
    monkeypatch.setattr(overview, "read_view", read)
    found = read_overview(Connection(), 10, progress=lambda done, of: told.append((done, of)))
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert [(cause.text, cause.count) for cause in found.causes] == [
        ("held for topic orders.placed: topic orders.placed does not exist", 2),
        ("pending, group orders: not asked yet", 1),
    ]
    assert found.total == 3
    assert dict(found.unread) == {1: "900,000 records; `txbridge pending` lists them"}
    assert list(found.warnings) == ["odd", "odd"]
    views[1] = EnvironmentProblemError("no right")
    assert dict(read_overview(Connection(), 10).unread) == {1: "no right"}


def test_invented_causes_share_one_that_says_so(monkeypatch):
    many = [replace(PENDING, group=f"group-{number}", half_offset=number) for number in range(1_000)]
    monkeypatch.setattr(overview.GroupStates, "problem_of", lambda _self, _group: None)
    monkeypatch.setattr(overview, "read_view", lambda *_: View(many))
    found = read_overview(Connection(), 1)
    assert len(found.causes) == 201
    assert found.causes[0].text == "pending: other causes"
    assert found.total == 3_000
