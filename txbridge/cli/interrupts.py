"""Ctrl-C: heard once a command has begun, and followed within a second also where a library does not hear it."""

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

#: As shells report a command that Ctrl-C ended.
EXIT_INTERRUPTED = 130
#: What a command may take to end by itself. Closing its connections takes less; a request of librdkafka's to a Kafka
#: that does not answer takes ten seconds, and Python hears no signal meanwhile.
GRACE_S = 1.0
#: More than the signals that come between two looks.
_READ = 64

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")
#: What is to be said should Ctrl-C come now: the last of them.
_last_words = [""]


def hear_interrupts() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt: something has begun that may have to be put in order."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def as_interrupt(_signal: int, frame: FrameType | None) -> None:
    """A handler for other signals that end a command as Ctrl-C does: Spark's session, too, is asked to end quietly."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    raise KeyboardInterrupt


def ends_at_once(command: Callable[_Parameters, _Answer]) -> Callable[_Parameters, _Answer]:
    """A command that leaves nothing behind which only it could put in order: after Ctrl-C it is gone in GRACE_S.

    Not for one that has started processes.
    """

    @functools.wraps(command)
    def watched(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Answer:
        watch()
        return command(*args, **kwargs)

    return watched


@contextmanager
def if_interrupted(text: str) -> Iterator[None]:
    """Say this should Ctrl-C come meanwhile, however the command ends then."""
    _last_words.append(text)
    try:
        yield
    except KeyboardInterrupt:
        # Said only once.
        _last_words.append("")
        warn(text)
        raise
    _last_words.append("")


def unwatch() -> None:
    """From here on the command ends by itself: it has started processes, or is to finish something."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


def watch() -> None:
    """Have a thread of its own hear signals, which Python's handlers hear only between two lines of the main thread.

    An event loop that hears signals takes this over by itself, and is trusted with it.
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
    if _last_words[-1]:
        warn(_last_words[-1])
    os._exit(EXIT_INTERRUPTED)
