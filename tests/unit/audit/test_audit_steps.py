"""Continued audits on drawn histories: after any steps the sums are those of one audit of everything. No Kafka."""

from __future__ import annotations

import stat
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from txbridge_audit.engines.gather import AuditedTopics, Reading
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.engines.run import EXPLAINED
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.protocol.mentions import AsideMention, CopyMention, UnreadableMention
from txbridge_audit.report.sums import OddRecords, Sums, from_json

from tests.support.audit_cases import CASES
from tests.support.audit_judged import BORN, Judged, MemoryLog
from tests.support.audit_terms import COMMIT, ORDERS
from tests.unit.audit.test_audit_laws import HALVES, HOUR, STEPS, facts_of, finished, histories, played


class Steps:
    """The steps of one ledger over the records of a log, without the reading."""

    def __init__(self, log: MemoryLog, folder: Path, truncated: Collection[TopicPartition] = ()) -> None:
        self._log, self._folder, self._truncated = log, folder, truncated
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
            odd.add_record(mention)
            is_odd = isinstance(mention, UnreadableMention) or (
                isinstance(mention, AsideMention) and mention.source_topic != names.half
            )
            if not is_odd and not (known and self._is_known(mention)):
                new.append(mention)
        starts: dict[TopicPartition, int] = dict.fromkeys(((topic, p) for topic in log.real_topics for p in (0, 1)), 0)
        starts |= dict.fromkeys(((record.topic, record.partition) for record in self._log.records), 0)
        reading = cast("Reading", SimpleNamespace(facts=facts, starts=starts, truncated=self._truncated))
        with self.state.one_step():
            for mention in new:
                self.state.add(mention)
            self._steps._keep_odd(odd)
            alarms = self._steps._judge(self._steps._see_evidence(reading, self._steps._progress))
            compacted = [topic.topic for topic in facts.topics if topic.compacted]
            self.state.keep_fact("progress", {"positions": self._op_read(until), "compacted": compacted})
        return [alarm.id for alarm in alarms]

    def _op_read(self, until: int) -> list[tuple[str, int, int]]:
        """How far this and earlier steps have read OP."""
        topic = self._log.names.op
        known = {r.partition: r.offset + 1 for r in self._log.records[:until] if r.topic == topic}
        return [(topic, partition, end) for partition, end in known.items()]

    def _is_known(self, mention: Any) -> bool:
        transaction = self.state.transaction((mention.partition, -1 if mention.half is None else mention.half))
        there = [] if transaction is None else [*transaction.discards, *transaction.asides]
        return mention in there

    def sums(self) -> Sums:
        sums = Sums(self._log.names)
        for told, number in self.state.sums():
            sums.count_alike(from_json(told), number)
        return sums


def compare(log: MemoryLog, steps: Steps, facts: Facts, truncated: Collection[TopicPartition] = ()) -> None:
    whole = Judged(log, facts, truncated)
    expected, found = whole.sums, steps.sums()
    assert +found.counts == +expected.counts + Counter([("kind", kind) for kind in whole.strays])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


TWIN = "7" * 32
#: Half messages with one id, and records that are evidence about others: they come at any time.
HALVES_ALIKE = HALVES | {"twin": lambda log: replace(log.half(UNIQ_KEY=TWIN), id=TWIN)}
STEPS_BESIDE = STEPS | {
    "recorded as discarded": partial(finished, "discard"),
    "explained": lambda log, half: log.transaction(log.discard(half)),
    "set aside": lambda log, half: log.transaction(log.set_aside(log.names.half, half.partition, half.offset)),
}
evidence = st.lists(
    st.tuples(
        st.sampled_from(["plain", "several", "twin"]),
        st.lists(st.sampled_from(["commit", "copied", "recorded as committed", *sorted(STEPS_BESIDE)]), max_size=6),
    ),
    min_size=2,
    max_size=6,
)
LOST, ANCHOR = ("plain", ["commit", "recorded as committed"]), ("plain", ["commit", "recorded as committed", "copied"])
DELIVERED_ONCE, DELIVERED_TWICE = ("plain", ["commit", "delivered"]), ("plain", ["commit", "delivered", "copied"])
DELIVERED = ("twin", ["commit", "delivered"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(evidence, st.lists(st.integers(1, 60), min_size=1, max_size=4), st.booleans(), st.booleans())
# The copies behind the ninth record prove that the third message was lost.
@example([ANCHOR, ANCHOR, LOST], [9], False, False)
@example([ANCHOR, ANCHOR, LOST], [9], True, False)
# The second copy behind the eleventh takes the proof away again.
@example([DELIVERED_TWICE, DELIVERED_ONCE, LOST], [11], False, False)
# The record behind the fifth one says that one of the two may be a copy of the other; that behind the sixth, that not.
@example([DELIVERED, ("twin", ["", "", "recorded as discarded"])], [5], False, False)
@example([DELIVERED, ("twin", ["", "", "recorded as discarded", "explained"])], [5, 6], False, False)
# Messages turn out to be malformed whose copies were there before, and then an END names them again.
@example([("several", ["altered", "set aside", "commit"]), ("plain", [])], [4], False, False)
@example([("plain", ["commit"]), ("plain", ["commit", "delivered too late", "set aside", "commit"])], [7], False, False)
# Behind the twelfth one we may see the policy of the topic at last.
@example([DELIVERED_ONCE, DELIVERED_ONCE, LOST, ("plain", ["", "", "commit"])], [12], False, True)
def test_evidence_that_comes_late_changes_what_was_closed(
    history: list[tuple[str, list[str]]], cuts: list[int], truncated: bool, hidden: bool
) -> None:
    """Delivered records that prove losses, twins, and the right to see the policy of a topic."""
    log = played(history, halves_of=HALVES_ALIKE, steps_of=STEPS_BESIDE, anchored=False)
    emptied = [(ORDERS, 0)] if truncated else []
    whole = replace(facts_of(log, BORN + HOUR, 0, applied=True), discards_cut=True)
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(log, Path(folder), emptied)
        places = sorted({0, *(cut for cut in cuts if cut < len(log.records)), len(log.records)})
        for since, until in pairwise(places):
            ends = sum(record.topic == log.names.end for record in log.records[:until])
            is_hidden = hidden and until < len(log.records)
            topics = [replace(topic, compacted=topic.compacted or is_hidden) for topic in whole.topics]
            steps.step(since, until, replace(_applied_to(whole, ends), topics=topics))
        compare(log, steps, whole, emptied)
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
    # It has whole ids.
    assert stat.S_IMODE((tmp_path / "newer" / "_state").stat().st_mode) == 0o700
    state.keep_fact("format", 5)
    state.close()
    with pytest.raises(CouldNotAuditError, match="has the form 5, which this audit does not know"):
        StateStore(tmp_path / "newer")


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    log = MemoryLog()
    half = log.half()
    state = StateStore(tmp_path)
    key = half.partition, half.offset

    def fail() -> None:
        with state.one_step():
            for mention in log.mentions():
                state.add(mention)
            assert state.transaction(key) is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert state.transaction(key) is None
    state.close()


def test_a_phantom_where_one_was_in_a_topic_that_is_created_again(tmp_path: Path) -> None:
    state = StateStore(tmp_path)
    phantom = '[["kind", "PHANTOM"]]'
    for identity in ("A" * 32, "B" * 32):
        copy = CopyMention(partition=0, half=7, at=5, topic=ORDERS, place=0, id=identity, content=1)
        with state.one_step():
            state.forget_topic(ORDERS)
            state.add(copy)
            state.put_stray(copy, "PHANTOM", phantom, f'"{identity}"')
    assert state.sums() == [(phantom, 2)]
    assert state.entries("PHANTOM", 9) == [f'"{"B" * 32}"']
    state.close()


def test_a_record_that_is_put_back_into_a_topic_that_is_created_again_is_no_second_copy(tmp_path: Path) -> None:
    log, state = MemoryLog(), StateStore(tmp_path)
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    with state.one_step():
        for mention in log.mentions():
            state.add(mention)
    put_back = CopyMention(
        partition=half.partition, half=half.offset, at=0, topic=ORDERS, place=1, id=half.id, content=1
    )
    with state.one_step():
        state.forget_topic(ORDERS)
        state.add(put_back)
    found = state.transaction((half.partition, half.offset))
    assert found is not None
    assert (found.copies, len(found.ends)) == ([put_back], 1)
    state.close()
