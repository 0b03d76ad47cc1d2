"""Code of the application's in threads and callbacks of ours: what it raises is logged, and ends no thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from txbridge.client.base.log import report

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def may_be_a_signal(error: BaseException) -> bool:
    """Whether a signal's handler may have raised it. Python runs these in the main thread alone."""
    return not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()


def contained(
    step: Callable[_Given, _Answer], event: str = "kafka_callback_raised", level: int = logging.ERROR
) -> Callable[_Given, _Answer | None]:
    """The step, which logs what it raises and returns None then, also for `sys.exit()`."""

    @wraps(step)
    def run(*given: _Given.args, **named: _Given.kwargs) -> _Answer | None:
        try:
            return step(*given, **named)
        except BaseException as error:
            if may_be_a_signal(error):
                raise
            report(level, event, exception=error)
            return None

    return run


class ContainedFuture(Future[_Answer]):
    """A Future whose callbacks are contained. In a plain one, a callback that raises SystemExit ends all others."""

    def add_done_callback(self, fn: Callable[[Future[_Answer]], Any]) -> None:
        """Call `fn` when it is done, as any Future does."""
        super().add_done_callback(contained(fn, "callback_raised"))
