"""Programs that start by a fork of a process that has imported them: `python -m` imports a worker for 0.9 s, each time.

A template, one for each process of pytest, has one thread and has only imported. For each program it forks a watcher,
whose child becomes the program: its own arguments, environment, folder and output, and `__main__` as `python -m` runs
it. What a program does until its imports are over is tested with real starts (test_commands_as_processes).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from txbridge.testing import backends

#: What the programs import; the harness is for those of tests.
_IMPORTED = (
    *("txbridge.cli.app", "txbridge.cli.service", "txbridge.cli.rocketmq", "txbridge.cli.service_program"),
    *("txbridge.worker.app", "txbridge_rocketmq.door_process"),
    *("psycopg", "sqlalchemy.dialects.postgresql.psycopg", "tests.support.harness"),
)
#: Signals that a program goes on ignoring, and what it does with them if its parent does not ignore them.
_INHERITED = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
_ROOT = Path(__file__).parents[2]
#: This module reads its variable when it is imported.
_FAILPOINTS = "txbridge.failpoints"
#: Most bytes of a request, which has the environment.
_REQUEST = 2**20
#: Bytes of each answer: a process id, and later an exit code.
_NUMBER = 4


class ForkedProcess(subprocess.Popen[Any]):
    """What `python -m` makes of `words`, with the part of Popen that needs no pipes: the output goes to files."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        cwd: Path | None = None,
    ) -> None:
        # Popen's own would start a program from a file.
        self.args = [*words]
        self.stdin = self.stdout = self.stderr = None
        self.returncode = None
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ignored = [number for number in _INHERITED if signal.getsignal(number) is signal.SIG_IGN]
        request = json.dumps([self.args, dict(environment), str(cwd or Path.cwd()), ignored])
        outputs = [number if given is None else given.fileno() for number, given in ((1, stdout), (2, stderr))]
        with theirs:
            socket.send_fds(_template()[0], [request.encode()], [theirs.fileno(), *outputs])
        self.pid = self._receive_number()

    def poll(self) -> int | None:
        return self._take_code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._take_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _take_code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = self._receive_number()
            except (BlockingIOError, TimeoutError):
                return None
            self._answers.close()
        return self.returncode

    def _receive_number(self) -> int:
        data = self._answers.recv(_NUMBER)
        assert data, "the process that forks programs has ended"
        return int.from_bytes(data, signed=True)


def start_program(
    words: Sequence[str],
    environment: Mapping[str, str],
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[Any]:
    """Start `python -m` with these words. A measurement has real starts, whose memory is not shared."""
    if "PYTEST_CURRENT_TEST" in os.environ and sys.platform == "linux":
        return ForkedProcess(words, environment, stdout, stderr, cwd)
    return subprocess.Popen([sys.executable, "-m", *words], env=environment, stdout=stdout, stderr=stderr, cwd=cwd)


class LoggedProgram(backends.WorkerProcess):
    """Such a program with its log in a file."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        # Not the sandbox's own, which starts every program as a user does.
        self.log_file = log
        with log.open("ab") as output:
            self._process = start_program(words, {**os.environ, **environment}, output, output)


@cache
def _template() -> tuple[socket.socket, object]:
    """Where the template of this process takes requests, and the template. It ends when nobody can send any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        # A test may be in a folder of its own.
        template = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=_ROOT)
    return ours, template


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER, signed=True)


def _serve(requests: socket.socket) -> list[Any] | None:
    """Fork a program for each request. Returns in each of them what it is to be, and here None at the end."""
    # Ctrl-C is for pytest, whose end is that of the requests. Watchers that have ended must not stay.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _REQUEST, 3)
        if not data:
            return None
        if os.fork():
            for fd in fds:
                os.close(fd)
            continue
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        program = os.fork()
        if program:
            _watch(program, fds)
        os.close(fds[0])
        for number, fd in enumerate(fds[1:], 1):
            os.dup2(fd, number)
            os.close(fd)
        found: list[Any] = json.loads(data)
        return found


def _watch(program: int, fds: list[int]) -> None:
    """Tell of this program until it has ended."""
    for fd in fds[1:]:
        os.close(fd)
    with socket.socket(fileno=fds[0]) as answers:
        answers.send(_number(program))
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        # The test may have ended before its program.
        with suppress(BrokenPipeError):
            answers.send(_number(code))
    os._exit(0)


def _main() -> None:
    for module in _IMPORTED:
        importlib.import_module(module)
    # A collection in a program would copy every page of these objects.
    gc.collect()
    gc.freeze()
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is None:
        return
    (module, *arguments), environment, cwd, ignored = found
    for number, usual in _INHERITED.items():
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    importlib.reload(sys.modules[_FAILPOINTS])
    sys.path[0] = cwd
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
