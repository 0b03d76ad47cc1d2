"""A program at the end of a pipe: one command a line in, one answer a line out. It ends with its input."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self


class LineProcess:
    """A running program and its answers. Ctrl-C does not reach it, because the test needs it until its own end."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
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

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.rstrip("\n"))
        self._answers.put("")

    def ask(self, line: str, timeout: float) -> str:
        """Send a command and return the answer, which is empty if the program has ended.

        Raises TimeoutError after this time (s).
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        try:
            return self._answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no answer to {line[:80]!r} in {timeout:.0f} s") from None

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
        self._reader.join(patience)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(60)
