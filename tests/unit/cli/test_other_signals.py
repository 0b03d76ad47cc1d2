"""A closed terminal ends a service as SIGTERM does."""

from __future__ import annotations

import os
import signal

import pytest
from typer.testing import CliRunner

from txbridge.cli.app import app
from txbridge.interrupts import end_at_hangup


@pytest.mark.parametrize("program", ["worker", "rocketmq", "answer-checks", "relay"])
def test_every_service_hears_that_its_terminal_was_closed(program, monkeypatch):
    """Before anything else, so that a mistake in the options is the end of this test."""
    handlers = {}
    monkeypatch.setattr("txbridge.interrupts.signal.signal", lambda number, call: handlers.update({number: call}))
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
