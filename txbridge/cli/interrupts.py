"""Handling of Ctrl-C: a command ends within a second, even if a library call blocks Python's signal handlers."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec, TypeVar

from txbridge.cli.terminal import warn

#: The exit code that shells report for a command that Ctrl-C ended.
EXIT_INTERRUPTED = 130
#: Seconds that a command may take to end by itself after Ctrl-C. Closing its connections takes less. A request of
#: librdkafka to a Kafka that does not answer takes ten seconds, and Python runs no signal handler meanwhile.
GRACE_S = 1.0
#: Bytes per read, one for each signal: more than the signals that arrive between two reads.
_READ = 64

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")
#: Texts to print at Ctrl-C, one for each block of `if_interrupted` that is being run. Only the last one counts.
_interrupt_texts = [""]


def hear_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt from now on, so that a command can clean up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def as_interrupt(_signal: int, frame: FrameType | None) -> None:
    """Signal handler that makes another signal end a command as Ctrl-C does.

    It calls the handler of SIGINT, because Spark's session installs one that ends quietly.
    """
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    raise KeyboardInterrupt


def end_at_hangup() -> None:
    """Make SIGHUP, of a terminal that is closed, end a service as SIGTERM does. Under nohup it stays ignored."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def ends_at_once(command: Callable[_Parameters, _Answer]) -> Callable[_Parameters, _Answer]:
    """Decorator for a command that needs no cleanup: after Ctrl-C it ends within GRACE_S seconds.

    It is not for a command that starts processes.
    """

    @functools.wraps(command)
    def watched(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Answer:
        watch()
        return command(*args, **kwargs)

    return watched


@contextmanager
def if_interrupted(text: str) -> Iterator[None]:
    """Print this text if Ctrl-C comes within the block, however the command then ends."""
    _interrupt_texts.append(text)
    try:
        try:
            yield
        finally:
            # Before the text is printed: the watching thread must not print it again.
            _interrupt_texts.pop()
    except KeyboardInterrupt:
        warn(text)
        raise


def unwatch() -> None:
    """Stop the watching thread from ending the command, which has started processes or has work to finish."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


def watch() -> None:
    """Start a thread that ends the process GRACE_S seconds after Ctrl-C, even if signal handlers cannot run.

    Python runs signal handlers only between two instructions of the main thread. An event loop with signal handlers
    replaces the wake-up file descriptor of this thread, and is then responsible for Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_after, args=[reading], name="txbridge-interrupts", daemon=True).start()


def _end_after(reading: int) -> None:
    while signal.SIGINT not in os.read(reading, _READ):
        pass
    time.sleep(GRACE_S)
    if _interrupt_texts[-1]:
        warn(_interrupt_texts[-1])
    os._exit(EXIT_INTERRUPTED)
