"""Faust's time limits for answers of Kafka."""

from __future__ import annotations

import pytest

from txbridge.config.worker import WorkerSettings
from txbridge.worker.app import create_app


@pytest.mark.parametrize(("session_ms", "longest_s"), [(6_000, 20), (15_000, 20), (45_000, 50)])
def test_a_broker_that_never_answers_costs_seconds_and_joining_has_its_time(session_ms: int, longest_s: int) -> None:
    """By Faust's own settings a start beside a frozen broker takes up to 20 minutes."""
    app = create_app(WorkerSettings(bootstrap_servers="127.0.0.1:1", session_timeout=session_ms))
    assert app.conf.broker_request_timeout == app.conf.producer_request_timeout == longest_s
    # A joining member is answered when a dead member's session is over, or when the time of all to join is over.
    assert app.conf.broker_request_timeout > app.conf.broker_rebalance_timeout
    assert app.conf.broker_request_timeout > session_ms / 1_000
