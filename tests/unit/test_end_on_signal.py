"""Ctrl-C or a closed terminal in any command: the process ends at once, with one exit code and without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from txbridge.cli.service import serve
from txbridge.config.worker import WorkerSettings
from txbridge.interrupts import end_at_hangup

ROOT = Path(__file__).parents[2]
TEXT = "a command that is already written will be applied"

PRESS = "os.kill(os.getpid(), signal.SIGINT)"
#: The places in which Ctrl-C can meet the main thread. An exception there would be lost, or become another one.
PLACES = {
    "python": f"{PRESS}; time.sleep(60)",
    # A library in C waits, so Python runs no handler.
    "c": f"""
lock = ctypes.CDLL(None).pthread_mutex_lock
mutex = ctypes.create_string_buffer(64)
threading.Timer(0.2, lambda: {PRESS}).start()
lock(mutex), lock(mutex)
""",
    # A library in C has called Python.
    "python called by c": f"ctypes.CFUNCTYPE(None)(lambda: {PRESS})(); time.sleep(60)",
    # It runs signal handlers when it takes the interpreter's lock again, and waits for that while others are busy.
    "confluent-kafka": f"""
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
admin = AdminClient({{"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0}})
def spin():
    while True: pass
for _ in range(3): threading.Thread(target=spin, daemon=True).start()
threading.Timer(0.2, lambda: {PRESS}).start()
while True: admin.describe_topics(TopicCollection(["a"]))
""",
    # Code that takes every exception for one of its own.
    "a broad except": f"""
with contextlib.suppress(BaseException): {PRESS}
time.sleep(60)
""",
    "a finalizer": f"weakref.finalize(type('C', (), {{}})(), lambda: {PRESS}); time.sleep(60)",
}
#: Blocks with last acts: printed once, the innermost first, only if the block is being run.
WITHIN = """
with if_interrupted(say(TEXT)):
    os.kill(os.getpid(), signal.SIGINT)
"""
NESTED = """
with if_interrupted(say("outer")), if_interrupted(say("inner")):
    os.kill(os.getpid(), signal.SIGINT)
"""
AFTER = """
with if_interrupted(say(TEXT)):
    pass
os.kill(os.getpid(), signal.SIGINT)
"""
AFTER_AN_ERROR = """
with contextlib.suppress(ValueError), if_interrupted(say(TEXT)):
    raise ValueError
os.kill(os.getpid(), signal.SIGINT)
"""
#: The main thread holds a lock that the act needs.
HANGS = """
interrupts._LAST_ACTS_S = 0.2
with if_interrupted(threading.Event().wait):
    os.kill(os.getpid(), signal.SIGINT)
"""
#: It starts processes, and so needs the exception.
STOPS = f"""
hand_over(signal.default_int_handler)
try:
    {PRESS}
    time.sleep(60)
except KeyboardInterrupt:
    say("stopped")()
"""
#: A worker's signals, within those of all commands.
SIGTERM = """
with end_on_signal({**CTRL_C, signal.SIGTERM: 0}):
    os.kill(os.getpid(), signal.SIGTERM)
"""
#: An event loop has replaced the wake-up file descriptor and handles another signal only.
BESIDE_A_LOOP = """
import asyncio
asyncio.new_event_loop().add_signal_handler(signal.SIGUSR1, print)
os.kill(os.getpid(), signal.SIGINT)
"""


def run(body: str, around: str = "with end_on_signal(CTRL_C):") -> tuple[int, list[str]]:
    """The exit code and the lines on stderr of a program. Without an interrupt it ends with 7."""
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    program = f"""
import contextlib, ctypes, os, signal, sys, threading, time, weakref
from txbridge import interrupts
from txbridge.interrupts import CTRL_C, end_on_signal, hand_over, if_interrupted
TEXT = {TEXT!r}
def say(text):
    return lambda: print(text, file=sys.stderr, flush=True)
{around}
{indented}
sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_main_thread_is_the_process_ends_and_nothing_is_raised(place: str) -> None:
    assert run(PLACES[place]) == (130, [])


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        pytest.param(WITHIN, [TEXT], id="within"),
        pytest.param(NESTED, ["inner", "outer"], id="nested"),
        pytest.param(AFTER, [], id="after"),
        pytest.param(AFTER_AN_ERROR, [], id="after an error"),
        pytest.param(HANGS, [], id="hangs"),
    ],
)
def test_the_last_acts_are_those_of_the_blocks_that_are_being_run(block: str, lines: list[str]) -> None:
    assert run(block) == (130, lines)


def test_a_signal_within_the_block_of_another_has_its_own_exit_code() -> None:
    assert run(SIGTERM) == (0, [])
    assert run(SIGTERM.replace("SIGTERM)", "SIGINT)")) == (130, [])


def test_an_event_loop_that_handles_another_signal_takes_nothing_away() -> None:
    assert run(BESIDE_A_LOOP) == (130, [])


@pytest.mark.parametrize(
    "before", ["signal.SIG_IGN", "lambda *_: None"], ids=["ignored, as in the background of a shell", "handled"]
)
def test_a_signal_that_somebody_else_decides_about_is_left_alone(before: str) -> None:
    assert run(PRESS, f"signal.signal(signal.SIGINT, {before})\nwith end_on_signal(CTRL_C):") == (7, [])


def test_after_the_block_the_handler_is_the_one_before() -> None:
    ended = "with end_on_signal(CTRL_C): pass\nwith contextlib.suppress(KeyboardInterrupt):"
    assert run(f"{PRESS}\ntime.sleep(60)", ended) == (7, [])


def test_a_command_that_has_something_to_stop_hears_ctrl_c_itself() -> None:
    assert run(STOPS) == (7, ["stopped"])


def test_every_service_hears_that_its_terminal_was_closed(monkeypatch):
    handlers, sent = {}, []
    monkeypatch.setattr("txbridge.interrupts.signal.signal", lambda number, call: handlers.update({number: call}))
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("txbridge.log.configure", lambda *_: None)
    serve(WorkerSettings(bootstrap_servers="h:1"), lambda: handlers[signal.SIGHUP](signal.SIGHUP, None))
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_under_nohup_it_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end_at_hangup()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
