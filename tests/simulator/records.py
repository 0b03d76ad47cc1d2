"""Headers of half messages and of END records by docs/protocol.md, written here without the library's code."""

from __future__ import annotations

Pairs = list[tuple[str, bytes]]


def half_headers(topic: str, group: str, transaction_id: str) -> Pairs:
    return [
        ("TXB_V", b"1"),
        ("TRAN_MSG", b"true"),
        ("REAL_TOPIC", topic.encode()),
        ("PGROUP", group.encode()),
        ("UNIQ_KEY", transaction_id.encode()),
    ]


def end_headers(group: str, source: str = "client") -> Pairs:
    return [("TXB_V", b"1"), ("PGROUP", group.encode()), ("SOURCE", source.encode())]
