"""Fault points stop a process where they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.stopped import wait_stopped
from txbridge import failpoints

#: The kernel gives a signal to the process to its first thread, which has to wake up for it.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from txbridge.failpoints import fault_point

def work():
    fault_point("relay.read")
    Path(sys.argv[1]).touch()

threading.Thread(target=work).start()
time.sleep(60)
"""


def test_the_thread_that_pauses_at_a_point_does_not_go_on(tmp_path: Path) -> None:
    for number in range(10):
        passed = tmp_path / str(number)
        environment = {**os.environ, failpoints.VARIABLE: "relay.read/SIGSTOP"}
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(passed)], env=environment) as process:
            try:
                wait_stopped(process)
                assert not passed.exists()
            finally:
                process.kill()
