"""Supervisor of one program, which it ends when the owner process has ended. It runs as a script.

    python -I -S supervisor.py OWNER_PID MAY_DETACH SCRATCH_DIR KEPT_FILE PROGRAM [ARGUMENT ...]

A process between Python and Java is needed for two reasons. Only a parent can wait for Java without ever signalling a
reused process id. And PR_SET_PDEATHSIG fires when the *thread* that forked ends, which in a user's process can be any
short-lived one. This process has one thread, so PR_SET_PDEATHSIG is safe here, and also covers the supervisor's death.

Contract:
- standard output gets one line: the process id of the program, or "! " and the reason why it could not be started;
- each byte on standard input is an order (see `_ORDERS`); end of file means that the owner has ended;
- the program writes to our standard error;
- when the owner has ended the program gets SIGTERM, then SIGKILL, and SCRATCH_DIR (unless empty) is deleted;
- KEPT_FILE (unless empty) is the number of an open file that the program inherits: a lock that lives as long as it;
- the exit code is the program's, 128 + n if signal n ended it; 0 after the order to detach.

It uses the standard library alone (`-I -S`), so it starts in 20 ms and does not depend on the user's environment.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import NoReturn

# Orders of the owner, one byte each.
_ORDERS = {b"T": signal.SIGTERM, b"K": signal.SIGKILL, b"S": signal.SIGSTOP, b"C": signal.SIGCONT}
_DETACH = b"D"

# End of file does not come while a fork of the owner (multiprocessing) still holds the pipe, so the parent's id is
# checked as well. Once a second costs no measurable time, and an orphaned broker lives one second longer at most.
_OWNER_POLL_S = 1.0

# Kafka writes its clean-shutdown mark in 0.3 s when idle. No owner waits here, but none will use this broker again
# either, so it gets less time than a stop that was ordered.
_ORPHAN_GRACE_S = 10.0

_PR_SET_PDEATHSIG = 1


class _Supervisor:
    def __init__(self, owner: int, may_detach: bool, scratch: str, kept_file: str) -> None:
        self.owner = owner
        self.may_detach = may_detach
        self.scratch = scratch
        self.kept_files = (int(kept_file),) if kept_file else ()
        self.must_end = False
        self.wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the program.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_sigterm)

    def _note_sigterm(self, *_: object) -> None:
        self.must_end = True

    def start_program(self, command: list[str]) -> subprocess.Popen[bytes]:
        die_with_me = None
        if not self.may_detach and sys.platform == "linux":
            prctl, me = ctypes.CDLL(None).prctl, os.getpid()

            def die_with_me() -> None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != me:  # the supervisor died before the kernel knew
                    os._exit(1)

        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            pass_fds=self.kept_files,
            preexec_fn=die_with_me,  # noqa: PLW1509 - there is one thread
        )

    def watch_program(self, child: subprocess.Popen[bytes]) -> int:
        while True:
            ready, _, _ = select.select([0, self.wake], [], [], _OWNER_POLL_S)
            if self.wake in ready:
                os.read(self.wake, 4096)
            if (code := child.poll()) is not None:
                return code
            if 0 in ready:
                orders = os.read(0, 64)
                if not orders:
                    return self._end_program(child)
                for order in (bytes([byte]) for byte in orders):
                    if order == _DETACH:
                        os._exit(0)  # the init process adopts the program
                    child.send_signal(_ORDERS[order])
            if self.must_end or os.getppid() != self.owner:
                return self._end_program(child)

    def _end_program(self, child: subprocess.Popen[bytes]) -> int:
        child.send_signal(signal.SIGCONT)  # a paused program cannot obey SIGTERM
        child.terminate()
        try:
            code = child.wait(_ORPHAN_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return code


def main(arguments: list[str]) -> NoReturn:
    owner, may_detach, scratch, kept_file, *command = arguments
    supervisor = _Supervisor(int(owner), may_detach == "yes", scratch, kept_file)
    try:
        child = supervisor.start_program(command)
    except OSError as error:
        print(f"! {command[0]}: {error.strerror}", flush=True)
        sys.exit(127)
    print(child.pid, flush=True)
    code = supervisor.watch_program(child)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
