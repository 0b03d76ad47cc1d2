"""Laws of the judge, on histories that Hypothesis draws: most of them no worker would ever write."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from random import Random

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from txbridge_audit.cluster.cuts import AuditCut
from txbridge_audit.cluster.facts import partition_facts, topic_facts
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.plan import checks_since
from txbridge_audit.judge import table
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import Facts, HalfFacts, TopicPartition
from txbridge_audit.judge.verdict import judge, judge_by_rules, plain_fate
from txbridge_audit.protocol.mentions import Mention
from txbridge_audit.report.sums import Sums, contribution_of, from_json

from tests.support import audit_cases as cases
from tests.support.audit_cases import FAR_AWAY, LONG_AGO, Step
from tests.support.audit_judged import BORN, Judged, MemoryLog, assembled
from tests.support.audit_terms import COMMIT, FORWARDED, ORDERS, PLAIN, ROLLBACK, Half, Record

HOUR = 3_600_000
#: Times (ms) of the audit: long before anything is stuck, and long after.
NOWS = (BORN + HOUR, BORN + 100 * HOUR)


def _copied(log: MemoryLog, half: Half, *, moved: bool = False) -> None:
    copies = log.copies(half) if half.topics else [log.copy(half, partition=int(moved))]
    log.transaction(*copies)


def finished(outcome: str, log: MemoryLog, half: Half, *copies: Record, ends: str | None = None) -> None:
    """A Kafka transaction of a worker that names an outcome: its parked entry goes with it."""
    key = log.names.parked_key(half.partition, half.offset)
    unparked = [log.parked(half, None)] if any(record.key == key for record in log.records) else []
    log.transaction(*copies, log.op(outcome, half, ends=ends), *unparked)


def _delivered(ends: tuple[int, int] | None) -> Step:
    """Delivered by a Kafka transaction that has applied END from and to an offset, counted from the end of END."""

    def step(log: MemoryLog, half: Half) -> None:
        end = log.end_position[half.partition]
        span = None if ends is None else f"{max(0, end + ends[0])}:0-{max(0, end + ends[1])}:0"
        copies = log.copies(half) if half.topics else [log.copy(half)]
        finished("commit", log, half, *copies, ends=span)

    return step


def _step_delivered(*numbers: int) -> Step:
    """Of three messages, the first and the last are delivered, as OFFSET says, and the other one is scheduled."""

    def step(log: MemoryLog, half: Half) -> None:
        copies = log.copies(half)
        rest = log.parked(half, "scheduled", next=LONG_AGO, delivered=2)
        log.transaction(*(copies[number - 1] for number in numbers), rest)

    return step


STEPS: dict[str, Step] = {
    "commit": cases.commit,
    "rollback": cases.rollback,
    "unknown": cases.unknown,
    "answer": cases.end(COMMIT, "check", rest=",1"),
    "forged": cases.end(COMMIT, transaction_id="0" * 32),
    "of another group": cases.end(ROLLBACK, group="shipping"),
    "resume": cases.resume,
    "abandon": cases.abandon,
    "delivered": _delivered(None),
    "delivered in turn": _delivered((-1, 0)),
    "delivered too early": _delivered((-9, -1)),
    "delivered too late": _delivered((0, 1)),
    "copied": _copied,
    "copied elsewhere": lambda log, half: _copied(log, half, moved=True),
    "one of several": lambda log, half: log.transaction((log.copies(half) if half.topics else [log.copy(half)])[0]),
    "altered": cases.together(cases.changed_copy(lambda copy: dataclasses.replace(copy, value=b"other"))),
    "recorded as committed": partial(finished, "commit"),
    "recorded as rolled back": partial(finished, "rollback"),
    "recorded as abandoned": partial(finished, "abandon"),
    "discarded": cases.discard_parked,
    "parked": cases.together(cases.parked("pending", checks=3, next=FAR_AWAY)),
    "parked again": cases.together(cases.parked("pending", resumed=BORN)),
    "out of checks": cases.together(cases.parked("pending", checks=15, next=1)),
    "held": cases.together(cases.parked("held")),
    "scheduled": cases.together(cases.parked("scheduled", next=LONG_AGO)),
    "step delivered": _step_delivered(1, 3),
    "step delivered in part": _step_delivered(1),
    "recorded as cancelled": lambda log, half: finished(
        "abandon", log, half, log.discard(half, reason="ABANDONED", TXB_DELIVERED="2")
    ),
    "unparked": cases.together(cases.parked(None)),
    "checked": cases.together(cases.check()),
}

HALVES: dict[str, Callable[[MemoryLog], Half]] = {
    "plain": lambda log: log.half(),
    "fixed": lambda log: log.half(REAL_QID="1"),
    "delayed": lambda log: log.half(TXB_DELIVER_AT=str(FAR_AWAY)),
    "its time has passed": lambda log: log.half(TXB_DELIVER_AT=str(LONG_AGO)),
    "several": lambda log: log.several(ORDERS, FORWARDED, ORDERS),
    "stepwise": lambda log: log.several(ORDERS, FORWARDED, ORDERS, times=(-1, FAR_AWAY, -1)),
    "stepwise, its time has passed": lambda log: log.several(ORDERS, FORWARDED, ORDERS, times=(-1, LONG_AGO, -1)),
}

#: Only those that name a time are scheduled, and only those that name several are delivered step by step.
STEPWISE = {"stepwise", "stepwise, its time has passed"}
KINDS_OF = {"scheduled": {"delayed", "its time has passed", *STEPWISE}} | dict.fromkeys(
    ("step delivered", "step delivered in part", "recorded as cancelled"), STEPWISE
)
#: OFFSET is cut before OP, which names the outcome: no entry is parked behind one that retention has removed.
PARKING = {"parked", "parked again", "out of checks", "held", "scheduled", "step delivered", "step delivered in part"}

histories = st.lists(
    st.tuples(st.sampled_from(sorted(HALVES)), st.lists(st.sampled_from(sorted(STEPS)), max_size=6)),
    min_size=1,
    max_size=4,
)


History = list[tuple[str, list[str]]]


class AgedLog(MemoryLog):
    """A log whose records have the time at which they were written."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BORN

    def write(self, record: Record) -> None:
        super().write(record)
        if record.dated is None:
            record.stamped[0] = self.now


def played(
    history: History,
    hours: Iterable[int] = (0,) * 6,
    halves_of: Mapping[str, Callable[[MemoryLog], Half]] = HALVES,
    steps_of: Mapping[str, Step] = STEPS,
    *,
    anchored: bool = True,
) -> AgedLog:
    """The log of a history: each transaction lives one step at a time, after so many hours."""
    log = AgedLog()
    # Two records that prove losses behind them.
    for _ in range(2 * anchored):
        anchor = log.half()
        log.end(anchor, COMMIT)
        log.deliver(anchor)
    halves = [halves_of[kind](log) for kind, _ in history]
    finished = set[int]()
    for number, pause in enumerate(hours):
        log.now += pause * HOUR
        for half, (kind, steps) in zip(halves, history, strict=True):
            step = steps[number] if number < len(steps) else ""
            if not step or (step in PARKING and half.offset in finished) or kind not in KINDS_OF.get(step, {kind}):
                continue
            steps_of[step](log, half)
            if step.startswith(("delivered", "recorded")):
                finished.add(half.offset)
    return log


def facts_of(log: MemoryLog, now: int, below: int, *, applied: bool, **gone: object) -> Facts:
    known = {"applied_to": log.end_position[PLAIN] if applied else 0, "low": below} | gone
    return log.facts(
        partitions=[HalfFacts(PLAIN, 0, **known)],  # type: ignore[arg-type]
        now=now,
        checks_since={"billing": -1, "shipping": -1},
    )


SETTINGS = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(histories, st.sampled_from(NOWS), st.integers(0, 6), st.booleans(), st.booleans())
def test_plain_ones_are_settled_as_all_rules_settle_them(
    history: History, now: int, low: int, applied: bool, forgetful: bool
) -> None:
    log = played(history)
    gone = {"ends_since": BORN, "parked_since": BORN} if forgetful else {}
    judged = Judged(log, facts_of(log, now, low, applied=applied, **gone))
    for verdict in judged.verdicts:
        transaction = verdict.case.transaction
        plain = plain_fate(transaction)
        if plain is None:
            continue
        whole = judge_by_rules(transaction, judged.facts)
        assert (whole.fate, whole.kinds, whole.case.strays) == (plain.name, (), [])
        assert judge(transaction, judged.facts).reach == whole.reach
        assert judge(transaction, judged.facts).is_closed == whole.is_closed


class Retained(AuditedCluster):
    """A cluster where retention has left the records of a log."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def first_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        times: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        for record in reversed(self._log.records):
            times[record.topic, record.partition] = record.stamped[0]
        return {key: times[key] for key in partitions}

    def cleanup_policies(self, topics: Collection[str]) -> dict[str, str | None]:
        return dict.fromkeys(topics, "delete")


def retained(log: MemoryLog, removed: Mapping[str, int], now: int) -> Judged:
    """The verdicts after retention has removed so many records from the start of each partition of some topics."""
    names, left = log.names, MemoryLog()
    internal = {name: [(name, PLAIN)] for name in (names.half, names.end, names.op, names.offset, names.discard)}
    check, real = (names.check("billing"), 0), [(ORDERS, 0), (ORDERS, 1), (FORWARDED, 0)]
    named = {getattr(names, short, short): many for short, many in removed.items()} | {
        check[0]: removed.get("check", 0)
    }
    left.end_position, starts = log.end_position, {}
    for key in (*(key for [key] in internal.values()), check, *real):
        there = [record for record in log.records if (record.topic, record.partition) == key]
        gone, kept = there[: named.get(key[0], 0)], there[named.get(key[0], 0) :]
        left.records += kept
        starts[key] = gone[-1].offset + 1 if gone else 0
    cluster, cut, ends = Retained(left), AuditCut({}), {key: log.end_of(*key) for key in starts}
    facts = left.facts(
        partitions=partition_facts(names, cluster, internal, starts, left.checkpoints(), cut, starts, ends),
        topics=topic_facts(cluster, real, {key: starts[key] for key in real}, cut),
        now=now,
        checks_since=checks_since(names, cluster, {check: starts[check]}, None) | {"shipping": -1},
        discards_cut=starts[names.discard, PLAIN] > 0,
    )
    return Judged(left, facts, truncated=[key for key in real if starts[key] > 0])


def _is_parked_wrongly(case: Case) -> bool:
    """Whether an entry waits for what is applied, waits again without a resume, or holds what is not committed."""
    if case.parked == "pending":
        return case.winner is not None or (bool(case.discards) and not case.is_reopened)
    if case.parked == "discarded":
        return case.is_reopened
    return case.parked in {"held", "scheduled"} and not case.is_decided(COMMIT)


def _copies(judged: Judged) -> Counter[tuple[int, int | None]]:
    return Counter({verdict.key: len(verdict.case.transaction.copies) for verdict in judged.verdicts})


#: Violations of a visible record. Nothing is known of one that its topic no longer holds.
OF_COPIES = {"ALTERED", "MISPLACED", "DUPLICATED", "LEAKED", "BEFORE_DECISION", "OVERTAKEN", "OUT_OF_ORDER", "PARTIAL"}
TOPICS = ("half", "end", "op", "offset", "discard", "check", ORDERS, FORWARDED)


@SETTINGS
@example([("plain", ["commit", "held"])], [0] * 6, NOWS[0], 0, True, {"offset": 1})
@example(
    [("stepwise", ["answer", "step delivered", "recorded as abandoned"])],
    [0] * 6,
    NOWS[0],
    0,
    False,
    {"half": 1, "end": 1},
)
@example([("plain", ["commit", "recorded as committed", "delivered too early"])], [0] * 6, NOWS[0], 0, False, {"op": 3})
@given(
    histories,
    st.lists(st.integers(0, 4), min_size=6, max_size=6),
    st.sampled_from(NOWS),
    st.integers(0, 6),
    st.booleans(),
    st.dictionaries(st.sampled_from(TOPICS), st.sampled_from([1, 2, 3, 4, 6, 8, 99]), min_size=1, max_size=4),
)
def test_what_retention_hides_is_named_and_nobody_is_accused(
    history: History, hours: list[int], now: int, low: int, applied: bool, removed: dict[str, int]
) -> None:
    log = played(history, hours)
    log.write(log.progress(PLAIN, low, end=log.end_position[PLAIN] if applied else 0))
    now += log.now - BORN
    whole, judged = retained(log, {}, now), retained(log, removed, now)
    # No worker keeps such entries.
    assume(not any(_is_parked_wrongly(verdict.case) for verdict in whole.verdicts))
    found, left, unjudged = whole.broken(), judged.broken(), judged.unjudged
    start = judged.facts.half(PLAIN).log_start
    fewer = {key for key, number in _copies(whole).items() if _copies(judged)[key] < number}
    # No worker delivers without a record of OP.
    forged = {verdict.key for verdict in whole.verdicts if verdict.key in fewer and not verdict.case.is_named("commit")}
    wrong = set().union(*(left.get(kind, set()) for kind in table.WRONG_FATES))
    for kind, keys in found.items():
        still = left.get(kind, set()) | (wrong if kind in table.WRONG_FATES else set())
        for key in keys - still - forged - (fewer if kind in OF_COPIES else set()):
            assert key[1] < start or (kind, key) in unjudged, f"{kind} of {key} is passed over without a word"
    broken = set().union(*found.values())
    doubled = {verdict.key for verdict in whole.verdicts if verdict.case.copies > 1}
    for kind, keys in left.items():
        # A wrong fate may look like another one, or like one that the checkpoint has passed without a trace. Which of
        # two copies is the first depends on what is left of them.
        allowed = broken if kind in {*table.WRONG_FATES, "PROGRESS_AHEAD"} else found.get(kind, set())
        assert keys - forged <= allowed | (doubled if kind in OF_COPIES else set()), f"{kind} is a false alarm"
    assert judged.strays.count("PHANTOM") <= whole.strays.count("PHANTOM")


def _said(judged: Judged) -> dict[tuple[int, int | None], tuple[object, ...]]:
    return {
        verdict.key: (verdict.fate, verdict.says, verdict.pending_state, verdict.kinds, verdict.reach)
        for verdict in judged.verdicts
    }


class ReadInOrder(MemoryLog):
    """A log whose mentions come in another order, as several partitions and topics give them."""

    def __init__(self, log: MemoryLog, random: Random) -> None:
        super().__init__()
        self.records, self._random = log.records, random

    def mentions(self, *, exactly: bool = False) -> list[Mention]:
        found = super().mentions(exactly=exactly)
        self._random.shuffle(found)
        return found


@SETTINGS
@given(histories, st.sampled_from(NOWS), st.integers(0, 6), st.randoms(use_true_random=False))
def test_neither_the_order_of_reading_nor_the_way_of_counting_matters(
    history: History, now: int, low: int, random: Random
) -> None:
    log = played(history)
    facts = facts_of(log, now, low, applied=True)
    judged = Judged(log, facts)
    assert _said(Judged(ReadInOrder(log, random), facts)) == _said(judged)
    evidence = Evidence()
    for verdict in random.sample(judged.verdicts, len(judged.verdicts)):
        evidence.see_transaction(verdict.case.transaction)
    assert evidence.add_to(facts, ()) == judged.facts
    # Sums of contributions that were JSON meanwhile.
    sums = Sums(log.names)
    for text, number in Counter(json.dumps(contribution_of(verdict)) for verdict in judged.verdicts).items():
        sums.count_alike(from_json(text), number)
    assert sums.counts == judged.sums.counts


@SETTINGS
@given(histories, st.sampled_from(NOWS), st.integers(0, 6), st.booleans(), st.integers(0, 5))
def test_another_transaction_changes_no_verdict_except_that_it_proves_a_loss(
    history: History, now: int, low: int, applied: bool, other: int
) -> None:
    log = played(history)
    facts = facts_of(log, now, low, applied=applied)
    transactions, _ = assembled(log.mentions(), log.names)
    keys = sorted(transactions, key=str)
    removed = keys[other % len(keys)]

    def said(without: object) -> dict[object, tuple[object, ...]]:
        evidence = Evidence()
        for key, transaction in transactions.items():
            if key != without:
                evidence.see_transaction(transaction)
        known = evidence.add_to(facts, ())
        verdicts = {key: judge(transaction, known) for key, transaction in transactions.items() if key != removed}
        return {key: (one.fate, one.pending_state, one.kinds, one.reach) for key, one in verdicts.items()}

    alone, together = said(removed), said(None)
    for key, verdict in together.items():
        if verdict != alone[key]:
            assert (alone[key][0], verdict[0]) in {("unverifiable", "LOST"), ("unverifiable", "PARTIAL")}
