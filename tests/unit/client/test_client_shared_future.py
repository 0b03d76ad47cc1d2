"""A future that shares its condition is a Future like any other."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, InvalidStateError, as_completed, wait

import pytest

from txbridge.client.flow.pipeline import LightFuture, SharedCondition


@pytest.fixture
def futures():
    condition = SharedCondition()
    return [LightFuture(condition) for _ in range(3)]


def later(seconds, function, *arguments):
    timer = threading.Timer(seconds, function, arguments)
    timer.start()
    return timer


def test_it_has_all_that_a_future_has(futures):
    for name, value in Future().__dict__.items():
        if name != "_condition":
            assert getattr(futures[0], name) == value, name
    assert futures[0]._waiters is not futures[1]._waiters
    assert futures[0]._done_callbacks is not futures[1]._done_callbacks


def test_results_and_exceptions(futures):
    first, second, third = futures
    error = ValueError("no")
    first.set_result(1)
    second.set_exception(error)
    assert (first.result(), first.exception(), first.done()) == (1, None, True)
    assert second.exception() is error
    with pytest.raises(ValueError, match="no"):
        second.result()
    with pytest.raises(InvalidStateError):
        first.set_result(2)
    assert third.cancel()
    assert not first.cancel()
    with pytest.raises(CancelledError):
        third.result(1)


def test_who_waits_for_one_is_not_fooled_by_the_others_and_waits_as_long_as_it_says(futures):
    first, second, third = futures
    timers = [later(0.02, second.set_result, 2), later(0.04, third.cancel), later(0.4, first.set_result, 1)]
    since = time.monotonic()
    with pytest.raises(TimeoutError):
        first.exception(0.2)
    assert 0.2 <= time.monotonic() - since < 60
    assert first.result() == 1
    for timer in timers:
        timer.join()


def test_a_failure_that_is_a_timeout_is_raised_at_once(futures):
    error = TimeoutError("the application's own")
    futures[0].set_exception(error)
    with pytest.raises(TimeoutError, match="own"):
        futures[0].result()
    assert futures[0].exception(1) is error


def test_the_standard_librarys_waits_take_it(futures):
    first, second, third = futures
    timers = [later(0.02, second.set_result, 2)]
    assert wait(futures, 120, FIRST_COMPLETED).done == {second}
    finished = as_completed(futures, 120)
    assert next(finished) is second
    # The next one is resolved only now: two timers could swap on a busy machine.
    timers.append(later(0.02, first.set_result, 1))
    assert next(finished) is first
    timers.append(later(0.02, third.set_result, 3))
    assert next(finished) is third
    assert wait(futures, 120).not_done == set()
    for timer in timers:
        timer.join()


def test_an_event_loop_can_await_it(futures):
    first, second, _ = futures
    timer = later(0.02, first.set_result, 1)

    async def both():
        second.set_result(2)
        return await asyncio.gather(asyncio.wrap_future(first), asyncio.wrap_future(second))

    assert asyncio.run(both()) == [1, 2]
    timer.join()


def test_callbacks_run_once_and_without_the_lock(futures):
    first, second, _ = futures
    seen = []

    def look(future):
        # It would hang if the condition were still taken.
        thread = threading.Thread(target=lambda: seen.append((future.result(), second.done())))
        thread.start()
        thread.join(120)

    first.add_done_callback(look)
    first.set_result(1)
    first.add_done_callback(look)
    assert seen == [(1, False)] * 2
