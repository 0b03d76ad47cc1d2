"""The judge of the chaos tests sees what it is there to see."""

from __future__ import annotations

from tests.chaos.checker import refusals, violations
from tests.chaos.reader import Sighting

DECISIONS = {"a": True, "b": True, "c": False}
TOLD = [("a", "C", True), ("b", "U", True), ("c", "R", True)]
A, B = Sighting("a", "0:0", 0, 0, 1.0), Sighting("b", "0:1", 1, 0, 2.0)


def test_a_good_history_has_no_violation() -> None:
    assert violations(DECISIONS, TOLD, [A, B], [A, B]) == []


def test_a_committed_transaction_that_is_missing_is_lost() -> None:
    assert violations(DECISIONS, TOLD, [A], [A, B]) == ["lost: b is committed, and the watching reader did not see it"]


def test_two_copies_are_doubled() -> None:
    twice = Sighting("a", "0:0", 0, 5, 3.0)
    assert violations(DECISIONS, TOLD, [A, B, twice], [A, B, twice]) == [
        "doubled: a 2 times for the watching reader",
        "doubled: a 2 times for the reader at the end",
    ]


def test_a_rolled_back_one_that_is_visible_is_leaked() -> None:
    leaked = Sighting("c", "0:2", 0, 1, 3.0)
    assert violations(DECISIONS, TOLD, [A, B], [A, B, leaked]) == [
        "leaked: c is rolled back, and the reader at the end saw it"
    ]


def test_what_nobody_decided_is_a_phantom() -> None:
    phantom = Sighting("x", "0:9", 0, 1, 3.0)
    assert violations(DECISIONS, TOLD, [A, B, phantom], [A, B, phantom]) == [
        "phantom: the watching reader saw x, which no application decided",
        "phantom: the reader at the end saw x, which no application decided",
    ]


def test_a_reader_that_is_sent_back_and_a_log_that_changes_are_seen() -> None:
    later = Sighting("b", "0:1", 0, 1, 2.0)
    assert violations(DECISIONS, TOLD, [later, A], [A, later]) == ["went back: the watching reader saw 0:0 after 1"]
    elsewhere = Sighting("b", "0:1", 1, 7, 2.0)
    assert violations(DECISIONS, TOLD, [A, B], [A, elsewhere]) == ["changed: 1:0 was b, and is None"]


def test_an_application_that_contradicts_its_database_is_no_witness() -> None:
    assert violations(DECISIONS, [("a", "R", True)], [A, B], [A, B]) == [
        "inconsistent application: a was told R, its database says True"
    ]


def refused(reason: str) -> dict[str, object]:
    return {"partition": 2, "half_offset": 17, "reason": reason, "count": 55, "end_offset": 3, "source": "client"}


def test_a_valid_decision_that_is_refused_is_a_violation_also_when_a_check_decides_again() -> None:
    assert refusals([refused("no_half_message"), refused("contradiction")]) == [
        "refused: 55 decisions as no_half_message, the first of 2:17 in END 3 (client)",
        "refused: 55 decisions as contradiction, the first of 2:17 in END 3 (client)",
    ]


def test_a_decision_may_come_twice() -> None:
    assert refusals([refused("repeat"), refused("late")]) == []
