"""The chaos tests' own parts: the checker finds every kind of violation, and a cell that dies takes none along."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.checker import refusals, unfinished, violations
from tests.chaos.client import intended, plan_of
from tests.chaos.cluster_cells import coordinating
from tests.chaos.reader import Sighting
from tests.chaos.store import DecisionStore, Plan
from tests.chaos.whole_run import Found, is_clean, run_cells

DECISIONS = {"a": True, "b": True, "c": False}
TOLD = [("a", "C", True), ("b", "U", True), ("c", "R", True)]
A, B = Sighting("a", "0:0", 0, 0, 1.0), Sighting("b", "0:1", 1, 0, 2.0)
AGAIN, LEAKED, PHANTOM = (Sighting(*one, 3.0) for one in (("a", "0:0", 0, 5), ("c", "0:2", 0, 1), ("x", "0:9", 0, 1)))
LATER, ELSEWHERE = Sighting("b", "0:1", 0, 1, 2.0), Sighting("b", "0:1", 1, 7, 2.0)
WATCHING, AT_THE_END = "the watching reader", "the reader at the end"


@pytest.mark.parametrize(
    ("watched", "final", "found"),
    [
        ([A, B], [A, B], []),
        ([A], [A, B], [f"lost: b is committed, and {WATCHING} did not see it"]),
        ([A, B, AGAIN], [A, B, AGAIN], [f"doubled: a 2 times for {WATCHING}", f"doubled: a 2 times for {AT_THE_END}"]),
        ([A, B], [A, B, LEAKED], [f"leaked: c is rolled back, and {AT_THE_END} saw it"]),
        (
            [A, B, PHANTOM],
            [A, B, PHANTOM],
            [f"phantom: {who} saw x, which no application decided" for who in (WATCHING, AT_THE_END)],
        ),
        ([LATER, A], [A, LATER], [f"went back: {WATCHING} saw 0:0 after 1"]),
        ([A, B], [A, ELSEWHERE], ["changed: 1:0 was b, and is None"]),
    ],
)
def test_each_violation_of_a_message_is_named(watched: list[Sighting], final: list[Sighting], found: list[str]) -> None:
    assert violations(DECISIONS, TOLD, watched, final) == found


def test_an_application_that_contradicts_its_database_is_no_witness() -> None:
    assert violations(DECISIONS, [("a", "R", True)], [A, B], [A, B]) == [
        "inconsistent application: a was told R, its database says True"
    ]


#: Transaction s sends three messages to two topics. In the second plan, those for orders name a time.
SEVERAL = {"s": Plan(("orders", "mail", "orders"))}
DUE = {"s": Plan(SEVERAL["s"].topics, 10_000)}


def message(number: int, topic: str, offset: int, **more: int) -> Sighting:
    return Sighting("s", "0:5", 0, offset, 1.0, topic, number, more.pop("of", 3), **more)


S = [message(1, "orders", 0), message(2, "mail", 0), message(3, "orders", 1)]
ON_TIME = [message(one.number, one.topic, one.offset, stored=1 if one.topic == "mail" else 10_000) for one in S]


@pytest.mark.parametrize(
    ("final", "plans", "found"),
    [
        ([S[1], S[0], S[2]], SEVERAL, []),
        ([S[0]], SEVERAL, [f"torn: {AT_THE_END} saw s without 2/3, 3/3"]),
        ([], SEVERAL, [f"lost: s is committed, and {AT_THE_END} did not see it"]),
        ([*S, message(2, "mail", 1)], SEVERAL, [f"doubled: s 2/3 2 times for {AT_THE_END}"]),
        (
            [message(3, "orders", 0), S[1], message(1, "orders", 1)],
            SEVERAL,
            [f"out of order: {AT_THE_END} saw s 3/3 before 1/3"],
        ),
        (
            [S[0], message(2, "orders", 1), message(3, "orders", 2)],
            SEVERAL,
            [f"strayed: {AT_THE_END} saw s 2/3 in orders"],
        ),
        ([S[0], S[1], message(3, "orders", 1, of=4)], SEVERAL, [f"strayed: {AT_THE_END} saw s 3/4 in orders"]),
        (ON_TIME, DUE, []),
        ([message(1, "orders", 0, stored=9_999), *ON_TIME[1:]], DUE, ["early: s 1/3 was stored 1 ms before its time"]),
        # Its topic does not have the time when it was stored.
        (S, DUE, []),
    ],
)
def test_each_violation_of_several_messages_is_named(
    final: list[Sighting], plans: dict[str, Plan], found: list[str]
) -> None:
    """As the reader at the end alone shows it."""
    said = violations({"s": True}, [], S, final, plans)
    assert [text for text in said if WATCHING not in text and not text.startswith("changed")] == found


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


def test_a_valid_decision_that_is_refused_is_a_violation_and_a_repeated_one_is_not() -> None:
    def refused(reason: str) -> dict[str, object]:
        return {"partition": 2, "half_offset": 17, "reason": reason, "count": 55, "end_offset": 3, "source": "client"}

    assert refusals([refused(reason) for reason in ("no_half_message", "repeat", "contradiction", "late")]) == [
        "refused: 55 decisions as no_half_message, the first of 2:17 in END 3 (client)",
        "refused: 55 decisions as contradiction, the first of 2:17 in END 3 (client)",
    ]


def test_a_transaction_without_an_outcome_is_unfinished_and_one_of_two_copies_is_enough() -> None:
    halves = {(0, 5): "A", (0, 6): "B", (1, 0): "C", (0, 9): "B"}
    assert unfinished(halves, {(0, 5), (0, 9)}) == ["unfinished: C has no outcome, its half message is 1:0"]
    assert unfinished(halves, {(0, 5), (0, 6), (1, 0)}) == []


@pytest.mark.parametrize(
    ("name", "partitions", "partition"),
    [
        ("", 50, 0),
        ("ab", 4, 1),  # 97 * 31 + 98 = 3,105
        # -609,428,141: the sign is dropped before the remainder is taken
        ("The quick brown fox jumps over the lazy dog", 50, 41),
        # (233 * 31 + 0xD83D) * 31 + 0xDE00 = 1,996,812: two units of UTF-16
        ("\u00e9\U0001f600", 1_000, 812),
        # -2,147,483,648 has no absolute value in 32 bits
        ("polygenelubricants", 50, 0),
    ],
)
def test_the_coordinator_of_a_group_is_found_by_kafkas_rule(name: str, partitions: int, partition: int) -> None:
    """Utils.abs(name.hashCode()) % partitions. A cell on three brokers kills that broker."""
    assert coordinating(name, partitions) == partition


def test_a_cell_that_dies_takes_none_along(tmp_path: Path) -> None:
    cells = ["worker kill -9", "kafka kill -9", "full disk"]
    ran: list[str] = []

    def run(cell: str, _transactions: int, _report: Path) -> Found:
        ran.append(cell)
        if cell.startswith("kafka"):
            return {"error": "it ended with exit code 1, see above"}
        numbers = ("transactions", "committed", "per_second", "fault_s", "longest_pause_s", "settled_s", "violated")
        return {**dict.fromkeys(numbers, 0), "violations": []}

    found = run_cells(cells, 1_000, tmp_path, lambda _: None, run)
    assert (ran, [*found]) == (cells, cells)
    assert not is_clean(found)
