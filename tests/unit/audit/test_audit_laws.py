"""Laws of the judge, on histories that Hypothesis draws: most of them no worker would ever write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from txbridge_audit.judge import table
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.facts import Facts, HalfFacts
from txbridge_audit.judge.plain import plain_fate
from txbridge_audit.judge.verdict import judge, judge_by_rules

from tests.support.audit_cases import FAR_AWAY, LONG_AGO
from tests.support.audit_judged import BORN, Judged, MemoryLog
from tests.support.audit_terms import COMMIT, FORWARDED, ORDERS, PLAIN, ROLLBACK, UNKNOWN, Half, Record

FOREVER = 2**62
HOUR = 3_600_000
#: Times (ms) of the audit: long before anything is stuck, and long after.
NOWS = (BORN + HOUR, BORN + 100 * HOUR)

Step = Callable[[MemoryLog, Half], object]


def _end(decision: int, source: str = "client", **how: str) -> Step:
    return lambda log, half: log.end(half, decision, source, **how)


def _copied(log: MemoryLog, half: Half, *, moved: bool = False) -> None:
    copies = log.copies(half) if half.topics else [log.copy(half, partition=int(moved))]
    log.transaction(*copies)


def _finished(outcome: str, log: MemoryLog, half: Half, *copies: Record, ends: str | None = None) -> None:
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
        _finished("commit", log, half, *copies, ends=span)

    return step


STEPS: dict[str, Step] = {
    "commit": _end(COMMIT),
    "rollback": _end(ROLLBACK),
    "unknown": _end(UNKNOWN),
    "answer": _end(COMMIT, "check", rest=",1"),
    "forged": _end(COMMIT, transaction_id="0" * 32),
    "of another group": _end(ROLLBACK, group="shipping"),
    "resume": _end(UNKNOWN, "resume"),
    "abandon": _end(UNKNOWN, "abandon"),
    "delivered": _delivered(None),
    "delivered in turn": _delivered((-1, 0)),
    "delivered too early": _delivered((-9, -1)),
    "delivered too late": _delivered((0, 1)),
    "copied": _copied,
    "copied elsewhere": lambda log, half: _copied(log, half, moved=True),
    "one of several": lambda log, half: log.transaction((log.copies(half) if half.topics else [log.copy(half)])[0]),
    "altered": lambda log, half: log.transaction(dataclasses.replace(log.copy(half), value=b"other")),
    "recorded as committed": partial(_finished, "commit"),
    "recorded as rolled back": partial(_finished, "rollback"),
    "recorded as abandoned": partial(_finished, "abandon"),
    "discarded": lambda log, half: log.transaction(
        log.discard(half), log.op("discard", half), log.parked(half, "discarded")
    ),
    "parked": lambda log, half: log.transaction(log.parked(half, "pending", checks=3, next=FAR_AWAY)),
    "parked again": lambda log, half: log.transaction(log.parked(half, "pending", resumed=BORN)),
    "out of checks": lambda log, half: log.transaction(log.parked(half, "pending", checks=15, next=1)),
    "held": lambda log, half: log.transaction(log.parked(half, "held")),
    "scheduled": lambda log, half: log.transaction(log.parked(half, "scheduled", next=LONG_AGO)),
    "unparked": lambda log, half: log.transaction(log.parked(half, None)),
    "checked": lambda log, half: log.write(log.check(half, log.end_position[half.partition])),
}

HALVES: dict[str, Callable[[MemoryLog], Half]] = {
    "plain": lambda log: log.half(),
    "fixed": lambda log: log.half(REAL_QID="1"),
    "delayed": lambda log: log.half(TXB_DELIVER_AT=str(FAR_AWAY)),
    "its time has passed": lambda log: log.half(TXB_DELIVER_AT=str(LONG_AGO)),
    "several": lambda log: log.several(ORDERS, FORWARDED, ORDERS),
}

#: Only those that name a time are scheduled.
TIMED = {"delayed", "its time has passed"}
#: OFFSET is cut before OP, which names the outcome: no entry is parked behind one that retention has removed.
PARKING = {"parked", "parked again", "out of checks", "held", "scheduled"}

histories = st.lists(
    st.tuples(st.sampled_from(sorted(HALVES)), st.lists(st.sampled_from(sorted(STEPS)), max_size=6)),
    min_size=1,
    max_size=4,
)


def played(history: list[tuple[str, list[str]]]) -> MemoryLog:
    """The log of a history: each transaction lives one step at a time."""
    log = MemoryLog()
    # Two records that prove losses behind them.
    for _ in range(2):
        anchor = log.half()
        log.end(anchor, COMMIT)
        log.deliver(anchor)
    halves = [HALVES[kind](log) for kind, _ in history]
    finished = set[int]()
    for number in range(6):
        for half, (kind, steps) in zip(halves, history, strict=True):
            step = steps[number] if number < len(steps) else ""
            if not step or (step in PARKING and half.offset in finished) or (step == "scheduled" and kind not in TIMED):
                continue
            STEPS[step](log, half)
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


SETTINGS = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(histories, st.sampled_from(NOWS), st.integers(0, 6), st.booleans(), st.booleans())
def test_plain_ones_are_settled_as_all_rules_settle_them(
    history: list[tuple[str, list[str]]], now: int, low: int, applied: bool, forgetful: bool
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


#: Topics that somebody empties, and the facts that are known then.
EMPTIED: dict[str, dict[str, object]] = {
    "end": {"ends_since": FOREVER},
    "op": {"outcomes_since": FOREVER},
    "discard": {"discards_since": FOREVER},
    "offset": {"parked_since": FOREVER, "checkpoint_gone": True, "applied_to": None, "low": None},
    "check": {},
}


def _is_parked_wrongly(case: Case) -> bool:
    if case.parked == "pending":
        return case.winner is not None
    return case.parked in {"held", "scheduled"} and not case.is_decided(COMMIT)


@SETTINGS
@given(
    histories,
    st.sampled_from(NOWS),
    st.integers(0, 6),
    st.sets(st.sampled_from(sorted(EMPTIED)), min_size=1),
)
def test_what_cannot_be_judged_is_told_and_nobody_is_accused(
    history: list[tuple[str, list[str]]], now: int, low: int, emptied: set[str]
) -> None:
    log = played(history)
    whole = Judged(log, facts_of(log, now, low, applied=True))
    found = whole.broken()
    # A worker keeps no entry that waits for a decision which it has applied, or holds what is not committed.
    assume(not any(_is_parked_wrongly(verdict.case) for verdict in whole.verdicts))
    names = log.names
    gone: dict[str, object] = {}
    for topic in emptied:
        gone |= EMPTIED[topic]
    without = {names.check("billing") if topic == "check" else getattr(names, topic) for topic in emptied}
    log.records = [record for record in log.records if record.topic not in without]
    facts = dataclasses.replace(
        facts_of(log, now, low, applied=True, **gone),
        discards_cut="discard" in emptied,
        checks_since={"billing": FOREVER if "check" in emptied else -1, "shipping": -1},
    )
    judged = Judged(log, facts)
    left, unjudged = judged.broken(), judged.unjudged
    for kind, keys in found.items():
        for key in keys - left.get(kind, set()):
            assert (kind, key) in unjudged, f"{kind} of {key} is passed over without a word"
    broken = set().union(*found.values())
    for kind, keys in left.items():
        # A wrong fate may look like another one, or like one that the checkpoint has passed without a trace.
        allowed = broken if kind in {*table.WRONG_FATES, "PROGRESS_AHEAD"} else found.get(kind, set())
        assert keys <= allowed, f"{kind} is a false alarm"
