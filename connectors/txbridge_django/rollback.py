"""The exception with which the application's function rolls its transaction back."""

from __future__ import annotations


class Rollback(Exception):  # noqa: N818  it is a decision, not an error
    """Raised by the application's function to roll its transaction back, and with it the message."""
