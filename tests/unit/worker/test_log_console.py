"""The log for people, without a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from txbridge import log

log.configure("console", "info")
try:
    1 / 0
except ZeroDivisionError:
    log.get_logger("txbridge.test").exception("boom", a=1)
"""


def test_in_a_pipe_it_is_text_without_colours_and_warnings():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={name: value for name, value in os.environ.items() if name != "FORCE_COLOR"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    first, *trace = done.stderr.decode().splitlines()
    assert first.endswith("[txbridge.test] a=1")
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert b"\x1b" not in done.stderr
