"""Checks that are due and not sent: they grow old, and are told once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from tests.support.manual_time import ManualTime
from txbridge.worker.turn.check_round import CheckWatch


@pytest.fixture
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    with capture_logs() as captured:
        yield captured


def test_p8_what_is_due_and_not_sent_grows_old_and_is_told_once(logs):
    time = ManualTime()
    watch = CheckWatch(3, time)
    for _ in range(60):
        watch.round_done({"g": "not the coordinator"})
        time.seconds += 1
    assert watch.overdue == 60
    assert logs == [
        {
            "event": "checks_overdue",
            "log_level": "warning",
            "partition": 3,
            "group": "g",
            "groups": 1,
            "seconds": 31,
            "error": "not the coordinator",
        }
    ]
    watch.note_sent(["g"])
    assert watch.overdue == 0
    assert [line["event"] for line in logs] == ["checks_overdue", "checks_go_on"]


def test_p8_checks_of_others_do_not_hide_a_group_that_is_never_checked(logs):
    time = ManualTime()
    watch = CheckWatch(0, time)
    for _ in range(40):
        watch.round_done({"checked": "its turn", "silent": "no answer"})
        watch.note_sent(["checked"])
        time.seconds += 1
    assert watch.overdue == 40
    assert [(line["event"], line["group"]) for line in logs] == [("checks_overdue", "silent")]


def test_a_group_with_nobody_alive_is_not_overdue(logs):
    time = ManualTime()
    watch = CheckWatch(0, time)
    watch.round_done({"g": "Kafka has not answered yet"})
    time.seconds += 1
    # By now Kafka has said that the group has no member.
    watch.round_done({})
    time.seconds += 1_000
    assert watch.overdue == 0
    assert logs == []


def test_p8_a_round_that_waits_for_end_for_ever_is_told(logs):
    time = ManualTime()
    watch = CheckWatch(0, time)
    for _ in range(40):
        watch.round_waits("END has to be applied up to offset 9, and is up to 7")
        time.seconds += 1
    assert watch.overdue == 40
    assert [line["error"] for line in logs] == ["END has to be applied up to offset 9, and is up to 7"]
    watch.round_done({})
    assert watch.overdue == 0
