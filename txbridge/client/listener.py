"""Listener interface of the application, and the evaluation of its answers by RocketMQ's rules."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from txbridge.client.base.log import report
from txbridge.client.message import MessageExt
from txbridge.core.decision_record import MAX_REMARK, Decision
from txbridge.core.names import short_id

if TYPE_CHECKING:
    from txbridge.client.forwarding import Forwarding


class LocalTransactionState(Enum):
    """Outcome of a local transaction. The names are RocketMQ's, including the spelling UNKNOW."""

    # Members are unique, so identity is enough. Enum hashes their names, in Python code.
    __hash__ = object.__hash__

    COMMIT_MESSAGE = Decision.COMMIT
    ROLLBACK_MESSAGE = Decision.ROLLBACK
    #: Not known yet: the worker will ask `check_local_transaction`.
    UNKNOW = Decision.UNKNOWN
    UNKNOWN = UNKNOW


class SendStatus(Enum):
    """RocketMQ's SendStatus. Its other states (a late flush, a late replica) do not exist with acks=all."""

    #: Kafka has stored the half message.
    SEND_OK = "SEND_OK"
    #: The message is in the outbox of the listener, committed with the local transaction. A relay sends it.
    STORED = "STORED"


class TransactionListener(ABC):
    """Your code: it runs local transactions and looks them up. Several threads may call it at the same time."""

    #: How its messages are stored while Kafka is away; None if they are not. A listener that wraps one of txbridge's
    #: passes its value on.
    forwarding: Forwarding | None = None

    @abstractmethod
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | SendStatus | None:
        """Run the local transaction. It is called when Kafka has stored the half message.

        It runs in the thread that sends. For a submitted message it runs in `execute_executor` or the producer's pool,
        for an AsyncTransactionProducer in the loop's default executor.

        None and an exception count as unknown. The exception is not raised again: the result has it as
        `local_exception`, and its text goes to the worker as the remark.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        """Look up the outcome of the local transaction `message.transaction_id`.

        It runs in `check_executor` or the producer's pool, for an AsyncTransactionProducer in the loop's default
        executor. The worker may ask any process of the producer group, even one that never ran this transaction. None
        and an exception count as unknown, and the worker will ask again.
        """

    def barrier_id(self) -> str | None:
        """Identity of the barrier table for the next half message; None if the listener has none.

        A check carries it as `message.barrier_id`. So a process with another database can tell that it does not know
        the answer. It is called before each half message is prepared, and may raise: then nothing is sent. A listener
        that wraps one of txbridge's passes its value on.
        """
        return None


@dataclass(frozen=True, slots=True)
class ListenerOutcome:
    """A decision for the worker, with its remark and the exception of the listener."""

    state: LocalTransactionState
    remark: str | None = None
    exception: Exception | None = None
    send_status: SendStatus = SendStatus.SEND_OK

    @property
    def decision(self) -> Decision:
        """What the worker is to do with the half message. The outbox has the message if it is stored there."""
        decision: Decision = self.state.value
        return decision if self.send_status is SendStatus.SEND_OK else Decision.ROLLBACK


#: The outcome of a commit.
COMMIT = ListenerOutcome(LocalTransactionState.COMMIT_MESSAGE)
_ROLLBACK = ListenerOutcome(LocalTransactionState.ROLLBACK_MESSAGE)
UNKNOWN = ListenerOutcome(LocalTransactionState.UNKNOW)
_OUTCOMES: dict[object, ListenerOutcome] = {outcome.state: outcome for outcome in (COMMIT, _ROLLBACK, UNKNOWN)}
_OUTCOMES[SendStatus.STORED] = ListenerOutcome(COMMIT.state, send_status=SendStatus.STORED)


def execute(listener: TransactionListener, message: MessageExt, arg: Any) -> ListenerOutcome:
    """Run the local transaction. Raises only errors that are no Exception: KeyboardInterrupt, SystemExit."""
    try:
        returned = listener.execute_local_transaction(message, arg)
    except Exception as error:  # noqa: BLE001  whatever the application raises counts as unknown
        return execution_failed(message, error)
    return judged(returned, message, "execute_local_transaction")


def check(listener: TransactionListener, message: MessageExt) -> ListenerOutcome:
    """Ask the listener for the outcome of the local transaction. Raises no Exception."""
    try:
        returned = listener.check_local_transaction(message)
    except Exception as error:  # noqa: BLE001  as above
        return check_failed(message, error)
    return judged(returned, message, "check_local_transaction")


def execution_failed(message: MessageExt, error: BaseException) -> ListenerOutcome:
    """Log that the local transaction raised. Returns unknown, with RocketMQ's text as remark."""
    report(
        logging.WARNING,
        "local_transaction_raised",
        exception=error,
        transaction=short_id(message.transaction_id),
        topic=message.topic,
    )
    return _failed("executeLocalTransactionBranch exception: ", error)


def check_failed(message: MessageExt, error: BaseException) -> ListenerOutcome:
    """Log that the check raised. Returns unknown, with RocketMQ's text as remark."""
    report(
        logging.WARNING,
        "check_local_transaction_raised",
        exception=error,
        transaction=short_id(message.transaction_id),
        topic=message.topic,
        check_times=message.check_times,
    )
    return _failed("checkLocalTransactionState Exception: ", error)


def judged(returned: object, message: MessageExt, method: str) -> ListenerOutcome:
    """Return the outcome for the return value of a listener method.

    None is unknown, as in RocketMQ. Any other value that is no state is a mistake of the listener, and is unknown too.
    """
    if isinstance(returned, LocalTransactionState) or returned is SendStatus.STORED:
        return _OUTCOMES[returned]
    if returned is None:
        return UNKNOWN
    remark = f"{method} returned {type(returned).__name__}, not a LocalTransactionState: counted as unknown"
    report(
        logging.ERROR,
        "listener_returned_no_state",
        method=method,
        returned=type(returned).__name__,
        transaction=short_id(message.transaction_id),
        topic=message.topic,
    )
    return ListenerOutcome(LocalTransactionState.UNKNOW, remark)


def _failed(prefix: str, error: BaseException) -> ListenerOutcome:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception of the application may be broken, too
        text = "(its text cannot be had)"
    remark = f"{prefix}{type(error).__name__}: {text}"[:MAX_REMARK]
    return ListenerOutcome(LocalTransactionState.UNKNOW, remark, error if isinstance(error, Exception) else None)
