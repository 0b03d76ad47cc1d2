"""What the application decides, and how RocketMQ reads its answers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txbridge.client.log import report
from txbridge.client.message import MessageExt
from txbridge.core.end_record import MAX_REMARK, Decision
from txbridge.core.names import short_id


class LocalTransactionState(Enum):
    """What became of a local transaction (RocketMQ's names, its spelling of UNKNOW included)."""

    # Members are unique. Enum hashes their names, in Python.
    __hash__ = object.__hash__

    COMMIT_MESSAGE = Decision.COMMIT
    ROLLBACK_MESSAGE = Decision.ROLLBACK
    #: Not known yet: the worker will ask `check_local_transaction`.
    UNKNOW = Decision.UNKNOWN
    UNKNOWN = UNKNOW


class TransactionListener(ABC):
    """The application's side of its transactions. Methods may be called from several threads at once."""

    @abstractmethod
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState | None:
        """Run the local transaction; called once the half message is stored.

        In the thread that sends; of a submitted message in the pool for those; of an AsyncTransactionProducer in the
        loop's default executor.

        None and an exception count as unknown. The exception is not raised again: it is in the result, and its text
        travels to the worker as remark.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        """Look up what became of the local transaction `message.transaction_id`; called in a thread of the checks.

        Any process of the producer group may be asked, also one that never ran this transaction. None and an exception
        count as unknown: the worker will ask again.
        """


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision as it goes to the worker."""

    state: LocalTransactionState
    remark: str | None = None
    exception: Exception | None = None

    @property
    def decision(self) -> Decision:
        decision: Decision = self.state.value
        return decision


_COMMIT = Outcome(LocalTransactionState.COMMIT_MESSAGE)
_ROLLBACK = Outcome(LocalTransactionState.ROLLBACK_MESSAGE)
UNKNOWN = Outcome(LocalTransactionState.UNKNOW)
_OUTCOMES = {outcome.state: outcome for outcome in (_COMMIT, _ROLLBACK, UNKNOWN)}


def execute(listener: TransactionListener, message: MessageExt, arg: Any) -> Outcome:
    """Run the local transaction. Only what is no Exception (KeyboardInterrupt, SystemExit) gets out."""
    try:
        returned = listener.execute_local_transaction(message, arg)
    except Exception as error:  # noqa: BLE001  whatever the application raises counts as unknown
        return execution_failed(message, error)
    return judged(returned, message, "execute_local_transaction")


def check(listener: TransactionListener, message: MessageExt) -> Outcome:
    """Ask what became of the local transaction; no Exception gets out."""
    try:
        returned = listener.check_local_transaction(message)
    except Exception as error:  # noqa: BLE001  as above
        return check_failed(message, error)
    return judged(returned, message, "check_local_transaction")


def execution_failed(message: MessageExt, error: BaseException) -> Outcome:
    """The local transaction raised: unknown, with RocketMQ's words as remark."""
    report(
        logging.WARNING,
        "local_transaction_raised",
        exception=error,
        transaction=short_id(message.transaction_id),
        topic=message.topic,
    )
    return _failed("executeLocalTransactionBranch exception: ", error)


def check_failed(message: MessageExt, error: BaseException) -> Outcome:
    """The check raised: unknown, with RocketMQ's words as remark."""
    report(
        logging.WARNING,
        "check_local_transaction_raised",
        exception=error,
        transaction=short_id(message.transaction_id),
        topic=message.topic,
        check_times=message.check_times,
    )
    return _failed("checkLocalTransactionState Exception: ", error)


def judged(returned: object, message: MessageExt, method: str) -> Outcome:
    """What a listener method returned. None is unknown in RocketMQ; anything else that is no state is a mistake."""
    if isinstance(returned, LocalTransactionState):
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
    return Outcome(LocalTransactionState.UNKNOW, remark)


def _failed(prefix: str, error: BaseException) -> Outcome:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception of the application may be broken, too
        text = "(its text cannot be had)"
    remark = f"{prefix}{type(error).__name__}: {text}"[:MAX_REMARK]
    return Outcome(LocalTransactionState.UNKNOW, remark, error if isinstance(error, Exception) else None)
