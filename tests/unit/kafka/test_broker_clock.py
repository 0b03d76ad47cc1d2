"""BrokerClock: with a wrong clock of its machine, a worker checks, discards and forgets nothing too early."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.environment import Outside
from txbridge.testing.worker import ShiftedClock

HOUR = 3_600_000


class Machine(Outside):
    """A machine with a settable clock, and with one that nobody sets."""

    def __init__(self, own: int) -> None:
        self.own, self.seconds = own, 50.0

    def now(self) -> int:
        return self.own

    def monotonic(self) -> float:
        return self.seconds

    def pass_time(self, milliseconds: int) -> None:
        self.own += milliseconds
        self.seconds += milliseconds / 1000


def test_p6_p7_a_clock_that_is_73_hours_ahead_makes_nothing_due():
    machine = Machine(own=1_000_000 + 73 * HOUR)
    clock = BrokerClock(2, machine)
    with capture_logs() as logs:
        clock.note_append(1_000_000)
    machine.pass_time(5_000)
    assert clock.now() == clock.due() == 1_005_000
    assert clock.ahead_ms == 73 * HOUR
    assert clock.problem is not None
    assert clock.problem.startswith("the clock of this machine is 262800 s ahead of that of the broker")
    assert [(line["event"], line["log_level"], line["partition"]) for line in logs] == [("clock_differs", "error", 2)]


def test_p6_p7_the_latest_time_that_it_can_be_counts_from_before_the_append():
    machine = Machine(own=1_000_000)
    clock = BrokerClock(0, machine)
    assert clock.now_at_latest() == 1_000_000
    began = machine.monotonic()
    machine.pass_time(750)
    # Appended at some time within the last 750 ms, and acknowledged now.
    clock.note_append(1_000_200, began)
    machine.pass_time(250)
    assert (clock.now(), clock.now_at_latest()) == (1_000_450, 1_001_200)


def test_p6_p7_a_brokers_clock_that_jumps_ahead_makes_nothing_due():
    machine = Machine(own=1_000_000)
    clock = BrokerClock(0, machine)
    clock.note_append(1_000_000 + 73 * HOUR)
    assert clock.due() == 1_000_000
    # Stored times are the brokers', as births are: a resumed message must not be old at once.
    assert clock.now() == 1_000_000 + 73 * HOUR


def test_clocks_that_agree_within_a_minute_go_by_the_brokers():
    machine = Machine(own=1_000_000)
    clock = BrokerClock(0, machine)
    assert clock.now() == clock.due() == 1_000_000, "nothing was written yet"
    assert clock.ahead_ms is None
    clock.note_append(1_000_000 - 60_000)
    assert clock.now() == clock.due() == 940_000
    assert clock.problem is None


def test_a_machine_that_is_set_right_is_reported_once():
    machine = Machine(own=1_000_000 + HOUR)
    clock = BrokerClock(0, machine)
    with capture_logs() as logs:
        for _ in range(3):
            clock.note_append(1_000_000)
        machine.own -= HOUR
        for _ in range(3):
            clock.note_append(1_000_000)
    assert [line["event"] for line in logs] == ["clock_differs", "clock_agrees"]


def test_a_machine_that_has_slept_asks_the_brokers_again():
    machine = Machine(own=1_000_000)
    clock = BrokerClock(0, machine)
    clock.note_append(1_000_000)
    # The monotonic clock stops while a machine sleeps.
    machine.own += HOUR
    machine.pass_time(9_000)
    assert not clock.should_ask_again
    machine.pass_time(1_000)
    assert clock.should_ask_again
    clock.note_append(1_000_000 + HOUR + 10_000)
    assert not clock.should_ask_again
    assert clock.problem is None


def test_a_test_shifts_what_is_due_by_the_brokers_and_no_clock_differs(tmp_path: Path):
    file = tmp_path / "clock"
    outside = ShiftedClock(file)
    clock = BrokerClock(0, outside)
    start = outside.now()
    file.write_text(str(73 * HOUR))
    assert clock.due() >= start + 73 * HOUR, "nothing was written yet"
    with capture_logs() as logs:
        clock.note_append(start)
    assert start + 73 * HOUR <= clock.now() < start + 74 * HOUR
    assert start + 73 * HOUR <= clock.due() < start + 74 * HOUR
    assert clock.problem is None
    assert logs == []
    file.write_text("0")
    assert clock.now() < start + HOUR
    assert clock.due() < start + HOUR
    # It does not excuse a wrong clock.
    file.write_text(str(HOUR))
    clock.note_append(start - 73 * HOUR)
    assert clock.due() < start
    assert clock.problem is not None
