"""A program at the end of a pipe: one command a line in, one answer a line out. It ends with its input."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path


class LineProcess:
    """A running program and its answers. Ctrl-C does not reach it, because the test needs it until its own end."""

    def __init__(
        self, command: Sequence[str | Path], log: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it. Without `log`, its errors are printed beside ours."""
        self._log = log
        with ExitStack() as stack:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if log is None else stack.enter_context(log.open("wb")),
                text=True,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def errors(self) -> str:
        """What it has written to its log."""
        return "" if self._log is None else self._log.read_text(errors="replace")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.rstrip("\n"))
        self._answers.put("")

    def ask(self, line: str, timeout: float) -> str:
        """Send a command and return the answer, which is empty if the program has ended.

        Raises TimeoutError after this time (s).
        """
        try:
            self.write(line)
        except BrokenPipeError:
            return ""
        return self.next_line(timeout)

    def write(self, line: str) -> None:
        """Send a command. `next_line` has its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def next_line(self, timeout: float) -> str:
        """The next answer; empty if the program has ended. Raises TimeoutError after this time (s)."""
        try:
            return self._answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no answer of {self._process.args} in {timeout:.0f} s") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self, patience: float) -> None:
        """Close the program's input to end it, or kill it after this time (s)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(patience)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.kill()
        # Its output ends with it.
        self._reader.join(10)
        self._process.stdout.close()
