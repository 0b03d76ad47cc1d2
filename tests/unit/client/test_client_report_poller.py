"""The threads that serve delivery reports, without Kafka."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

import pytest

from txbridge.client.prepare.report_poller import SERVE_S, Serving, Waiter


class Reports:
    """Stand-in for librdkafka: report calls for the serving thread, and the names of the threads that made them."""

    def __init__(self):
        self.calls = SimpleQueue()
        self.served_by = []
        self._at_once = threading.Lock()

    def serve(self, timeout):
        assert self._at_once.acquire(blocking=False), "two threads serve at once"
        try:
            call = self.calls.get(timeout=timeout)
        except Empty:
            return
        else:
            self.served_by.append(threading.current_thread().name)
            call()
        finally:
            self._at_once.release()


@pytest.fixture
def reports():
    return Reports()


@pytest.fixture
def serving(reports):
    serving = Serving(reports.serve, "ours")
    serving.start()
    yield serving
    serving.stop(lambda: None)


def call(serving, reports, result):
    with Waiter(serving) as waiter:
        reports.calls.put(lambda: waiter.report(result))
        serving.expect()
        return waiter.result()


def test_one_caller_after_another_serves_itself(serving, reports):
    assert [call(serving, reports, number) for number in range(50)] == list(range(50))
    # Our thread serves until it learns that callers do. It may look once more if this machine pauses.
    assert reports.served_by.count("MainThread") > reports.served_by.count("ours")


def test_what_nobody_waits_for_is_served(serving, reports):
    for pause in (0, 3 * SERVE_S):
        call(serving, reports, 1)
        time.sleep(pause)
        done = threading.Event()
        reports.calls.put(done.set)
        serving.expect()
        assert done.wait(120)


def test_many_callers_all_get_their_own(serving, reports):
    results = SimpleQueue()

    def work(thread):
        for number in range(200):
            results.put((thread, number, call(serving, reports, (thread, number))))

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [results.get() for _ in range(1_600)]
    assert all(result == (thread, number) for thread, number, result in found)


def test_who_waits_is_served_when_the_caller_that_served_has_its_report(serving, reports):
    while "MainThread" not in reports.served_by:
        call(serving, reports, 1)
    got = SimpleQueue()
    with Waiter(serving) as first:
        # It leads from now on, until its report comes, before that of the other.
        follower = threading.Thread(target=lambda: got.put(second_result()))
        second = Waiter(serving)

        def second_result():
            with second:
                started.set()
                return second.result()

        started = threading.Event()
        follower.start()
        assert started.wait(120)
        reports.calls.put(lambda: first.report("first"))
        assert first.result() == "first"
    reports.calls.put(lambda: second.report("second"))
    assert got.get(timeout=120) == "second"
    follower.join()


def test_an_interrupted_caller_leaves_the_reports_to_others(serving, reports):
    def interrupt():
        raise KeyboardInterrupt

    while "MainThread" not in reports.served_by:
        call(serving, reports, 1)
    interrupted = False
    while not interrupted:
        before = len(reports.served_by)
        with Waiter(serving) as waiter:
            reports.calls.put(
                lambda waiter=waiter: waiter.report(1) if reports.served_by[-1] == "ours" else interrupt()
            )
            try:
                waiter.result()
            except KeyboardInterrupt:
                interrupted = True
        assert len(reports.served_by) == before + 1
    assert call(serving, reports, 2) == 2


def test_stop_ends_a_caller_that_serves_once_it_has_been_told(reports):
    serving = Serving(reports.serve, "ours")
    serving.start()
    while "MainThread" not in reports.served_by:
        call(serving, reports, 1)
    got = SimpleQueue()
    waiter = Waiter(serving)

    def wait():
        with waiter:
            got.put(waiter.result())

    caller = threading.Thread(target=wait)
    caller.start()
    serving.stop(lambda: waiter.report("given up"))
    assert got.get(timeout=120) == "given up"
    caller.join()
