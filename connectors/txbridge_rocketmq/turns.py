"""A queue in which the owners of what waits take turns: who brings much waits for it alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnQueue(Generic[T]):
    """Items in the order of their owner; each turn takes one item of the next owner. An item waits once an owner."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, dict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add_item(self, owner: str, item: T) -> None:
        self._items.setdefault(owner, {})[item] = None

    def pop_item(self) -> T:
        """The first item of the next owner. Raises KeyError if none waits."""
        owner, items = self._items.popitem(last=False)
        item = next(iter(items))
        del items[item]
        if items:
            self._items[owner] = items
        return item
