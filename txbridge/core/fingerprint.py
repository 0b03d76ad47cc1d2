"""Marks: fingerprints of records in a log. They show that a log was cut and has grown again."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

#: Bytes of a value that are hashed: enough to tell records apart, and few enough for each Kafka transaction.
_MOST = 65_536


class Mark(NamedTuple):
    """The last record that was read of a log, as the checkpoint keeps it."""

    offset: int
    digest: str
    #: Leader epoch of the record, and its append time (ms), if they are known. A leader that was elected after the log
    #: had lost its tail has a higher epoch.
    epoch: int | None = None
    appended: int | None = None


def digest(key: bytes | None, value: bytes | None, transaction_id: str = "") -> str:
    """64 bits of a hash of a record, in hexadecimal."""
    found = blake2b(digest_size=8)
    for part in (key or b"", (value or b"")[:_MOST], transaction_id.encode()):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()
