"""Records of a relay's progress, and the ids of its messages. docs/protocol.md is the contract.

A batch of rows and the record that names them are one Kafka transaction. So the progress says of each row whether it is
visible: by its id, and by a hash of all that it has, as an id may be given again.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

from txbridge.core.headers import MalformedRecordError
from txbridge.core.json_fields import dump, load, number, short, text

#: Digits of a message's id that the progress names: 64 bits.
_HASH_DIGITS = 16
#: Of marshal: equal values have equal bytes in it, and it knows these types.
_FORMAT = 2
_PLAIN = {int, float, bool, str, bytes, type(None)}


@dataclass(frozen=True, slots=True)
class Ownership:
    """A relay has taken over the outbox. All earlier records of the progress are below this one."""

    owner: str
    #: The last batch whose rows were deleted, as the database said.
    batch: int

    def encode(self) -> bytes:
        """The value of the record."""
        return dump({"owner": self.owner, "batch": self.batch})


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The rows of a batch, which became visible together."""

    batch: int
    #: Hash (`hash_of`) by the row's id: a number, or the database's text of any other type.
    rows: dict[int | str, str]


def encode_batch(batch: int, rows: Iterable[tuple[int | str, str, str]]) -> bytes:
    """The value of the record for rows with these ids, message ids and real topics."""
    topics: dict[str, int] = {}
    named = [[row_id, hash_of(name), topics.setdefault(topic, len(topics))] for row_id, name, topic in rows]
    return dump({"batch": batch, "topics": list(topics), "rows": named})


def decode_progress(value: bytes | None) -> Ownership | BatchProgress:
    """The content of a record. Raises MalformedRecordError."""
    data = load(value or b"")
    try:
        batch = number(data["batch"])
        if "owner" in data:
            return Ownership(text(data["owner"]), batch)
        return BatchProgress(batch, {row_id: text(digest) for row_id, digest, _ in data["rows"]})
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedRecordError(short(error)) from None


def hash_of(message_id: str) -> str:
    """What the progress names of a message's id."""
    return message_id[:_HASH_DIGITS]


def message_id(identity: bytes, parts: Sequence[Any]) -> str:
    """The id of a row's message: a hash of the identity of its outbox and all that the row has.

    So a row that is read twice has one id, and another row that was given the same number has another. Of the form of a
    transaction id.
    """
    try:
        # A format that is the same in all releases of Python. Twice as fast as an own one.
        data = marshal.dumps(cast(Any, parts), _FORMAT)
    except ValueError:
        data = marshal.dumps([part if type(part) in _PLAIN else repr(part) for part in parts], _FORMAT)
    # In front, which with BLAKE2 keeps the secret as well as its `key`, and takes half as long.
    return blake2b(identity + data, digest_size=16).hexdigest().upper()
