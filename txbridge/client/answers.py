"""Answers of local transactions: RocketMQ's states, a rollback with its reason; their course."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from txbridge.core.decision_record import Decision

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A type checker takes the bare name of a class as one of Any.
    #: The connection or session of a transaction.
    G = TypeVar("G", default=Any, covariant=True)  # noqa: PLC0105
else:
    from typing import TypeVar

    G = TypeVar("G")


class LocalTransactionState(Enum):
    """Outcome of a local transaction. The names are RocketMQ's; its spelling UNKNOW is an alias."""

    # Members are unique, so identity is enough. Enum hashes their names, in Python code.
    __hash__ = object.__hash__
    __repr__ = Enum.__str__

    COMMIT_MESSAGE = Decision.COMMIT
    ROLLBACK_MESSAGE = Decision.ROLLBACK
    #: Not known yet: the worker will ask `check_local_transaction`.
    UNKNOWN = Decision.UNKNOWN
    UNKNOW = UNKNOWN


class SendStatus(Enum):
    """RocketMQ's SendStatus. Its other states (a late flush, a late replica) do not exist with acks=all."""

    __repr__ = Enum.__str__

    #: Kafka has stored the half message.
    SEND_OK = "SEND_OK"
    #: The message is in the outbox of the listener, committed with the local transaction. A relay sends it.
    STORED = "STORED"


class Stored:
    """Answer of a listener with an outbox: it is committed, and the message is stored there."""


class Rollback(Exception):  # noqa: N818  it is a decision, not an error
    """Raised by a local transaction, or by a check, to roll back. Its text is the reason.

    Kafka stores the text with the decision, and operators see it (`txbridge show`).
    """


class RolledBackByCheck(Rollback):
    """Raised by a listener whose local transaction finds that a check has rolled it back already."""


#: What a listener returns. None is unknown, as in RocketMQ; True commits, and False rolls back.
Answer: TypeAlias = LocalTransactionState | Stored | bool | None


class Stage(Enum):
    """A stage of a local transaction."""

    #: The function was not called, or the listener tells nothing.
    BEFORE = auto()
    #: COMMIT was not sent, or the database has refused it.
    OPEN = auto()
    #: It may be over: the function may have ended it by itself.
    ENDED = auto()
    #: COMMIT is sent, and not answered. Only the database has the outcome.
    COMMITTING = auto()
    #: The function has committed it by itself, says the table.
    COMMITTED = auto()
    #: It is rolled back, or will be: nothing can commit it any more.
    ROLLED_BACK = auto()


@dataclass(slots=True)
class Course:
    """The course of the local transaction of a message. Its copies share it."""

    stage: Stage = Stage.BEFORE
    #: Id of the row that its key has (`announce(once=...)`).
    once: str | None = None
