"""Calls of the application's check method in threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from txbridge.client.base.log import report
from txbridge.client.base.reentrancy import calling, is_called_by
from txbridge.client.listener import UNKNOWN, ListenerOutcome, TransactionListener, check
from txbridge.core.names import short_id

if TYPE_CHECKING:
    from txbridge.client.checks.request import CheckRequest


class CheckPool:
    """Calls `check_local_transaction` in the user's executor or in a pool of ours (RocketMQ's checkExecutor)."""

    def __init__(self, listener: TransactionListener, executor: Executor | None, max_size: int) -> None:
        self._listener = listener
        self._is_ours = executor is None
        # A pool starts its threads when it is used, so this costs nothing yet.
        self._executor = executor or ThreadPoolExecutor(max_size, thread_name_prefix="txbridge-check-pool")
        self._condition = threading.Condition()
        self._asked = 0
        self._closed = False

    def ask_application(self, request: CheckRequest, answer: Callable[[ListenerOutcome | None], None]) -> None:
        """Ask the application and pass its answer on, or None if its executor refuses.

        After close nothing is answered, so that the request stays in Kafka for another member of the group.
        """
        with self._condition:
            if self._closed:
                return
            self._asked += 1
        try:
            future = self._executor.submit(self._run, request, answer)
        except Exception as error:  # noqa: BLE001  an executor of the user's may refuse as it likes
            report(
                logging.ERROR,
                "check_not_asked",
                exception=error,
                transaction=short_id(request.message.transaction_id),
                next="the worker will ask again",
            )
            answer(None)
            self._count_answer()
        else:
            future.add_done_callback(partial(self._end_check, answer))

    def is_called_by_it(self) -> bool:
        """Whether this code runs in a check method."""
        return is_called_by(self)

    def close(self, timeout: float | None = None) -> None:
        """Start no more checks, and wait up to `timeout` seconds (None: no limit) for the running ones.

        Checks that have not begun stay unanswered.
        """
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: not self._asked, timeout)
        if self._is_ours:
            self._executor.shutdown(wait=False)

    def _run(self, request: CheckRequest, answer: Callable[[ListenerOutcome | None], None]) -> None:
        if self._closed:
            return
        try:
            with calling(self):
                outcome = check(self._listener, request.message)
        except BaseException:
            # SystemExit in a thread of a pool ends nothing. Unknown makes the worker ask again.
            answer(UNKNOWN)
            raise
        answer(outcome)

    def _end_check(self, answer: Callable[[ListenerOutcome | None], None], future: Future[None]) -> None:
        if future.cancelled():
            # The user has shut down the executor.
            answer(None)
        self._count_answer()

    def _count_answer(self) -> None:
        with self._condition:
            self._asked -= 1
            self._condition.notify_all()
