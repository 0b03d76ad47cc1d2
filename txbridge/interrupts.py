"""Ctrl-C and SIGTERM while a command works: a thread ends the process, and no exception is raised anywhere.

Python's own way is a KeyboardInterrupt at whatever call the main thread is in. confluent-kafka runs signal handlers
inside its requests and ignores that one has raised, so the exception comes out as a SystemError. Other libraries in C
lose it. And while a library in C waits, Python runs no handler at all.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

#: The exit code that shells report for a command that Ctrl-C ended.
EXIT_INTERRUPTED = 130
CTRL_C: Mapping[int, int] = {signal.SIGINT: EXIT_INTERRUPTED}
#: Exit codes of a service that has nothing to finish yet. Process 1 of a container would ignore a SIGTERM without a
#: handler.
AT_START = {**CTRL_C, signal.SIGTERM: 0}
#: Bytes per read, one for each signal: more than the signals that arrive between two reads.
_READ = 64
#: Seconds for the last acts, which print a line, kill a process and delete its files. One that needs a lock that the
#: stopped main thread holds would never return.
_LAST_ACTS_S = 5.0

_Answer = TypeVar("_Answer")
#: Exit codes of the signals that end the process now.
_codes: dict[int, int] = {}
#: What to do before the process ends, for each block that is being run. The innermost comes first.
_last_acts: list[Callable[[], object]] = []


@contextmanager
def end_on_signal(codes: Mapping[int, int]) -> Iterator[None]:
    """End the process at once, with this exit code, if one of these signals arrives within the block.

    A command that has work to finish calls `hand_over` first. Nothing changes for a signal that is ignored or has
    another handler, nor outside of the main thread.
    """
    before = {number: signal.getsignal(number) for number in codes}
    ours = {number: handler for number, handler in before.items() if handler in _REPLACED}
    if threading.current_thread() is not threading.main_thread() or not ours:
        yield
        return
    outer = dict(_codes)
    _codes.update({number: codes[number] for number in ours})
    for number in ours:
        signal.signal(number, _stop_here)
    signal.set_wakeup_fd(_pipe(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        if not outer:
            signal.set_wakeup_fd(-1)
        for number, handler in ours.items():
            if signal.getsignal(number) is _stop_here:
                signal.signal(number, handler)
        _codes.clear()
        _codes.update(outer)


def hand_over(handler: Callable[..., object]) -> None:
    """Leave Ctrl-C and SIGTERM to a handler from now on: the command has something to finish, or processes to stop.

    An event loop with signal handlers does so by itself: it replaces the wake-up file descriptor of `end_on_signal`.
    """
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, handler)


def end_at_hangup() -> None:
    """Make SIGHUP, of a terminal that is closed, end a service as SIGTERM does. Under nohup it stays ignored."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


@contextmanager
def if_interrupted(act: Callable[[], object]) -> Iterator[None]:
    """Do this before the process ends, if a signal of `end_on_signal` comes within the block.

    It runs in another thread, and has 5 s together with those of the blocks around it.
    """
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def in_own_thread(work: Callable[[], _Answer]) -> _Answer:
    """Return what `work` returns, or raise what it raises. A KeyboardInterrupt ends only the wait for it.

    For a program that has processes to stop after Ctrl-C, and so needs the exception.
    """
    done: Future[_Answer] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            done.set_exception(error)

    threading.Thread(target=run, name="txbridge-interruptible", daemon=True).start()
    return done.result()


@functools.cache
def _pipe() -> int:
    """The end of a pipe to which signals are written. A thread at its other end ends the process."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_end_after, args=[reading], name="txbridge-interrupts", daemon=True).start()
    return writing


def _stop_here(number: int, _frame: FrameType | None) -> None:
    # Python writes it, too, and sooner; but an event loop may have replaced its file descriptor, and may not yet have a
    # handler for this signal.
    os.write(_pipe(), bytes([number]))
    # The main thread must not report the errors that the last acts cause.
    threading.Event().wait()


_REPLACED = {signal.SIG_DFL, signal.default_int_handler, _stop_here}


def _end_after(reading: int) -> None:
    code = None
    while code is None:
        code = next((_codes[number] for number in os.read(reading, _READ) if number in _codes), None)
    acts = threading.Thread(target=_do_last_acts, daemon=True)
    acts.start()
    acts.join(_LAST_ACTS_S)
    os._exit(code)


def _do_last_acts() -> None:
    for act in reversed(_last_acts):
        act()
