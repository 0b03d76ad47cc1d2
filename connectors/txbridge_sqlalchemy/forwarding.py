"""Store and forward: a message takes the direct way by Kafka, or that of the outbox while Kafka is away.

A listener with an outbox has these rules:

1. If its client knows that Kafka is away, or Kafka does not acknowledge the half message, the local transaction runs
   without a half message. It writes a row of `txbridge_transactions` with a *new* id, runs the function, and adds the
   message to the outbox.
2. If there is a half message, the local transaction asks first: does the outbox have rows of this key? With one, it
   begins anew as in 1, and the half message is rolled back. ENDs that this process has given up may not be in Kafka. So
   these are sent again. If they are not acknowledged soon, it begins anew as in 1.
3. A row that is stored names the ENDs of its key that this process has sent, and has not seen acknowledged. A relay
   sends these again, and waits until the worker has applied them, and all that is before them in their half partition,
   before it sends the row (half_settling.py).

Why nothing is lost or sent twice: of a message there may be a half message, a row in the outbox, or both. The half
message becomes visible only if a row of `txbridge_transactions` with its id is committed. As the transaction of 1 has
another id, such a row is never committed together with a row of the outbox, and each of the two only with the
application's data.

- The time for the half message is over, and Kafka has stored it: no row has its id, and none ever will. This process
  answers its check with rollback; another one does, once it is older than `patience`.
- The acknowledgement comes late: the attempt is given up, and nobody looks at it any more.
- The process is killed before the COMMIT of 1: neither data nor row is there, and the caller has no answer. After it:
  both are there, and a relay sends the row.
- It is killed between the half message and the COMMIT in 2, or between that and the END: as without an outbox.

Why the order is kept: let M1 and M2 have the same key, and let the transaction of M1 be committed before that of M2
begins.

- Both are stored: that is the order of the outbox.
- M1 is stored, M2 goes directly: M2's question sees M1's row, unless a relay has deleted it. Then M1 is visible.
- M1 goes directly, M2 is stored: if M1's call has returned and was of this process, either its END was acknowledged,
  or M2's row names it. The relay finds both in the half partition of the key, and sends the row once the worker has
  delivered what they decide. M1 of another process counts from the acknowledgement of its END.
- Both go directly: as without an outbox, in the order in which their ENDs come to Kafka. One process sends those of a
  half partition in order, and lets no message go directly while the END of an earlier one is given up.

The question reads what is committed when its statement begins, at READ COMMITTED, or when the transaction's snapshot is
made, by its first statement. Both come after the begin of M2's transaction. At SERIALIZABLE it may conflict with
processes that store. Transactions that overlap have no order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, bindparam, case, func, select

from txbridge import Message, MessageExt
from txbridge.client.forwarding import Forwarding, keys_of
from txbridge.client.listener import Opened
from txbridge.client.outbox_values import EarlierEnd, row_after, row_of_message
from txbridge.errors import UsageError
from txbridge_sqlalchemy.outbox import Outbox
from txbridge_sqlalchemy.outbox_dialects import LOWEST, dialect_of
from txbridge_sqlalchemy.relay_course import OutboxGate
from txbridge_sqlalchemy.relay_sessions import refuse_policies
from txbridge_sqlalchemy.row import ask

#: Rows that the question looks at. While more wait, each message is stored: relays need seconds for them.
_MOST_ROWS = 1_000
#: Seconds that a local transaction waits for an END that is sent again. Kafka takes some milliseconds; if it needs
#: longer, it is about to be known as away.
_SETTLE_S = 2.0
#: Seconds between two looks at the writers of the outbox, each of 0.2 ms.
_LOOK_EVERY_S = 1.0
_HIGHEST = 2**63 - 1

#: Waits for futures, up to so many seconds.
WaitFor = Callable[[Collection[Future[None]], float], object]


class Known(NamedTuple):
    """What transactions that begin later may rely on."""

    #: The id before which the outbox has no row, and gets none any more.
    first: int = LOWEST
    #: The id up to which they see every row that there will ever be (relay_course.py); None if there is none.
    bound: int | None = None


class StoreInsteadError(Exception):
    """A message must not go directly, because an earlier one of its key may not have come to Kafka yet."""


class SqlForwarding(Forwarding):
    """The outbox of a listener, and the question whether a message may pass it by. Thread-safe."""

    def __init__(self, outbox: Outbox, wait_for: WaitFor) -> None:
        super().__init__()
        if not isinstance(outbox, Outbox):
            raise UsageError(f"outbox must be an Outbox, as in outbox=Outbox(), not {outbox!r}")
        self._outbox = outbox
        self._wait_for = wait_for
        #: Read before a transaction begins, and given to its question, which must not know more.
        self.known = Known()
        #: A look at the writers, if the database can say who they are.
        self._look: Executable | None = None
        self._gate = OutboxGate()
        self._looking = threading.Lock()
        self._look_at = 0.0
        rows = outbox.table.rows
        # By the id: its index soon leaves out what relays have deleted, while the table keeps it until a VACUUM. The
        # first one that may be there leaves out what an old snapshot keeps in the index. With an upper end, too,
        # PostgreSQL takes the index also before its first ANALYZE. Rows with a time have no order.
        are_waiting = (rows.c.id.between(bindparam("first"), _HIGHEST), rows.c.deliver_at.is_(None))
        waiting_ones = select(rows.c.id, rows.c.key).where(*are_waiting)
        first = waiting_ones.order_by(rows.c.id).limit(_MOST_ROWS).subquery("first_ones")
        of_key = func.max(case((first.c.key == bindparam("key"), 1), else_=0))
        self._question = select(func.count(), func.coalesce(of_key, 0), func.min(first.c.id)).select_from(first)

    def verify(self, connection: Connection) -> None:
        """Make sure that the table is there. Raises as SqlTransactionListener.verify."""
        refuse_policies(connection, "LOCAL")
        ask(connection, self._question, {"key": b"", "first": LOWEST}).all()
        gate = dialect_of(connection.dialect).gate(self._outbox.table.rows.c.id, self._outbox.table.state)
        self._look = None if gate is None else gate.drawn

    def require_direct(self, connection: Connection, message: MessageExt, known: Known) -> None:
        """Return once the message may go directly. Raises StoreInsteadError if it has to be stored.

        `known` is from before the transaction.
        """
        if not self.group:
            raise UsageError(
                "the producer does not know of this listener's outbox: a listener that wraps it has to pass its "
                "attribute `forwarding` on"
            )
        if not keys_of(message):
            return
        row = ask(connection, self._question, {"key": message.key, "first": known.first}).one()
        number, of_key, lowest = tuple(row)
        self._learn(connection, known, lowest)
        if of_key or number == _MOST_ROWS or (number and len(message.messages) > 1):
            raise StoreInsteadError
        ends = self.settle_ends()
        if ends:
            self._wait_for(ends, _SETTLE_S)
            if not all(end.done() and end.exception() is None for end in ends):
                raise StoreInsteadError

    def _learn(self, connection: Connection, known: Known, lowest: int | None) -> None:
        """Learn from a question that had `known`, and from a look at the writers if it is time for one."""
        first, bound = known
        if bound is not None:
            first = bound + 1 if lowest is None else min(lowest, bound + 1)
        if self._look is None or not self._looking.acquire(blocking=False):
            return
        try:
            if self._look_at < (now := time.monotonic()):
                self._look_at = now + _LOOK_EVERY_S
                # Who comes later draws a higher id than the last one, which therefore stands for the newest row.
                drawn, writers = connection.execute(self._look).first() or (None, ())
                if drawn is None or drawn < first - 1:
                    # Somebody has set the sequence back, or may.
                    first, self._gate = LOWEST, OutboxGate()
                else:
                    self._gate.note_look(drawn, writers)
            self.known = Known(first, self._gate.bound)
        finally:
            self._looking.release()

    def store_messages(self, connection: Connection, opened: Opened[Any]) -> None:
        """Write the messages that the body has added to the outbox, after those that have no half message."""
        messages = opened.added or []
        if not opened.message.has_half:
            messages = [*opened.message.messages, *messages]
        if messages:
            self._outbox.write_rows(connection, [self._row_of(one) for one in messages])

    def _row_of(self, message: Message) -> dict[str, object]:
        if not self.has_kafka:
            return row_of_message(message)
        return row_after(message, [EarlierEnd(self.group, *half) for half in self.list_open(keys_of(message))])
