"""Helpers for threads."""

from __future__ import annotations

import threading


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Wait up to `timeout` seconds (None: no limit) for the end of a thread, if it was started at all."""
    if thread.ident is not None:
        thread.join(timeout)
