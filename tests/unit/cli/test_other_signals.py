"""Other signals end a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal

import pytest
from typer.testing import CliRunner

from txbridge.cli.app import app
from txbridge.cli.interrupts import as_interrupt, end_at_hangup


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


@pytest.mark.parametrize("program", ["worker", "rocketmq", "answer-checks"])
def test_every_service_hears_that_its_terminal_was_closed(program, monkeypatch):
    """Before anything else, so that a mistake in the options is the end of this test."""
    handlers = {}
    monkeypatch.setattr("txbridge.cli.interrupts.signal.signal", lambda number, call: handlers.update({number: call}))
    CliRunner().invoke(app, [program], env={"TXBRIDGE_BOOTSTRAP_SERVERS": ";"})
    sent = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_under_nohup_it_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        end_at_hangup()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
