"""Effects that happen once: a consumer's work and the record's row are one transaction of its database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, sessionmaker

from txbridge.client.barrier_listener import LostTransactionError, RowDecidesError
from txbridge.client.base.log import report
from txbridge.core.names import short_id
from txbridge.errors import UsageError
from txbridge_sqlalchemy.inbox_table import MAX_CONSUMER, RecordName, inbox, inbox_row, name_of
from txbridge_sqlalchemy.work import Opener, begin, opener, probe, probe_id

_S = TypeVar("_S", bound=Session)
#: Connection or session that the function gets.
_G = TypeVar("_G")


class Inbox(Generic[_G]):
    """Gives each record of a real topic its effect in one SQL database exactly once, however often it is read.

    Thread-safe. Call `process` for every record, and commit the consumer's offset after it. An offset that lags behind
    only causes repeats, which are skipped. docs/inbox.md has the whole loop.

    Args:
        database: an Engine, or a sessionmaker that is bound to exactly one.
        consumer: name of the consumer that has these effects, 1 to 100 characters. Two services, or two independent
            effects of one, have two names. Never change it: under another name every record is new.

    """

    @overload
    def __init__(self: Inbox[Connection], database: Engine, consumer: str) -> None: ...

    @overload
    def __init__(self: Inbox[_S], database: sessionmaker[_S], consumer: str) -> None: ...

    def __init__(self, database: Engine | sessionmaker[Any], consumer: str) -> None:
        if not isinstance(consumer, str) or not consumer or len(consumer) > MAX_CONSUMER or "\0" in consumer:
            raise UsageError(f"consumer must be a text of 1 to {MAX_CONSUMER} characters, not {consumer!r}")
        self._open = self._make_opener(database)
        self._consumer = consumer
        self._verified = False

    _make_opener: Callable[[Any], Opener] = staticmethod(opener)

    def verify(self) -> None:
        """Make sure that the table exists and that a rollback works.

        The inbox does it before the first record. Call it at start to learn of mistakes earlier, by the errors of
        SqlTransactionListener.verify.
        """
        probe(self._open, inbox_row(self._consumer, RecordName(probe_id(), 1)), lambda _: None)
        self._verified = True

    def process(self, record: Any, work: Callable[[_G, Any], object]) -> bool:
        """Call `work(connection, record)` unless that was done before, and commit its effect with the record's row.

        `work` gets a Session instead of the connection when the inbox was made from a sessionmaker. It leaves commit
        and rollback to the inbox, lets errors of the database through unless a savepoint contains them, and returns
        None. Only its work with this connection happens once.

        While another process works on the same record, this call waits for it, as long as the database allows.

        The record is one of confluent-kafka's, aiokafka's or kafka-python's consumer. Returns True when the work is
        done and committed; False for a repeat, which was skipped.

        Raises:
            UsageError: this is no record, or `work` returned something; nothing was committed.
            LostTransactionError: an error that ended the transaction was caught by `work`, or `work` has rolled it
                back, or COMMIT had no effect; nothing was committed.
            Exception: an exception of `work` or the database, after the rollback. The record has no row, so it is
                processed when it is read again. If COMMIT was not answered, only the database has the outcome. Reading
                the record again finds it.

        """
        name = name_of(record)
        if not self._verified:
            self.verify()
        row = inbox_row(self._consumer, name)
        try:
            with begin(self._open, inbox) as open_work:
                # The row comes first: another process with this record waits here, and SQLite locks where it can wait.
                open_work.write_row(row)
                _refuse_returned(work(cast(_G, open_work.given), record))
                if open_work.is_over():
                    raise LostTransactionError(_ENDED)  # noqa: TRY301  what the block must see
        except RowDecidesError:
            report(
                logging.INFO,
                "inbox_repeat_skipped",
                consumer=self._consumer,
                record=name.source if ":" in name.source else short_id(name.source),
                number=name.number,
            )
            return False
        except LostTransactionError:
            # Only the table has the outcome.
            with begin(self._open, inbox) as asking:
                is_done = row.is_there(asking.connection)
            if not is_done:
                raise
        return True


_ENDED = (
    "the function has rolled the transaction back itself: nothing that it did has taken effect. To give "
    "a record up, raise an exception"
)


def _refuse_returned(returned: object) -> None:
    """Raise UsageError unless the function has returned None. A coroutine would not run, but its row be written."""
    if returned is not None:
        if hasattr(returned, "close") and hasattr(returned, "cr_frame"):
            returned.close()
        raise UsageError(
            f"the function of an inbox returns None, not {type(returned).__name__}: rolled back. A coroutine function "
            "takes an AsyncInbox; to give a record up, raise an exception"
        )
