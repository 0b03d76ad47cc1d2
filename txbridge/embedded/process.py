"""The owner's side of a supervised child process (see supervisor.py), and the common stop of several."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from txbridge.deadline import Deadline
from txbridge.embedded import supervisor
from txbridge.embedded.state import read_stat
from txbridge.errors import EnvironmentProblemError

# After SIGKILL the kernel needs milliseconds. A process in an uninterruptible disk wait can take longer, and no program
# can change that.
_KILL_GRACE_S = 10.0
# A broker that ends hands its leaderships over when the controllers order it. Once most controllers have ended, no
# order comes, and the broker would wait for five minutes. Nothing is lost when it is killed instead.
_WITHOUT_QUORUM_S = 2.0
_POLL_S = 0.05
# A signal arrives within a few of these.
_STATE_S = 0.001


class ChildProcess:
    """A program that does not outlive this process: not its normal end, not Ctrl-C, not its kill -9.

    It runs in a session of its own, so the Ctrl-C of a terminal reaches only us, and we decide what it means.
    """

    def __init__(self, supervising: subprocess.Popen[bytes], pid: int) -> None:
        self._supervisor = supervising
        #: The process id of the program itself.
        self.pid = pid

    @classmethod
    def launch_program(
        cls,
        command: Sequence[str | Path],
        *,
        output: Path,
        may_detach: bool = False,
        scratch: Path | None = None,
        kept_file: int | None = None,
    ) -> Self:
        """Start `command`; its output is appended to the file `output`.

        `scratch` is a folder to delete when this process has ended before it could do so itself. `kept_file` is the
        number of an open file that the program inherits and does not use: a lock on it lasts as long as the program.
        """
        options = [str(os.getpid()), "yes" if may_detach else "no", str(scratch or "")]
        options.append("" if kept_file is None else str(kept_file))
        script = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), *options]
        with output.open("ab") as log:
            supervising = subprocess.Popen(
                [*script, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # File names and messages must not depend on the caller's language.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
                pass_fds=() if kept_file is None else (kept_file,),
            )
        assert supervising.stdout is not None
        try:
            with supervising.stdout as report:
                answer = report.readline().decode(errors="replace").strip()
        except BaseException:
            supervising.kill()
            supervising.wait()
            raise
        child = cls(supervising, int(answer) if answer.isdecimal() else 0)
        if not child.pid:
            child.wait()
            raise EnvironmentProblemError(f"could not start {answer.removeprefix('! ') or command[0]}")
        return child

    def poll(self) -> int | None:
        """The exit code (128 + n after signal n), or None while it runs."""
        return self._note_exit(self._supervisor.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait up to `timeout` seconds; None if it still runs."""
        try:
            return self._note_exit(self._supervisor.wait(timeout))
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Send SIGTERM, also to a paused program."""
        self._send_orders(b"CT")

    def kill(self) -> None:
        """Send SIGKILL and return when the process has ended."""
        self._send_orders(b"K")
        if self.wait(_KILL_GRACE_S) is None:
            # The supervisor does not react; somebody may have stopped it. On Linux the program dies with it.
            self._supervisor.kill()
            self.wait()

    def pause(self) -> None:
        """Send SIGSTOP, and return when the program has stopped: the supervisor sends it, some time later."""
        self._send_orders(b"S")
        deadline = Deadline(_KILL_GRACE_S)
        with contextlib.suppress(OSError):  # not Linux, or it has ended
            while read_stat(self.pid)[0] not in "TZ" and not deadline.is_over:
                time.sleep(_STATE_S)

    def resume(self) -> None:
        self._send_orders(b"C")

    def stop(self, timeout: float) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. An exception in between (Ctrl-C) kills at once."""
        try:
            self.terminate()
            self.wait(timeout)
        finally:
            if self.poll() is None:
                self.kill()

    def detach(self) -> None:
        """Let the program outlive this process; needs `may_detach`. This object is of no use afterwards."""
        self._send_orders(b"D")
        self.wait()

    def _send_orders(self, orders: bytes) -> None:
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # the program has ended, which is the aim of most orders
            self._supervisor.stdin.write(orders)
            self._supervisor.stdin.flush()

    def _note_exit(self, code: int | None) -> int | None:
        if code is not None and self._supervisor.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._supervisor.stdin.close()
        return code


class Process(Protocol):
    """A node that may run."""

    def is_running(self) -> bool: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def stop_together(nodes: Sequence[Process], timeout: float) -> None:
    """Send SIGTERM to all, and SIGKILL after `timeout` seconds. Return when they have ended."""
    running = [node for node in nodes if node.is_running()]
    try:
        for node in running:
            node.terminate()
        deadline = Deadline(timeout)
        most_ended = False
        while (alive := sum(node.is_running() for node in running)) and not deadline.is_over:
            if 2 * alive < len(running) and not most_ended:
                most_ended = True
                deadline = Deadline(min(deadline.left, _WITHOUT_QUORUM_S))
            time.sleep(_POLL_S)
    finally:
        for node in running:
            node.kill()
