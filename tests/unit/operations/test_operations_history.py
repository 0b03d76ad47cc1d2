"""The history of a transaction with several messages, and of a scheduled one, built from consumed records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.client_fakes import FakeRecord
from tests.support.open_messages import SCHEDULED
from txbridge.core.half_message import half_headers, parse_half
from txbridge.core.message_frames import FramedMessage, encode_frames
from txbridge.core.names import Names
from txbridge.operations import history

ID = "0123456789ABCDEF0123456789ABCDEF"
DUE = 1_700_003_600_000


def record(offset: int, value: bytes, at: int, **headers: bytes) -> FakeRecord:
    return FakeRecord(offset=offset, value=value, timestamp=at, headers=[("TXB_V", b"1"), *headers.items()])


END = record(7, f"5,{ID},8".encode(), 1_700_000_001_000, PGROUP=b"orders", SOURCE=b"client", CLIENT_ID=b"host-1")
OP = record(3, b"5", DUE + 9, TAGS=b"d", OUTCOME=b"commit")


def several():
    messages = [FramedMessage(topic, b"k", b"v", []) for topic in ("orders.placed", "mail", "orders.placed")]
    headers = half_headers([], transaction_id=ID, group="orders", real_topic="orders.placed")
    headers += [("TXB_MESSAGES", b"3"), ("TXB_DELIVER_AT", b"%d" % DUE)]
    return parse_half(5, 1_700_000_000_000, b"k", encode_frames(messages), headers, Names())


@pytest.fixture
def read(monkeypatch):
    """The history of a message, with these records in END and OP, and its open state."""

    class Connection:
        names = Names()

    def read(open_message, end=(), op=()):
        class View:
            def find_open(self, offset):
                assert offset == 5
                return open_message

        records = {Names().end: end, Names().op: op}
        monkeypatch.setattr(history, "_find", lambda _connection, _target: (several(), 2))
        monkeypatch.setattr(history, "read_view", lambda _connection, _partition: View())
        monkeypatch.setattr(
            history,
            "_collect",
            lambda _connection, topic, _partition, _born, look, _missing: (
                step for record in records.get(topic, ()) for step in look(record)
            ),
        )
        monkeypatch.setattr(history, "_now", lambda: 1_700_000_002_000)
        return history.read_history(Connection(), "2:5")  # type: ignore[arg-type]

    return read


def test_several_messages_are_one_history_with_all_topics(read):
    found = read(None, [END], [OP])
    assert (found.partition, found.half_offset, found.short_id) == (2, 5, "01234567")
    assert (found.real_topic, found.state) == ("orders.placed,mail", "delivered")
    assert [(step.at, step.what, step.detail) for step in found.steps] == [
        (1_700_000_000_000, "prepared", f"{several().size} bytes, 3 messages for orders.placed,mail, by group orders"),
        (1_700_000_001_000, "END commit", "client host-1, END offset 7"),
        (DUE + 9, "delivered", "OP offset 3"),
    ]


def test_one_that_is_scheduled_says_when_it_is_to_be_delivered(read):
    found = read(replace(SCHEDULED, deliver_at=DUE), [END])
    assert found.state == "scheduled"
    assert [(step.what, step.detail) for step in found.steps[1:]] == [
        ("END commit", "client host-1, END offset 7"),
        ("not delivered yet", "to be delivered at 2023-11-14T23:13:20.000+00:00"),
    ]


def test_one_that_is_delivered_in_part_says_how_much_and_when_the_next_comes(read):
    found = read(replace(SCHEDULED, deliver_at=DUE, messages=3, delivered=2), [END])
    assert [(step.what, step.detail) for step in found.steps[2:]] == [
        ("not all delivered yet", "2 of 3 delivered, next at 2023-11-14T23:13:20.000+00:00")
    ]


@pytest.mark.parametrize(("source", "state"), [("abandon", "abandoned"), ("cancel", "cancelled")])
def test_one_that_was_cancelled_says_who_did_it_and_why(read, source, state):
    def given_up(offset, by, at, name=ID):
        who = {"PGROUP": b"orders", "SOURCE": by.encode(), "CLIENT_ID": b"alice"}
        return record(offset, f"5,{name},0,,has paid (refused: wrong group)".encode(), at, **who)

    forged = given_up(8, "cancel", 1_700_000_001_400, "F" * 32)
    later = given_up(10, {"abandon": "cancel", "cancel": "abandon"}[source], 1_700_000_001_700)
    op = record(4, b"5", 1_700_000_001_600, TAGS=b"d", OUTCOME=b"abandon")
    found = read(None, [END, forged, given_up(9, source, 1_700_000_001_500), later], [op])
    assert found.state == state
    assert [(step.what, step.detail) for step in found.steps[3:5]] == [
        (f"END {source}", f"{source} alice, END offset 9: has paid (refused: wrong group)"),
        ("abandoned", "OP offset 4"),
    ]
