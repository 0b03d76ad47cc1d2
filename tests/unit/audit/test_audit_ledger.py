"""The rows of the ledger, from the verdicts on every planted case."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from txbridge_audit.judge.facts import HalfFacts
from txbridge_audit.ledger.rows import LedgerRow, phantom_row, row_of
from txbridge_audit.protocol.mentions import CopyMention
from txbridge_audit.report.overview import OverviewSums

from tests.support.audit_cases import CASES, LONG_AGO, TAIL, plant
from tests.support.audit_judged import BORN, Judged, MemoryLog
from tests.support.audit_terms import COMMIT, ORDERS, PLAIN, Half


@pytest.fixture(scope="module")
def planted() -> tuple[MemoryLog, dict[str, Half | None], Judged]:
    log = MemoryLog()
    halves = plant(log)
    facts = log.facts(partitions=[HalfFacts(p, 0, seen.applied_to, seen.low) for p, seen in log.checkpoints().items()])
    return log, halves, Judged(log, facts)


def rows_by_name(planted: tuple[MemoryLog, dict[str, Half | None], Judged]) -> dict[str, LedgerRow]:
    _, halves, judged = planted
    found = {}
    for name, half in halves.items():
        if half is not None:
            row = row_of(judged.of(half))
            assert row is not None
            found[name] = row
    return found


def test_a_row_says_what_the_case_expects(planted: tuple[MemoryLog, dict[str, Half | None], Judged]) -> None:
    _, halves, _ = planted
    for name, row in rows_by_name(planted).items():
        case, half = (CASES | TAIL)[name], halves[name]
        assert half is not None
        assert (row["fate"], row["pending_state"], {*row["violations"], *row["findings"]}) == (
            *(case.fate, case.state),
            set(case.findings),
        ), name
        assert (row["transaction"], row["id_sha256"]) == (half.id[:8], hashlib.sha256(half.id.encode()).hexdigest())
        assert half.id not in str(row)
        assert (row["real_topic"], row["group"]) == (half.topic, half.group)
        assert (row["prepared_at"], row["day"]) == (
            # Microseconds, and days since 1970: 2023-11-14.
            1_700_000_000_000_000,
            19_675,
        )


def test_every_decision_has_its_ruling(planted: tuple[MemoryLog, dict[str, Half | None], Judged]) -> None:
    rows = rows_by_name(planted)

    def rulings(name: str) -> list[tuple[int, str, str]]:
        return [(end["decision"], end["source"], end["ruling"]) for end in rows[name]["decisions"]]

    assert rulings("later_rollback_refused") == [(8, "client", "decided"), (12, "check", "CONTRADICTION")]
    assert rulings("repeated") == [(8, "client", "decided"), (8, "client", "REPEAT")]
    assert rulings("wrong_transaction_id") == [(8, "client", "WRONG_TRANSACTION_ID"), (12, "client", "decided")]
    assert rulings("wrong_group") == [(8, "client", "WRONG_GROUP"), (12, "client", "decided")]
    assert rulings("late_then_resumed") == [(12, "client", "LATE"), (0, "resume", "resume"), (8, "client", "decided")]
    assert rulings("resumed_and_committed") == [(0, "resume", "resume"), (8, "operator", "decided")]
    asked = rows["delivered_in_answer_to_a_check"]
    assert (asked["decision"], asked["decided_by"], asked["checks_sent"]) == ("commit", "check", 1)
    assert [(end["remark"], end["check"], end["ruling"]) for end in asked["decisions"]] == [
        ("no idea, sorry", None, "unknown"),
        (None, 1, "decided"),
    ]
    assert [len(rows[name]["delivered"]) for name in ("delivered", "duplicated", "rolled_back")] == [1, 2, 0]
    held = rows["held"]
    assert (held["held_why"], held["held_ms"], held["delivered_at"]) == ("no such topic", None, None)
    assert held["held_since"] >= held["prepared_at"]
    waiting = rows["the_third_waits_for_its_time"]
    assert (waiting["messages"], waiting["next_at"]) == (3, 5_000_000_000_000_000)
    assert [(rows[name]["messages"], rows[name]["next_at"]) for name in ("delivered", "the_rest_held")] == [
        *((1, None), (2, None))
    ]
    again = rows["discarded_again_after_a_resume"]
    assert [(record["reason"], record["checks"]) for record in again["discard_records"]] == [("MAX_CHECKS", 15)] * 2
    assert (again["checks_sent"], again["resumed_end"]) == (15, again["decisions"][0]["end"])


def test_expired_and_phantom_have_rows_with_their_coordinates() -> None:
    log = MemoryLog()
    expired = Half(PLAIN, 1, "E" * 32, "billing", "orders")
    log.transaction(log.parked(expired, "pending", checks=3, born=1_700_000_000_000))
    facts = log.facts(partitions=[HalfFacts(PLAIN, half_start=0, applied_to=1, low=0, log_start=10)])
    gone = row_of(Judged(log, facts).of(expired))
    assert gone is not None
    assert (gone["half"], gone["transaction"], gone["violations"]) == (1, "E" * 8, ["EXPIRED"])
    assert (gone["group"], gone["real_topic"], gone["day"], gone["checks_sent"]) == (*("billing", "orders", 19_675), 3)
    claiming = CopyMention(PLAIN, 7, at=9, topic="orders", place=0, id="F" * 32, content=0)
    row = phantom_row(claiming)
    assert (row["partition"], row["half"], row["transaction"]) == (PLAIN, 7, "F" * 8)
    assert (row["violations"], row["delivered"], row["copies"]) == (
        ["PHANTOM"],
        [{"topic": "orders", "partition": 0, "offset": 9}],
        1,
    )
    unreadable = phantom_row(CopyMention(-1, None, at=9, topic="orders", place=0, id=None, content=0))
    assert (unreadable["partition"], unreadable["half"], unreadable["transaction"]) == (None, None, None)


def test_a_time_that_nobody_can_read_is_left_out() -> None:
    log = MemoryLog()
    expired = Half(PLAIN, 1, "E" * 32, "billing", "orders")
    log.transaction(log.parked(expired, "held", born=2**63 - 1))
    facts = log.facts(partitions=[HalfFacts(PLAIN, half_start=0, applied_to=1, low=0, log_start=10)])
    row = row_of(Judged(log, facts).of(expired))
    assert row is not None
    assert (row["prepared_at"], row["day"]) == (None, None)


@pytest.mark.parametrize(
    ("wanted", "delivered", "latency"),
    [
        # Scheduled for a minute later, and delivered 20 ms after that.
        (BORN + 61_000, BORN + 61_020, 20),
        # Its time had passed before the decision.
        (LONG_AGO, BORN + 12, 12),
        (None, BORN + 12, 12),
    ],
)
def test_a_wanted_delay_is_no_latency(wanted: int | None, delivered: int, latency: int) -> None:
    log = MemoryLog()
    half = log.half() if wanted is None else log.half(TXB_DELIVER_AT=str(wanted))
    log.end(half, COMMIT)
    log.deliver(half)
    log.records[-1].stamped[0] = delivered
    verdict = Judged(log, log.facts()).of(half)
    row = row_of(verdict)
    assert row is not None
    assert row["decision_to_delivery_ms"] == latency
    sums = OverviewSums()
    sums.take_verdict(verdict)
    summed_up = sums.overview().decision_to_delivery
    assert summed_up is not None
    assert summed_up.most == latency


def test_messages_that_wait_are_told_with_the_next_time() -> None:
    log, later = MemoryLog(), BORN + 3_600_000
    half = log.several(ORDERS, ORDERS, ORDERS, times=(-1, BORN, later))
    log.end(half, COMMIT)
    log.transaction(*log.copies(half)[:2], log.parked(half, "scheduled", next=later, delivered=2))
    facts = log.facts(now=BORN + 1_000)
    sums = OverviewSums()
    sums.take_verdict(Judged(log, facts).of(half))
    [waits] = sums.overview().oldest_pending
    assert waits.state == "scheduled: 2 of 3 messages, the next at 2023-11-14T23:13:20.000Z"
    overdue = Judged(log, log.facts()).sums.tally(["OVERDUE"]).listed
    assert [entry.says for entry in overdue] == [
        "scheduled, and not delivered though its time has come: 2 of 3 messages, the next at 2023-11-14T23:13:20.000Z"
    ]


def test_the_overview_of_all_cases(planted: tuple[MemoryLog, dict[str, Half | None], Judged]) -> None:
    _, _, judged = planted
    sums = OverviewSums()
    for verdict in judged.verdicts:
        sums.take_verdict(verdict)
    overview = sums.overview()
    fates = Counter(verdict.fate for verdict in judged.verdicts if verdict.fate is not None)
    assert overview.over_time == {BORN: dict(fates)}
    assert [group.name for group in overview.groups] == ["billing"]
    [group] = overview.groups
    assert (group.transactions, group.answered) == (fates.total(), 1)
    assert group.discarded == fates["discarded"]
    assert len(overview.oldest_pending) == 20
    # The same from the sums of two halves.
    first, second = OverviewSums(), OverviewSums()
    for number, verdict in enumerate(judged.verdicts):
        (first if number % 2 else second).take_verdict(verdict)
    first += second
    assert first.overview() == overview
    places = [(waits.born, waits.partition, waits.half) for waits in overview.oldest_pending]
    assert places == sorted(places)


def test_quantiles_are_those_of_all_latencies() -> None:
    sums = OverviewSums()
    sums.to_decision.update(range(1, 101))
    sums.to_decision[5_000] += 1
    latency = sums.overview().prepare_to_decision
    assert latency is not None
    assert (latency.quantiles, latency.most) == ((51, 96, 100), 5_000)
    assert sum(latency.counts.values()) == 101
