"""The checker of the chaos tests: it finds every kind of violation."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.checker import refusals, unfinished, violations
from tests.chaos.client import intended, plan_of
from tests.chaos.reader import Sighting
from tests.chaos.store import DecisionStore, Plan

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


#: Transaction s sends three messages to two topics.
SEVERAL = {"s": Plan(("orders", "mail", "orders"))}


def message(number: int, topic: str, offset: int, **more: int) -> Sighting:
    return Sighting("s", "0:5", 0, offset, 1.0, topic, number, more.pop("of", 3), **more)


S = [message(1, "orders", 0), message(2, "mail", 0), message(3, "orders", 1)]


def judged(final: list[Sighting], plans: dict[str, Plan] = SEVERAL) -> list[str]:
    """Violations that the reader at the end alone shows."""
    found = violations({"s": True}, [], S, final, plans)
    return [text for text in found if "the watching reader" not in text and not text.startswith("changed")]


def test_all_messages_of_a_transaction_once_each_in_their_topics_are_good() -> None:
    assert violations({"s": True}, [], S, [S[1], S[0], S[2]], SEVERAL) == []


def test_some_messages_of_a_transaction_are_torn() -> None:
    assert judged([S[0]]) == ["torn: the reader at the end saw s without 2/3, 3/3"]
    assert judged([]) == ["lost: s is committed, and the reader at the end did not see it"]


def test_one_message_twice_is_doubled_and_not_the_others() -> None:
    assert judged([*S, message(2, "mail", 1)]) == ["doubled: s 2/3 2 times for the reader at the end"]


def test_messages_of_a_transaction_in_another_order_are_seen_by_their_offsets() -> None:
    assert judged([message(3, "orders", 0), S[1], message(1, "orders", 1)]) == [
        "out of order: the reader at the end saw s 3/3 before 1/3"
    ]


def test_a_message_in_another_topic_or_of_another_count_has_strayed() -> None:
    assert judged([S[0], message(2, "orders", 1), message(3, "orders", 2)]) == [
        "strayed: the reader at the end saw s 2/3 in orders"
    ]
    assert judged([S[0], S[1], message(3, "orders", 1, of=4)]) == ["strayed: the reader at the end saw s 3/4 in orders"]


def test_what_is_stored_before_its_time_is_early() -> None:
    due = {"s": Plan(SEVERAL["s"].topics, 10_000)}
    at = [message(one.number, one.topic, one.offset, stored=10_000) for one in S]
    assert judged(at, due) == []
    assert judged([message(1, "orders", 0, stored=9_999), *at[1:]], due) == [
        "early: s 1/3 was stored 1 ms before its time"
    ]
    # Its topic does not have the time when it was stored.
    assert judged(S, due) == []


def test_every_kind_of_message_meets_every_answer() -> None:
    plans = [plan_of(number, "real", "other", 1_000) for number in range(1_100)]
    kinds = {(len(plan.topics), plan.due is not None, *intended(number)) for number, plan in enumerate(plans)}
    assert len(kinds) == 4 * 4
    assert {plan.due for plan in plans} == {None, 2_000, 3_000, 4_000, 5_000, 6_000}
    assert sum(len(plan.topics) == 4 for plan in plans) == sum(plan.due is not None for plan in plans) == 200


def test_the_first_to_decide_is_the_one_whose_plan_counts(tmp_path: Path) -> None:
    store = DecisionStore(tmp_path / "decisions.db")
    assert store.decide("a", commits=True, plan=Plan(("real", "other"), 7))
    assert not store.decide("b", commits=False)
    assert not store.decide("b", commits=True, plan=Plan(("real",)))
    assert store.decide("c", commits=True)
    assert store.decisions() == {"a": True, "b": False, "c": True}
    assert store.plans() == {"a": Plan(("real", "other"), 7)}
    store.close()


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


def test_a_transaction_without_an_outcome_is_unfinished_and_one_of_two_copies_is_enough() -> None:
    halves = {(0, 5): "A", (0, 6): "B", (1, 0): "C", (0, 9): "B"}
    assert unfinished(halves, {(0, 5), (0, 9)}) == ["unfinished: C has no outcome, its half message is 1:0"]
    assert unfinished(halves, {(0, 5), (0, 6), (1, 0)}) == []
