"""Listener interfaces of the application, and the evaluation of its answers by RocketMQ's rules."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from txbridge.client.answers import Answer, G, LocalTransactionState, Rollback, SendStatus, Stage, Stored
from txbridge.client.base.log import report
from txbridge.client.message import Message, MessageExt
from txbridge.core.decision_record import MAX_REMARK, Decision
from txbridge.errors import UsageError
from txbridge.masking import masked

if TYPE_CHECKING:
    from txbridge.client.forwarding import Forwarding
import functools

#: Looks a transaction up: whether it is committed, None if nobody knows yet.
Check: TypeAlias = Callable[[MessageExt], bool | None]
_NO_KEYS = "once needs a bridge with SQL, whose table has the keys: one of txbridge_sqlalchemy, or Django's announce"
AsyncCheck: TypeAlias = Check | Callable[[MessageExt], Awaitable[bool | None]]


@dataclass(slots=True)
class Opened(Generic[G]):
    """A local transaction that is open: its function, or the body of an announcement, runs."""

    #: The message. It has no half message if it is stored instead.
    message: MessageExt
    #: What a function gets first: the connection or session of a SQL listener.
    given: tuple[G, ...] = ()
    #: Messages that become rows of the outbox at its end; None without an outbox.
    added: list[Message] | None = None


class TransactionListener(ABC, Generic[G]):
    """Your code: it runs local transactions and looks them up. Several threads may call it at the same time."""

    #: How its messages are stored while Kafka is away; None if they are not. A listener that wraps one of txbridge's
    #: passes its value on.
    forwarding: Forwarding | None = None

    @abstractmethod
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Answer:
        """Run the local transaction of a send. Kafka has stored the half message.

        It runs in the thread that sends; for a submitted message in the producer's pool, for an
        AsyncTransactionProducer in the loop's default executor.

        It returns a state; True commits, and False rolls back. `Rollback` rolls back with a reason. None and any other
        exception count as unknown. The result has the exception as `local_exception`, and the worker its text.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> Answer:
        """Look up the outcome of the local transaction `message.transaction_id`.

        It runs in the producer's pool, for an AsyncTransactionProducer in the loop's default executor. The worker may
        ask any process of the group. After None and an exception it asks again; `Rollback` rolls back with its reason.
        True commits, and False rolls back.
        """

    def open_transaction(self, message: MessageExt) -> AbstractContextManager[Opened[G]]:
        """Return the local transaction around the body of an announcement. Here there is none: the body does it all.

        A listener that wraps one of txbridge's passes the call on.
        """
        return nullcontext(Opened(message))

    def refuse_repeat(self, row_id: str) -> None:  # noqa: ARG002  listeners with SQL use it
        """Raise AlreadyDoneError if a transaction has committed this row of a key. Only listeners with SQL know.

        A listener that wraps one of txbridge's passes the call on.
        """
        raise UsageError(_NO_KEYS)

    def barrier_id(self) -> str | None:
        """Identity of the barrier table for the next half message; None if the listener has none.

        A check carries it as `message.barrier_id`. So a process with another database can tell that it does not know
        the answer. It is called before each half message is prepared, and may raise: then nothing is sent. A listener
        that wraps one of txbridge's passes its value on.
        """
        return None


def opened_by(
    listener: AsyncTransactionListener[G] | TransactionListener[G], message: MessageExt
) -> AbstractAsyncContextManager[Opened[G]]:
    """Return the local transaction of a listener for an event loop. Raises UsageError for one that would block it."""
    opened = listener.open_transaction(message)
    if not isinstance(opened, AbstractAsyncContextManager):
        raise UsageError(f"a transaction of {type(listener).__name__} blocks the event loop: give an AsyncSqlBridge")
    return opened


class CheckFunction(TransactionListener):
    """A listener for announcements that has a function for checks, and no local transactions of its own."""

    def __init__(self, check: AsyncCheck) -> None:
        """Raise UsageError for a function that cannot be called with a message."""
        require_callable(check)
        require_arguments(check, "message")
        self._check = check

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Answer:
        raise NotImplementedError

    def check_local_transaction(self, message: MessageExt) -> Any:
        # On an event loop it may be the coroutine of an answer, which is awaited.
        return self._check(message)


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
UNKNOWN = ListenerOutcome(LocalTransactionState.UNKNOWN)
#: The outcome of a commit whose messages are in the outbox.
STORED = ListenerOutcome(LocalTransactionState.COMMIT_MESSAGE, send_status=SendStatus.STORED)
_OUTCOMES: dict[object, ListenerOutcome] = {
    **{outcome.state: outcome for outcome in (COMMIT, _ROLLBACK, UNKNOWN)},
    True: COMMIT,
    False: _ROLLBACK,
    None: UNKNOWN,
}


def execution_failed(message: MessageExt, error: BaseException, *, is_raised: bool = False) -> ListenerOutcome:
    """Log that the local transaction raised. Returns unknown, with RocketMQ's text as remark.

    Rollback rolls back, unless the listener is not sure of it. Any error does if the listener is.
    """
    stage = message.course.stage
    if isinstance(error, Rollback) and stage in (Stage.BEFORE, Stage.ROLLED_BACK):
        return _refused(error)
    if not (is_raised and stage is Stage.ROLLED_BACK):
        # Else the caller gets it, and nobody has to look into it.
        report(logging.WARNING, "local_transaction_raised", exception=error, **message.log_fields)
    failed = _failed("executeLocalTransactionBranch exception: ", error)
    return replace(failed, state=_ROLLBACK.state) if stage is Stage.ROLLED_BACK else failed


def check_failed(message: MessageExt, error: BaseException) -> ListenerOutcome:
    """Do as `execution_failed`, for a check."""
    if isinstance(error, Rollback):
        return _refused(error)
    report(logging.WARNING, "check_local_transaction_raised", exception=error, **message.log_fields)
    return _failed("checkLocalTransactionState Exception: ", error)


def execute(
    run: Callable[..., Any],
    message: MessageExt,
    *more: Any,
    failed: Callable[[MessageExt, BaseException], ListenerOutcome] = execution_failed,
) -> ListenerOutcome:
    """Call a function of the application. Raises only errors that are no Exception: KeyboardInterrupt, SystemExit."""
    try:
        returned = run(message, *more)
    except Exception as error:  # noqa: BLE001  whatever the application raises is an outcome
        return failed(message, error)
    return judged(returned, message, run)


def judged(returned: object, message: MessageExt, function: Callable[..., Any]) -> ListenerOutcome:
    """Return the outcome for what the application's function has returned.

    None is unknown, as in RocketMQ; True commits, and False rolls back. Any other value that is no answer is a mistake
    of the listener, and is unknown too.
    """
    if isinstance(returned, LocalTransactionState | bool | None):
        return _OUTCOMES[returned]
    if isinstance(returned, Stored):
        return STORED
    method = getattr(function, "__name__", "execute")
    remark = f"{method} returned {type(returned).__name__}, no Boolean and no LocalTransactionState: counted as unknown"
    report(
        logging.ERROR,
        "listener_returned_no_state",
        method=method,
        returned=type(returned).__name__,
        **message.log_fields,
    )
    return ListenerOutcome(LocalTransactionState.UNKNOWN, remark, UsageError(remark))


def text_of(error: BaseException) -> str:
    """Return the text of an exception of the application, without secrets. It may be broken, too."""
    try:
        return masked(str(error))
    except Exception:  # noqa: BLE001  as said
        return "(its text cannot be had)"


def _refused(error: Rollback) -> ListenerOutcome:
    return ListenerOutcome(LocalTransactionState.ROLLBACK_MESSAGE, text_of(error)[:MAX_REMARK] or None, error)


def _failed(prefix: str, error: BaseException) -> ListenerOutcome:
    remark = f"{prefix}{type(error).__name__}: {text_of(error)}"[:MAX_REMARK]
    return ListenerOutcome(LocalTransactionState.UNKNOWN, remark, error if isinstance(error, Exception) else None)


class AsyncTransactionListener(ABC, Generic[G]):
    """Your code for asyncio: it runs local transactions and looks them up. Each method may be `async def` or plain.

    A coroutine runs on the event loop. That of a local transaction runs in the task that sends. A plain method runs in
    the loop's default executor with the context variables of the caller, so it never blocks the loop. Several calls may
    run at the same time.
    """

    #: As in TransactionListener.
    forwarding: Forwarding | None = None

    @abstractmethod
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Awaitable[Answer] | Answer:
        """Run the local transaction, and answer as in TransactionListener. Kafka has stored the half message.

        CancelledError is raised to the sender after unknown was sent.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> Awaitable[Answer] | Answer:
        """Look up the outcome of the local transaction `message.transaction_id`, as in TransactionListener."""

    def open_transaction(self, message: MessageExt) -> AbstractAsyncContextManager[Opened[G]]:
        """Return the local transaction around the body of an announcement, as in TransactionListener."""
        return nullcontext(Opened(message))

    def refuse_repeat(self, row_id: str) -> Awaitable[None] | None:  # noqa: ARG002  as above
        """Raise AlreadyDoneError, as in TransactionListener."""
        raise UsageError(_NO_KEYS)

    def barrier_id(self) -> Awaitable[str | None] | str | None:
        """Identity of the barrier table for the next half message, as in TransactionListener. It must not block."""
        return None


async def call_function(
    run: Callable[..., Any],
    message: MessageExt,
    *more: Any,
    failed: Callable[[MessageExt, BaseException], ListenerOutcome] = execution_failed,
    left_running: Callable[[asyncio.Future[Any]], object] = lambda _: None,
) -> ListenerOutcome:
    """Do as `execute`, without blocking the loop. Raises also CancelledError.

    Then `left_running` gets the future of a thread that still runs the function: a thread cannot be cancelled.
    """
    try:
        if is_coroutine_function(run):
            returned = await run(message, *more)
        else:
            returned, raised = await _in_thread(run, (message, *more), left_running)
            if raised is not None:
                return failed(message, raised)
            if inspect.isawaitable(returned):
                # A plain method that returns the coroutine of another one.
                returned = await returned
    except Exception as error:  # noqa: BLE001  whatever the application raises is an outcome
        return failed(message, error)
    return judged(returned, message, run)


async def _in_thread(
    run: Callable[..., Any], arguments: tuple[Any, ...], left_running: Callable[[asyncio.Future[Any]], object]
) -> tuple[Any, BaseException | None]:
    """Call the function in a thread. Returns its result and its exception."""
    is_cancelled = False

    def call() -> tuple[Any, Exception | None]:
        if is_cancelled:
            # The call was cancelled while it waited for a thread.
            return None, None
        try:
            return run(*arguments), None
        except Exception as error:  # noqa: BLE001  a future does not take every exception (StopIteration)
            return None, error

    in_context = contextvars.copy_context().run
    thread = asyncio.get_running_loop().run_in_executor(None, in_context, call)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        is_cancelled = True
        if not thread.done():
            left_running(thread)
        raise


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine: also for a `functools.partial`, and for an object with such a `__call__`."""
    inner = _unwrapped(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def require_plain(function: Callable[..., Any], instead: str) -> None:
    """Raise UsageError for a coroutine function, whose body would never run. `instead` says what takes it."""
    require_callable(function)
    if is_coroutine_function(function):
        raise UsageError(f"{_name_of(function)} is a coroutine function: {instead}")


def require_coroutine(function: Callable[..., Any], instead: str) -> None:
    """Raise UsageError for a plain function, which would block the loop. `instead` says what takes it.

    A lambda, and a decorator's function around a coroutine function (`functools.wraps`), return its coroutine.
    """
    require_callable(function)
    inner = inspect.unwrap(_unwrapped(function))
    if not (is_coroutine_function(inner) or getattr(inner, "__name__", "") == "<lambda>"):
        raise UsageError(f"{_name_of(function)} is no coroutine function (async def): {instead}")


def require_arguments(function: Callable[..., Any], *names: str) -> None:
    """Raise UsageError if the function cannot be called with these arguments."""
    try:
        # What a decorator has wrapped may get more from it.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        # A built-in one, or a mock, which does not say it.
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise UsageError(f"{_name_of(function)} cannot be called with ({', '.join(names)})") from None


def require_callable(function: object) -> None:
    """Raise UsageError for what cannot be called."""
    if not callable(function):
        raise UsageError(f"a function is needed, not {type(function).__name__}")


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Callable[..., Any]) -> str:
    inner = _unwrapped(function)
    return str(getattr(inner, "__name__", type(inner).__name__))
