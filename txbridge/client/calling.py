"""Who is being called: a listener method must not wait for the end of its own call, which never comes."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Self


class Calling:
    """While the application is called on behalf of `owner`: `with Calling(owner): ...`.

    Follows the call into coroutines, into the tasks they start and into threads that inherit its context
    (asyncio.to_thread does), where a flag of the thread would be lost.
    """

    __slots__ = ("_token", "active", "outer", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.outer: Calling | None = None
        self.active = False

    def __enter__(self) -> Self:
        # A task that was started in a call may outlive it, and start others: no chain of calls that are over.
        outer = _current.get()
        while outer is not None and not outer.active:
            outer = outer.outer
        self.outer = outer
        self.active = True
        self._token: Token[Calling | None] = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False
        _current.reset(self._token)


def is_called_by(owner: object) -> bool:
    """Whether this code runs in a call on behalf of `owner`, at any depth."""
    call = _current.get()
    while call is not None:
        if call.active and call.owner is owner:
            return True
        call = call.outer
    return False


_current: ContextVar[Calling | None] = ContextVar("txbridge_calling", default=None)
