"""The small parts that every program uses: words for people, deadlines and failpoints."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stopped import wait_stopped
from txbridge import failpoints
from txbridge.backoff import Backoff
from txbridge.deadline import Deadline
from txbridge.text import counted, duration, iso_time, one_line, plain, printable


def test_a_number_has_its_noun_in_the_right_form():
    assert [counted(number, "message") for number in (0, 1, 2, 1_200)] == [
        *("0 messages", "1 message", "2 messages", "1,200 messages")
    ]
    assert (counted(1, "entry", "entries"), counted(3, "entry", "entries")) == ("1 entry", "3 entries")


def test_a_time_that_is_no_date_is_shown_as_a_number():
    # Where a topic takes the producer's time, it takes any number.
    assert [iso_time(ms) for ms in (1_700_000_000_456, 253_402_300_799_999, 253_402_300_800_000, -1)] == [
        *("2023-11-14T22:13:20.456Z", "9999-12-31T23:59:59.999Z", "253402300800000 ms", "-1 ms")
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (999, "0s"),
        (1_000, "1s"),
        (61_000, "1m 1s"),
        (120_000, "2m"),
        (3_600_000, "1h"),
        (3_661_000, "1h 1m"),
        (90_000_000, "1d 1h"),
        (8_640_000_000, "100d"),
    ],
)
def test_a_duration_in_its_two_largest_units(ms, text):
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe … 日本", "größe … 日本"),
        ("\x1b[31mred", "\\x1b[31mred"),
        # C1: one character that begins a sequence, as ESC [ does.
        ("\x9b31m", "\\x9b31m"),
        # It reverses the order of what follows.
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("a\r\nb", "a\\r\nb"),
        ("a\u2028b", "a\\u2028b"),
    ],
)
def test_printable_text_controls_no_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert one_line(text) == plain(text, 20) == shown.replace("\n", "\\n")
    assert plain("x" * 11, 10) == "x" * 9 + "…"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_is_one_budget_for_all_steps() -> None:
    clock = Clock()
    deadline = Deadline(3.0, clock)
    assert (deadline.at, deadline.left, deadline.timeout, deadline.is_over) == (103.0, 3.0, 3.0, False)
    clock.now = 102.5
    assert (deadline.left, deadline.timeout, deadline.is_over) == (0.5, 0.5, False)
    clock.now = 103.0
    assert (deadline.left, deadline.timeout, deadline.is_over) == (0.0, 0.0, True)
    clock.now = 109.0
    assert (deadline.left, deadline.timeout, deadline.is_over) == (0.0, 0.0, True)


def test_no_deadline_is_never_over_and_waits_without_a_limit() -> None:
    deadline = Deadline(None, Clock())
    assert (deadline.left, deadline.timeout, deadline.is_over) == (math.inf, None, False)


def test_no_time_at_all_is_over_at_once() -> None:
    assert Deadline(0.0, Clock()).is_over


def test_back_off_doubles_up_to_the_longest_and_begins_again() -> None:
    backoff = Backoff(0.2, 1.0)
    assert backoff.pause == 0.2
    assert [backoff.next() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.pause == 1.0
    backoff.reset()
    assert [backoff.next() for _ in range(2)] == [0.2, 0.4]


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
