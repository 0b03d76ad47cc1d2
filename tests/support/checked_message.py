"""The message of a check as a client reads it from the group's check topic."""

from __future__ import annotations

from tests.support.client_fakes import FakeRecord
from txbridge import MessageExt
from txbridge.client.checks.calls import parse_check
from txbridge.core.names import Names

ID = "0123456789ABCDEF0123456789ABCDEF"
_BORN = 1_000_000


def checked_message(
    age_s: float = 90.0, barrier_id: str | None = None, *, transaction_id: str = ID, has_birth: bool = True
) -> MessageExt:
    """The message of a check that the broker stored `age_s` seconds after the birth of the message."""
    headers: list[tuple[str, bytes | None]] = [
        ("TXB_V", b"1"),
        ("TRAN_MSG", b"true"),
        ("REAL_TOPIC", b"orders"),
        ("PGROUP", b"group"),
        ("UNIQ_KEY", transaction_id.encode()),
        ("TRANSACTION_CHECK_TIMES", b"3"),
        ("TXB_HALF", b"2:41"),
    ]
    headers += [("TXB_BARRIER", barrier_id.encode())] if barrier_id else []
    headers += [("TXB_BORN", b"%d" % _BORN)] if has_birth else []
    record = FakeRecord(5, 6, _BORN + round(age_s * 1000), b"k", b"v", headers)
    return parse_check(record, "group", Names(), 3).message
