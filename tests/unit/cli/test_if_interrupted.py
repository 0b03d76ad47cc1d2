"""The text of a block that Ctrl-C interrupts: printed once, and only if the block is interrupted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = "a command that was written already will be applied"

#: A library call blocks Python's signal handlers, so that the watching thread ends the process.
BLOCKED = """
signal.signal(signal.SIGINT, lambda *_: None)
def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""
WITHIN = """
with if_interrupted(TEXT):
    press_ctrl_c()
"""
#: The main thread hears Ctrl-C. What it does then takes longer than the watching thread waits.
HEARD_LATE = """
try:
    with if_interrupted(TEXT):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
except KeyboardInterrupt:
    time.sleep(60)
"""
AFTER = """
with if_interrupted(TEXT):
    pass
press_ctrl_c()
"""
AFTER_AN_ERROR = """
with contextlib.suppress(ValueError), if_interrupted(TEXT):
    raise ValueError
press_ctrl_c()
"""


def said(body: str) -> tuple[int, list[str]]:
    """The exit code and the lines on stderr of a program."""
    program = f"""
import contextlib, os, signal, sys, time
from txbridge.cli import interrupts
from txbridge.cli.interrupts import if_interrupted
TEXT = {TEXT!r}
interrupts.GRACE_S = 0.3
interrupts.watch()
{body}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_the_text_of_an_interrupted_block_is_printed_by_the_watching_thread_if_the_main_thread_is_blocked() -> None:
    assert said(BLOCKED + WITHIN) == (130, [TEXT])


def test_it_is_printed_once_if_the_main_thread_hears_ctrl_c_and_ends_late() -> None:
    assert said(HEARD_LATE) == (130, [TEXT])


@pytest.mark.parametrize("block", [AFTER, AFTER_AN_ERROR], ids=["done", "failed"])
def test_a_block_that_has_ended_has_no_text_any_more(block: str) -> None:
    assert said(BLOCKED + block) == (130, [])
