"""A supervised child process, which ends with its owner, however the owner ends. `sleep` stands in for Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.harness import eventually
from txbridge.embedded.process import ChildProcess, process_identity
from txbridge.errors import EnvironmentProblemError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def child(tmp_path):
    child = ChildProcess.launch_program(["sleep", "60"], output=tmp_path / "log")
    yield child
    child.kill()


def gone(pid: int) -> bool:
    return process_identity(pid) is None


def run_owner(tmp_path, body: str, may_detach: bool = False) -> tuple[subprocess.Popen, int]:
    """Another Python process that owns a `sleep`; returns it and the process id of the sleep."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = f"""
import os, signal, sys, threading, time
from pathlib import Path
from txbridge.embedded.process import ChildProcess
child = ChildProcess.launch_program(["sleep", "60"], output=Path({str(tmp_path / "log")!r}), may_detach={may_detach},
                            scratch=Path({str(scratch)!r}))
print(child.pid, flush=True)
{body}
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
    pid = int(owner.stdout.readline())
    owner.stdout.close()
    return owner, pid


def test_stop(child):
    assert child.poll() is None
    assert not gone(child.pid)
    child.stop(timeout=5)
    assert child.poll() == 128 + signal.SIGTERM
    assert gone(child.pid)
    child.stop(timeout=5)


def test_pause_and_resume_and_stop_while_paused(child):
    def status() -> str:
        return Path(f"/proc/{child.pid}/stat").read_text().split()[2]

    child.pause()
    # Nothing that is sent from now on is answered.
    assert status() == "T"
    child.resume()
    eventually(lambda: status() == "S")
    child.pause()
    child.stop(timeout=5)
    assert child.poll() == 128 + signal.SIGTERM


def test_exit_code_and_output(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    child = ChildProcess.launch_program(["sh", "-c", "echo out; echo err >&2; exit 3"], output=log)
    assert child.wait(120) == 3
    assert log.read_text() == "before\nout\nerr\n"


def test_program_that_does_not_exist(tmp_path):
    with pytest.raises(EnvironmentProblemError, match="could not start /no/such/java: No such file or directory"):
        ChildProcess.launch_program(["/no/such/java"], output=tmp_path / "log")


def test_it_outlives_the_thread_that_started_it(tmp_path):
    started = []
    thread = threading.Thread(
        target=lambda: started.append(ChildProcess.launch_program(["sleep", "60"], output=tmp_path / "l"))
    )
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert started[0].poll() is None
    started[0].kill()


@pytest.mark.parametrize("order", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_owner_takes_it_and_its_scratch_folder_along(tmp_path, order):
    owner, pid = run_owner(tmp_path, "time.sleep(60)")
    owner.send_signal(order)
    owner.wait()
    eventually(lambda: gone(pid))
    eventually(lambda: not (tmp_path / "scratch").exists())


def test_death_of_the_owner_while_a_fork_of_it_lives_on(tmp_path):
    owner, pid = run_owner(tmp_path, "os.fork(); time.sleep(60)")
    owner.kill()
    owner.wait()
    # Long before the fork ends.
    eventually(lambda: gone(pid), timeout=3.5)
    os.killpg(owner.pid, signal.SIGKILL)


def test_ctrl_c_in_the_terminal_does_not_reach_it(tmp_path):
    body = f"""
marks = Path({str(tmp_path)!r})
try:
    (marks / "waits").touch()
    time.sleep(60)
except KeyboardInterrupt:
    (marks / "interrupted").touch()
    while not (marks / "may end").exists():
        time.sleep(0.01)
    child.kill()
"""
    owner, pid = run_owner(tmp_path, body)
    eventually((tmp_path / "waits").exists)
    os.killpg(owner.pid, signal.SIGINT)
    eventually((tmp_path / "interrupted").exists)
    assert not gone(pid)
    (tmp_path / "may end").touch()
    owner.wait()
    assert gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_death_of_the_supervisor_takes_it_along(tmp_path):
    child = ChildProcess.launch_program(["sleep", "60"], output=tmp_path / "log")
    child._supervisor.kill()
    eventually(lambda: gone(child.pid))
    assert child.wait() is not None


def test_detached_it_stays(tmp_path):
    owner, pid = run_owner(tmp_path, "child.detach()", may_detach=True)
    assert owner.wait() == 0
    time.sleep(0.3)
    assert not gone(pid)
    os.kill(pid, signal.SIGKILL)


def test_before_it_is_detached_it_ends_with_its_owner(tmp_path):
    owner, pid = run_owner(tmp_path, "time.sleep(60)", may_detach=True)
    owner.kill()
    owner.wait()
    eventually(lambda: gone(pid))
