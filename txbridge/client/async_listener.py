"""Listener interface for asyncio, and the calls of its methods from the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from txbridge.client.answers import A, Answer, Committed, G, R
from txbridge.client.coroutines import is_coroutine_function, require_arguments, require_callable
from txbridge.client.listener import Function, ListenerOutcome, LocalTransaction, judged
from txbridge.client.message import MessageExt

if TYPE_CHECKING:
    from txbridge.client.forwarding import Forwarding


#: As listener.Function, which may be a coroutine function here.
AsyncFunction: TypeAlias = (
    Function[A, R, G]
    | Callable[[MessageExt, A], Awaitable[Answer[R] | bool | None]]
    | Callable[[G, MessageExt, A], Awaitable[Committed[R] | bool | None]]
)


class AsyncTransactionListener(ABC, Generic[G]):
    """Your code for asyncio: it runs local transactions and looks them up. Each method may be `async def` or plain.

    A coroutine runs on the event loop. That of a local transaction runs in the task that sends. A plain method runs in
    the loop's default executor with the context variables of the caller, so it never blocks the loop. Several calls may
    run at the same time.
    """

    #: As in TransactionListener.
    forwarding: Forwarding | None = None
    needs_function: bool = False

    @abstractmethod
    def execute_local_transaction(self, message: MessageExt, arg: Any) -> Awaitable[Answer] | Answer:
        """Run the local transaction, and answer as in TransactionListener. Kafka has stored the half message.

        CancelledError is raised to the sender after unknown was sent.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> Awaitable[Answer] | Answer:
        """Look up the outcome of the local transaction `message.transaction_id`, as in TransactionListener."""

    def bind_function(self, function: Callable[..., Any]) -> LocalTransaction:
        """Return the local transaction that runs the function of a send, as in TransactionListener.

        The function may be `async def` or plain, as a method may.
        """
        require_callable(function)
        require_arguments(function, "message", "arg")
        return function

    def barrier_id(self) -> Awaitable[str | None] | str | None:
        """Identity of the barrier table for the next half message, as in TransactionListener. It must not block."""
        return None


#: Gets the future of the thread that still runs the method when a call is cancelled. A thread cannot be cancelled.
LeftRunning = Callable[["asyncio.Future[Any]"], object]


async def call_function(
    run: Callable[..., Any],
    message: MessageExt,
    *more: Any,
    failed: Callable[[MessageExt, BaseException], ListenerOutcome],
    left_running: LeftRunning = lambda _: None,
) -> ListenerOutcome:
    """Call a function of the application. Raises only errors that are no Exception: CancelledError, SystemExit."""
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
    run: Callable[..., Any], arguments: tuple[Any, ...], left_running: LeftRunning
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
