"""Exceptions raised in a thread at every point at which CPython may run a signal's handler.

Ctrl-C is an exception that may come after any call, at the beginning of any function, at the end of each turn of a
loop, and when a lock cannot be had at once. It does not come between two stores, nor between a `with lock:` and its
body. A tool that raised at every line would report defects that do not exist, and would miss those in the middle of a
line.
"""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import txbridge

#: The exception is raised in our own code only. We cannot fix what it does inside the standard library.
OURS = str(Path(txbridge.__file__).parent / "client")
#: The first instruction of a function and of a resumed generator. A tracer gets a call event instead.
_BEGIN = dis.opmap["RESUME"]
#: After these, CPython checks for signals (CHECK_EVAL_BREAKER). A call by keyword is CALL_KW since 3.13.
_LOOKS_AFTER = frozenset(
    number
    for name, number in dis.opmap.items()
    if name in {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME"}
    or ("JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name)
)
#: The thread may wait for a lock here, and a signal ends the wait.
_WAITS_BEFORE = frozenset({dis.opmap["BEFORE_WITH"]})


class Interrupted(KeyboardInterrupt):
    """The exception raised by default: a Ctrl-C that a test can tell from others."""


class OrdinaryError(Exception):
    """An exception like Celery's SoftTimeLimitExceeded, which a signal's handler raises, too."""


class Interrupter:
    """Tracer of one thread that raises at the point of this number, counted from 0."""

    def __init__(self, number: int, kind: type[BaseException] = Interrupted) -> None:
        self._number = number
        self._kind = kind
        self._seen = 0
        self._last: dict[FrameType, int | None] = {}
        #: The place where it has raised, for people.
        self.place = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            caller = frame.f_back
            if (
                caller is not None
                and caller.f_code.co_filename.startswith(OURS)
                and "weakref" not in frame.f_code.co_filename
                and not any(getattr(hook, "__code__", None) is frame.f_code for hook in gc.callbacks)
            ):
                # The beginning of a function that is not ours, before it has done anything. Callbacks of the garbage
                # collector are left out, because the collector swallows their exceptions. Hypothesis installs one after
                # the first property test.
                self._point(caller)
            return None
        if frame.f_back is not None:
            # The return of a call of Python code is no such point.
            self._last[frame.f_back] = None
        self._last[frame] = _BEGIN
        # The order matters: 3.13 reports opcodes only from the second call on if the frame has no tracer when this is
        # set.
        frame.f_trace = self._inside
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._inside

    def _inside(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            now = _code(frame.f_code)[frame.f_lasti]
            last, self._last[frame] = self._last.get(frame), now
            if last in _LOOKS_AFTER or now in _WAITS_BEFORE:
                self._point(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self._inside

    def _point(self, frame: FrameType) -> None:
        if self.place:
            return
        if self._seen == self._number:
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
            raise self._kind
        self._seen += 1


_codes: dict[CodeType, bytes] = {}


def _code(code: CodeType) -> bytes:
    # Without the instructions that the interpreter has specialised. `co_code` is computed at each access, so it is
    # cached.
    if code not in _codes:
        _codes[code] = code.co_code
    return _codes[code]


class Run:
    """Runs `what` in a thread of its own with an Interrupter, then `after` without one."""

    def __init__(
        self,
        number: int,
        what: Callable[[], object],
        after: Callable[[], object],
        kind: type[BaseException] = Interrupted,
    ) -> None:
        self.interrupter = Interrupter(number, kind)
        self.error: BaseException | None = None
        #: Whether the exception came out of `what`.
        self.reached = False
        self._kind = kind
        self._what, self._after = what, after
        self._thread = threading.Thread(target=self._run, name="interrupted", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # 3.12 reports opcodes only if a frame has asked for them before tracing begins.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self.interrupter)
        try:
            self._what()
        except self._kind:
            self.reached = True
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
        try:
            self._after()
        except BaseException as error:
            self.error = error

    def hangs(self, seconds: float) -> str:
        """Stack of the thread if it has not ended after this time (s), else an empty string."""
        self._thread.join(seconds)
        return stack_of(self._thread) if self._thread.is_alive() else ""


def stack_of(thread: threading.Thread) -> str:
    """Stack of a thread as text."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "over"


def wait_until(what: Callable[[], object], seconds: float) -> bool:
    """Wait until `what` is true. False if it is not true after this time (s)."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
