"""A queue in which the owners of what waits take turns: who brings much waits for it alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """Items of owners, each owner's in their order. An item waits once for each owner."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, dict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add_item(self, owner: str, item: T) -> None:
        self._items.setdefault(owner, {})[item] = None

    def pop_item(self, is_ready: Callable[[T], bool] = lambda _: True) -> T | None:
        """Remove the first item of the owner whose turn it is; None if there is none, or it is not ready."""
        for owner, items in self._items.items():
            item = next(iter(items))
            if not is_ready(item):
                return None
            del items[item]
            if items:
                self._items.move_to_end(owner)
            else:
                del self._items[owner]
            return item
        return None
