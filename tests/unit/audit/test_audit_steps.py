"""Continued audits on drawn histories: after any steps the sums are those of one audit of everything. No Kafka."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from txbridge_audit.engines.gather import AuditedTopics, Reading
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.engines.reporting import EXPLAINED
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.protocol.mentions import AsideMention, HalfMention, UnreadableMention
from txbridge_audit.report.sums import Contribution, OddRecords, Sums

from tests.support.audit_cases import CASES
from tests.support.audit_judged import BORN, Judged, MemoryLog
from tests.unit.audit.test_audit_laws import HOUR, facts_of, histories, played

SUMS = ("fates", "pending_states", "judged", "unjudged", "answered_by_check", "delivered_more_than_once")


class Steps:
    """The steps of one ledger over the records of a log, without the reading."""

    def __init__(self, log: MemoryLog, folder: Path) -> None:
        self._log, self._folder = log, folder
        cluster = SimpleNamespace(partition_counts=dict)
        self._source = cast(
            "AuditedTopics", SimpleNamespace(names=log.names, cluster=cluster, partitions={}, settings=None)
        )
        self._open()

    def _open(self) -> None:
        self.state = StateStore(self._folder)
        # Nothing here must outlive a loss of power.
        self.state._database.execute("PRAGMA synchronous = OFF")
        self._steps = LocalSteps(self._source, self.state)
        # There is no Kafka here that would show the differences.
        self._steps._explained = EXPLAINED

    def reopen(self) -> None:
        """As if the process had ended."""
        self.state.close()
        self._open()

    def step(self, since: int, until: int, facts: Facts) -> list[str]:
        """A step that reads these records. Returns the ids of its alarms."""
        log, names = MemoryLog(self._log.names.namespace), self._log.names
        # What the discard topic has said before still concerns newer ENDs.
        told = [r for r in self._log.records[:since] if r.topic == names.discard]
        log.records = [*told, *self._log.records[since:until]]
        known = len(told)
        odd, new = OddRecords(names), []
        for mention in log.mentions():
            if isinstance(mention, HalfMention | UnreadableMention | AsideMention):
                odd.add_record(mention)
            is_odd = isinstance(mention, UnreadableMention) or (
                isinstance(mention, AsideMention) and mention.source_topic != names.half
            )
            if not is_odd and not (known and self._is_known(mention)):
                new.append(mention)
        self.state.begin()
        touched = self.state.add(new)
        self._steps._keep_odd(odd, touched)
        starts: dict[TopicPartition, int] = dict.fromkeys(((topic, p) for topic in log.real_topics for p in (0, 1)), 0)
        starts |= dict.fromkeys(((record.topic, record.partition) for record in self._log.records), 0)
        reading = cast("Reading", SimpleNamespace(facts=facts, starts=starts, truncated=[]))
        found = self._steps._judge(touched, self._steps._with_evidence(reading, touched))
        self.state.commit()
        return [alarm.id for alarm in found.alarms]

    def _is_known(self, mention: Any) -> bool:
        transaction = self.state.transaction((mention.partition, -1 if mention.half is None else mention.half))
        there = [] if transaction is None else [*transaction.discards, *transaction.asides]
        return mention in there

    def sums(self) -> Sums:
        sums = Sums(self._log.names)
        for told, number in self.state.sums():
            sums.count_alike(Contribution.from_json(told), number)
        for kind, number in self.state.strays().items():
            sums.entries.by_kind[kind] += number
        return sums


def compare(log: MemoryLog, steps: Steps, facts: Facts) -> None:
    whole = Judged(log, facts)
    expected, found = whole.sums, steps.sums()
    for name in SUMS:
        assert getattr(found, name) == getattr(expected, name), name
    assert +found.entries.by_kind == +expected.entries.by_kind + Counter(whole.strays)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.lists(st.integers(0, 60), max_size=4), st.booleans(), st.integers(0, 6), st.booleans())
def test_any_steps_add_up_to_one_audit(
    history: list[tuple[str, list[str]]], cuts: list[int], reopened: bool, low: int, between: bool
) -> None:
    """`between`: the copies that a step reads lie above its earlier cut of the real topics."""
    log = played(history)
    now = BORN + 100 * HOUR
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(log, Path(folder))
        places = sorted({0, *(cut for cut in cuts if cut < len(log.records)), len(log.records)})
        for since, until in pairwise(places):
            last = until == len(log.records)
            ends = sum(record.topic == log.names.end for record in log.records[:until])
            about = facts_of(log, now if last else BORN + HOUR, low if last else 0, applied=True)
            step_facts = about if last else _applied_to(about, ends)
            steps.step(since, until, replace(step_facts, before={}) if between else step_facts)
            if reopened:
                steps.reopen()
        if between:
            steps.step(until, until, about)
        compare(log, steps, facts_of(log, now, low, applied=True))
        steps.state.close()


def _applied_to(facts: Facts, ends: int) -> Facts:
    [about] = facts.partitions
    return replace(facts, partitions=[replace(about, applied_to=ends)])


@pytest.mark.parametrize("between", [False, True])
def test_the_cases_one_after_the_other_raise_each_violation_once(tmp_path: Path, between: bool) -> None:
    """A step for each case. `between`: what a step reads of the real topics lies above its earlier cut."""
    log = MemoryLog()
    steps = Steps(log, tmp_path)
    raised: list[str] = []
    since = 0
    for case in CASES.values():
        case.plant(log)
        facts = log.facts(before={}) if between else log.facts()
        raised += steps.step(since, len(log.records), facts)
        since = len(log.records)
    raised += steps.step(since, since, log.facts())
    compare(log, steps, log.facts())
    assert len(raised) == len(set(raised))
    steps.state.close()


def test_a_state_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CouldNotAuditError, match=r"the ledger in .*file cannot be kept there .*: check the folder"):
        StateStore(tmp_path / "file")
    (tmp_path / "other" / "_state").mkdir(parents=True)
    (tmp_path / "other" / "_state" / "audit.sqlite").write_text(
        "this is not a database, and is long enough for one" * 9
    )
    with pytest.raises(CouldNotAuditError, match="file is not a database"):
        StateStore(tmp_path / "other")
    state = StateStore(tmp_path / "newer")
    state.begin()
    state.keep_fact("format", 2)
    state.commit()
    state.close()
    with pytest.raises(CouldNotAuditError, match="has the form 2, which this audit does not know"):
        StateStore(tmp_path / "newer")


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    log = MemoryLog()
    half = log.half()
    state = StateStore(tmp_path)
    state.begin()
    touched = state.add(log.mentions())
    assert state.transaction((half.partition, half.offset)) is not None
    state.rollback()
    assert touched == {(half.partition, half.offset)}
    assert state.transaction((half.partition, half.offset)) is None
    state.close()
