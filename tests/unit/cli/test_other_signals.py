"""Other signals end a command as Ctrl-C does."""

from __future__ import annotations

import signal

import pytest

from txbridge.cli.interrupts import as_interrupt


@pytest.fixture(autouse=True)
def sigint_as_before():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_whoever_hears_ctrl_c_hears_another_signal_in_the_same_way():
    heard = []
    signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    with pytest.raises(KeyboardInterrupt):
        as_interrupt(signal.SIGTERM, None)
    assert heard == [signal.SIGINT]


def test_without_a_handler_it_is_an_interrupt_all_the_same():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt):
        as_interrupt(signal.SIGTERM, None)
