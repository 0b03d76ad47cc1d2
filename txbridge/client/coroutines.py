"""Functions of an application that could not be called as they will be: refused before anything is sent."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from txbridge.errors import UsageError


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
