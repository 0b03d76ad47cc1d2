"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import threading

import pytest

from txbridge.worker import malloc


def test_a_c_library_without_these_functions_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    malloc.return_freed_memory()
    assert "txbridge-malloc" not in {thread.name for thread in threading.enumerate()}
