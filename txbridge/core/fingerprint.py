"""Marks: what stands at an offset of a log. A log that was cut and has grown again is not taken for the same."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

#: Bytes of a body that count: enough to tell records apart, and little to hash with each Kafka transaction.
_MOST = 65_536


class Mark(NamedTuple):
    """The last record that was read of a log, as the checkpoint keeps it."""

    offset: int
    digest: str
    #: Leader epoch of the record, and when it was appended (ms), as far as they are known. A leader that was elected
    #: after the log had lost its tail has a higher epoch.
    epoch: int | None = None
    appended: int | None = None


def digest(key: bytes | None, value: bytes | None, transaction_id: str = "") -> str:
    """Of a record: 64 bits of a hash."""
    found = blake2b(digest_size=8)
    for part in (key or b"", (value or b"")[:_MOST], transaction_id.encode()):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()
