"""The tool that interrupts the client at every point: its points are those at which CPython checks for signals."""

from __future__ import annotations

import itertools
import textwrap
import threading
from pathlib import Path

import pytest

from tests.support import interrupts
from tests.support.interrupts import Run


def points_of(source, name, **names):
    """Lines of a function and its callees at which it may be interrupted, in order.

    The code is new each time: some Python versions trace a function's first call in another way.
    """
    path, lines = str(Path(interrupts.OURS) / "new.py"), []
    for number in itertools.count():
        run_of = dict(names)
        exec(compile(textwrap.dedent(source), path, "exec"), run_of)
        run = Run(number, run_of[name], lambda: None)
        assert not run.hangs(20)
        assert run.error is None
        place = run.interrupter.place
        assert run.reached == bool(place)
        if not place:
            return lines
        lines.append(int(place.removeprefix("new.py:").split()[0]))
    raise AssertionError


@pytest.mark.parametrize(
    "call", ["built_in()", "built_in(8)", "built_in(*())", "built_in(real=8, imag=8)", "built_in(**{'real': 8})"]
)
def test_after_any_call_of_a_built_in_function(call):
    source = f"""
        def called():
            one = 8
            two = {call}
            return one
    """
    # The beginning of the function, and the point after the call.
    assert points_of(source, "called", built_in=complex) == [3, 4]


def test_at_the_begin_of_every_function_and_not_after_it():
    source = """
        def called():
            one = inner()
            two = inner(by=8)
            return one
        def inner(by=1):
            return by
    """
    assert points_of(source, "called") == [3, 7, 7]


def test_at_the_end_of_each_turn_of_a_loop():
    source = """
        def called():
            for one in (1, 2):
                two = one
            return one
    """
    # Python versions differ in the line of the jump back: the loop's head or its body.
    points = points_of(source, "called")
    assert points[0] == 3
    assert len(points) == 3
    assert set(points) <= {3, 4}


def test_before_a_lock_is_taken_and_after_it_is_given_back_and_not_between_the_two_and_the_body():
    source = """
        def called():
            one = 8
            with lock:
                two = one
            return one
    """
    assert points_of(source, "called", lock=threading.Lock()) == [3, 4, 4]


def test_a_generator_that_goes_on():
    source = """
        def called():
            for one in inner():
                two = one
            return one
        def inner():
            yield 1
            yield 2
    """
    # At its beginning, and when it goes on after each value.
    assert [line for line in points_of(source, "called") if line >= 6] == [7, 7, 8]
