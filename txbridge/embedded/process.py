"""The owner's side of a supervised child process (see supervisor.py), a broker's state file, and the common stop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol, Self

from txbridge.deadline import Deadline
from txbridge.embedded import supervisor
from txbridge.embedded.ports import HOST
from txbridge.errors import EnvironmentProblemError

_STATE_FILE = "broker.json"
_LOCK_FILE = "broker.lock"

# Seconds between two checks of a process that ends. Ending takes 0.3 s at best, so this adds little.
_POLL_S = 0.05
# After SIGKILL; see the constant of the same name in process.py.
_KILL_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker that was started on a data folder."""

    pid: int
    #: Start time of the process, as the system reports it. A process with a reused id has another one.
    identity: str
    port: int
    version: str
    cluster_id: str
    #: True when it was started to outlive its starter.
    detached: bool

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def is_alive(self) -> bool:
        return process_identity(self.pid) == self.identity


def read_stat(pid: int | str) -> list[str]:
    """The state of a process (R, S, T, Z, ...) and what follows it in /proc/PID/stat. Raises OSError."""
    # The name before it may contain anything, also spaces and brackets: read on behind its last bracket.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def process_identity(pid: int) -> str | None:
    """The start time of a process, which a reused id does not share. None if it has ended, or is a zombie."""
    try:
        found = read_stat(pid)
    except OSError:
        return None if Path("/proc/self/stat").exists() else _identity_by_ps(pid)
    return None if found[0] in "ZX" else found[19]


def _identity_by_ps(pid: int) -> str | None:
    """For systems without /proc."""
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    status, _, started = done.stdout.strip().partition(" ")
    return None if not started or status.startswith("Z") else started.strip()


def write_state(data_dir: Path, state: BrokerState) -> None:
    """Replace the file in one step: a reader never sees half of it."""
    temporary = data_dir / f"{_STATE_FILE}.new"
    temporary.write_text(json.dumps(asdict(state), indent=2) + "\n")
    temporary.replace(data_dir / _STATE_FILE)


def read_state(data_dir: Path) -> BrokerState | None:
    """The content of the file, true or stale; None if it is missing or is not ours."""
    try:
        content = json.loads((data_dir / _STATE_FILE).read_text())
        state = BrokerState(**{field.name: content[field.name] for field in fields(BrokerState)})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return state if isinstance(state.pid, int) and state.pid > 0 else None


def running_broker(data_dir: Path) -> BrokerState | None:
    """The broker that runs on this data folder now, started by any process."""
    state = read_state(data_dir)
    return state if state is not None and state.is_alive() else None


def remove_state(data_dir: Path) -> None:
    (data_dir / _STATE_FILE).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class StoredBroker:
    """A running broker that another process has started, to be ended (process.py)."""

    data_dir: Path
    state: BrokerState

    def is_running(self) -> bool:
        return self.state.is_alive()

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL if it runs, return when the process has ended, and remove the state file.

        Raises:
            EnvironmentProblemError: the process belongs to somebody else, or survives SIGKILL.

        """
        self._send_signal(signal.SIGKILL)
        deadline = Deadline(_KILL_GRACE_S)
        while self.state.is_alive():
            if deadline.is_over:
                what = f"process {self.state.pid}, which runs Kafka on {self.data_dir}"
                raise EnvironmentProblemError(f"{what}, does not end")
            time.sleep(_POLL_S)
        if read_state(self.data_dir) == self.state:  # and not that of a broker that was started meanwhile
            remove_state(self.data_dir)

    def _send_signal(self, number: int) -> None:
        # The process can end between the check and the signal.
        with contextlib.suppress(ProcessLookupError):
            try:
                if self.state.is_alive():
                    os.kill(self.state.pid, signal.SIGCONT)  # a paused process cannot obey SIGTERM
                    os.kill(self.state.pid, number)
            except PermissionError as error:
                raise EnvironmentProblemError(
                    f"may not stop process {self.state.pid}, which runs Kafka on {self.data_dir}: do it as the user "
                    "who started it"
                ) from error


@contextlib.contextmanager
def data_lock(data_dir: Path) -> Iterator[int]:
    """Own a data folder. Yields the open file that holds the lock; a child that inherits it prolongs the ownership.

    Kafka does not protect itself. A second KRaft broker on a folder opens the metadata log, elects itself and writes
    to it *before* it finds the first one's lock. After that the first can neither work nor stop. The lock of the
    operating system also holds between containers that share a volume, where process ids mean nothing.
    """
    with (data_dir / _LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            broker = running_broker(data_dir)
            user = f"the broker on {broker.bootstrap_servers} (process {broker.pid})" if broker else "another process"
            raise EnvironmentProblemError(
                f"the data folder {data_dir} is in use by {user}. Stop it (`txbridge kafka stop --data-dir {data_dir}`)"
                ", or use another folder (--data-dir, in Python data_dir=...)"
            ) from error
        yield lock.fileno()


# After SIGKILL the kernel needs milliseconds. A process in an uninterruptible disk wait can take longer, and no program
# can change that.
# A broker that ends hands its leaderships over when the controllers order it. Once most controllers have ended, no
# order comes, and the broker would wait for five minutes. Nothing is lost when it is killed instead.
_WITHOUT_QUORUM_S = 2.0
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
