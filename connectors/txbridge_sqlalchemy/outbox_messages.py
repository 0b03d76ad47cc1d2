"""The messages that are made of an outbox's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from txbridge import Message
from txbridge.client.outbox_values import AFTER, EarlierEnd, check_for_outbox, decode_after, decode_headers
from txbridge.core.outbox_progress import message_id
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox_table import IN_BRACES, OutboxTable


class OutboxRow(NamedTuple):
    """A row of an outbox: its message, or the reason why it cannot be sent."""

    id: Any
    #: The id as the progress names it: a number, or text.
    name: int | str
    message: Message | None
    #: Never holds the body of the message.
    reason: str | None
    #: Hash of the identity of the outbox and all that the row has.
    message_id: str
    #: Its place in the order of the rows.
    place: Any
    witness: int
    #: Real topic, if it is known, and the key as the database gave it.
    topic: str | None
    key: Any
    #: ENDs that must be in Kafka before the message is sent; None if it did not wait for Kafka in the outbox.
    after: tuple[EarlierEnd, ...] | None = None

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return 0 if self.message is None else self.message.size


def row_reader(table: OutboxTable, identity: str) -> Callable[[Sequence[Any]], OutboxRow]:
    """A function that reads a row of `OutboxStatements.rows`, in an outbox of this identity."""
    topic_columns, names, secret = table.topic_columns, list(table.header_columns), identity.encode()
    headers_at = 7 + len(topic_columns)
    is_plain = table.topic == f"{{{','.join(topic_columns)}}}"

    def read(row: Sequence[Any]) -> OutboxRow:
        row_id, value, key, headers, timestamp, partition, deliver_at = row[:7]
        id_text, place, witness = row[-3:]
        name = row_id if id_text is None else id_text
        unique = message_id(secret, (name, *row[1:-3]))
        after: tuple[EarlierEnd, ...] | None = None
        topic = None
        try:
            topic = row[7] if is_plain else _fill_in(table.topic, topic_columns, row[7:headers_at])
            pairs = [] if headers is None else decode_headers(headers)
            if pairs and pairs[0][0] == AFTER:
                after = decode_after(pairs.pop(0)[1])
            if names:
                pairs = [*pairs, *zip(names, row[headers_at:-4], strict=True)]
            message = Message(topic, value, key, pairs, ms_of(timestamp), partition, None, ms_of(deliver_at))
            check_for_outbox(message)
        except (UsageError, RecursionError) as error:  # of headers that are nested too deeply
            return OutboxRow(row_id, name, None, str(error), unique, place, witness, topic, key)
        return OutboxRow(row_id, name, message, None, unique, place, witness, topic, key, after)

    return read


def _fill_in(template: str, columns: list[str], values: Sequence[Any]) -> str:
    by_column = dict(zip(columns, values, strict=True))
    for column, value in by_column.items():
        if not isinstance(value, str):
            raise UsageError(f"the column {column}, which names the topic, has no text but {type(value).__name__}")
    return IN_BRACES.sub(lambda found: by_column[found[1]], template)


def ms_of(time: Any) -> Any:
    """A time in ms. One without a zone counts as UTC. All else is checked by Message."""
    if not isinstance(time, datetime):
        return time
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
