"""A limited number of label values."""

from __future__ import annotations

import threading

from txbridge.core.open_counts import OTHER


class KnownNames:
    """Label values: the first `limit` names keep their own, all later ones share one. Thread-safe.

    Any client that may write to HALF can invent producer groups. Every value of a label costs the worker and Prometheus
    memory for good.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()

    def label(self, name: str) -> str:
        """The label value for this name."""
        if name in self._names:
            return name
        with self._lock:
            label = name if name in self._names or len(self._names) < self._limit else OTHER
            self._names[label] = None
            return label

    @property
    def seen(self) -> list[str]:
        """Every label value so far."""
        return list(self._names)
