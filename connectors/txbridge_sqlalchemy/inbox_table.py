"""The table of the records that a consumer has worked on, their names, and its upkeep."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, Column, Engine, Index, Integer, MetaData, String, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.util import greenlet_spawn

from txbridge.client.barrier_purge import PURGE_BATCH
from txbridge.client.message import now_ms
from txbridge.core.names import HALF_COORDINATES, OUTBOX_BATCH, UNIQ_KEY, is_transaction_id
from txbridge.errors import UsageError
from txbridge_sqlalchemy.row import Row
from txbridge_sqlalchemy.table import SqlPurgedTable, ddl_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: Separate from `metadata`: a consumer needs no table of transactions, and a producer needs no inbox.
inbox_metadata = MetaData()

#: `i/n`, in records of a transaction with several messages: the i-th of n, from 1.
_MESSAGE = "TXB_MESSAGE"
_OF = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})\Z")
#: Longest name of a consumer, in characters.
MAX_CONSUMER = 100

inbox = Table(
    "txbridge_inbox",
    inbox_metadata,
    Column("consumer", String(MAX_CONSUMER), primary_key=True),
    # A transaction id; or topic (at most 249 characters), partition, offset and time of a record that has none.
    Column("source", String(320), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    # Milliseconds since 1970-01-01 UTC, as everywhere in txbridge.
    Column("created_at", BigInteger, nullable=False),
)
# For the purge.
Index("txbridge_inbox_created_at", inbox.c.created_at)


def inbox_row(consumer: str, name: RecordName) -> Row:
    """The row of a record that this consumer works on."""
    return Row(inbox, {"consumer": consumer, "source": name.source, "number": name.number, "created_at": now_ms()})


def create_inbox_table(engine: Engine) -> None:
    """Create `txbridge_inbox` and its index, unless the table exists."""
    inbox_metadata.create_all(engine)


def inbox_ddl(dialect: Dialect) -> str:
    """The statements that create the table, as text for a migration by hand: `inbox_ddl(engine.dialect)`."""
    return ddl_of(inbox, dialect)


def purge_inbox(engine: Engine, older_than: timedelta, *, batch: int = PURGE_BATCH) -> int:
    """Delete rows of records that cannot be read again, and return how many. Run it once a day or so, from anywhere.

    Args:
        engine: of the database with the table.
        older_than: longer than the retention of the real topics, and longer than any time by which a consumer group is
            reset. A record that is read after its row is deleted has its effect again.
        batch: rows of one database transaction, as in `purge`.

    """
    return SqlPurgedTable(engine, inbox).purge_rows(older_than, batch)


async def async_purge_inbox(engine: AsyncEngine, older_than: timedelta, *, batch: int = PURGE_BATCH) -> int:
    """`purge_inbox` for an AsyncEngine. A cancelled call leaves whole batches deleted."""
    return await greenlet_spawn(partial(purge_inbox, engine.sync_engine, older_than, batch=batch))


class RecordName(NamedTuple):
    """Name of a record. It is the same for every copy of a message that txbridge delivered, at any offset."""

    #: The transaction id; of a record that txbridge has not delivered, its coordinates.
    source: str
    #: Number of the message within its transaction, from 1.
    number: int


def name_of(record: Any) -> RecordName:
    """Name a record of confluent-kafka, aiokafka or kafka-python.

    Raises UsageError if it is no record.
    """
    error = getattr(record, "error", None)
    if callable(error) and error() is not None:
        raise UsageError(
            f"this is not a record but an error of the consumer, which the application has to handle: {error()}"
        )
    try:
        headers = _read(record, "headers") or ()
        ours = _ours(headers)
        if ours is not None:
            return ours
        topic, partition, offset = (_read(record, name) for name in ("topic", "partition", "offset"))
        timestamp = _read(record, "timestamp")
    except (AttributeError, TypeError, ValueError):
        raise UsageError(
            f"a record of confluent-kafka, aiokafka or kafka-python is needed, not {type(record).__name__}"
        ) from None
    if isinstance(timestamp, tuple):
        timestamp = timestamp[1]
    # With the time, because a topic that was deleted and created again has other records at the same offsets.
    return RecordName(f"{topic}:{partition}:{offset}@{max(timestamp or 0, 0)}", 1)


def _read(record: Any, name: str) -> Any:
    """Read a field: a method in confluent-kafka, an attribute in the others."""
    found = getattr(record, name)
    return found() if callable(found) else found


def _ours(headers: Iterable[tuple[str, bytes | None]]) -> RecordName | None:
    """The name of a record that txbridge delivered, else None. Others may have one of these headers by chance."""
    values: dict[str, list[bytes | None]] = {name: [] for name in (UNIQ_KEY, HALF_COORDINATES, OUTBOX_BATCH, _MESSAGE)}
    for name, value in headers:
        if name in values:
            values[name].append(value)
    # By a worker, or by a relay.
    if len(values[UNIQ_KEY]) != 1 or len(values[HALF_COORDINATES]) + len(values[OUTBOX_BATCH]) != 1:
        return None
    transaction_id = _text(values[UNIQ_KEY][0])
    if not is_transaction_id(transaction_id):
        return None
    if not values[_MESSAGE]:
        return RecordName(transaction_id, 1)
    place = _OF.match(_text(values[_MESSAGE][0])) if len(values[_MESSAGE]) == 1 else None
    if place is None or int(place[1]) > int(place[2]):
        return None
    return RecordName(transaction_id, int(place[1]))


def _text(value: bytes | None) -> str:
    return (value or b"").decode("ascii", "replace")
