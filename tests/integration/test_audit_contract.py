"""The contract of both engines on a real Kafka: each finds what is planted and nothing else, and says the same."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka.admin import NewTopic
from txbridge_audit import AuditReport, CouldNotAuditError, run_audit
from txbridge_audit.cluster import plan
from txbridge_audit.cluster.plan import past_audit
from txbridge_audit.judge.facts import AuditSelection

from tests.support.audit_cases import CASES, TAIL, plant
from tests.support.audit_engines import Audit, both_engines
from tests.support.audit_log import VIOLATIONS, KafkaLog, transactions
from tests.support.audit_terms import (
    ABSENT,
    COMMIT,
    FORWARDED,
    ORDERS,
    PARTITIONS,
    PASSED,
    PLAIN,
    ROLLBACK,
    Half,
    Record,
)
from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_kafka
from txbridge.embedded import EmbeddedKafka

audit = both_engines()
#: A cluster of its own, because half messages of other namespaces would explain phantoms.
kafka = module_kafka()


@pytest.fixture(scope="module")
def planted(kafka: EmbeddedKafka) -> tuple[KafkaLog, dict[str, Half | None]]:
    log = KafkaLog(kafka.bootstrap_servers)
    return log, plant(log)


def evidence(report: AuditReport, half: Half) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Kind of each violation and finding of a transaction, with the role and offset of each record."""
    entries = [*report.violations.listed, *report.findings.listed]
    return [
        (entry.kind, entry.real_topic or "", [(place.role, place.offset) for place in entry.evidence])
        for entry in entries
        if any((p.role, p.partition, p.offset) == ("half", half.partition, half.offset) for p in entry.evidence)
    ]


def test_finds_what_was_planted_and_nothing_else(
    planted: tuple[KafkaLog, dict[str, Half | None]], audit: Audit
) -> None:
    log, halves = planted
    said: list[str] = []
    report = audit(log, progress=said.append, real_topics=[log.real(FORWARDED)])
    cases = [*CASES.values(), *TAIL.values()]
    fates = Counter(transactions())
    assert +Counter(report.fates) == fates
    assert report.transactions == fates.total()
    assert +Counter(report.pending_states) == Counter(case.state for case in cases if case.state)
    found = Counter(kind for case in cases for kind in (*case.findings, *case.strays))
    assert dict(report.findings.by_kind) == {kind: count for kind, count in found.items() if kind not in VIOLATIONS}
    assert dict(report.violations.by_kind) == VIOLATIONS
    assert report.violations.total == len(report.violations.listed) == sum(VIOLATIONS.values())
    assert (report.clean, report.exit_code, report.strict_exit_code) == (False, 1, 1)
    assert report.answered_by_check == 1
    # A message, one of several, one of a step, and one that was scheduled.
    assert report.delivered_more_than_once == 4
    assert report.rolled_back_but_visible == 4  # the same, leaked, and where a later commit prevailed
    assert (report.delivered, report.rolled_back) == (fates["delivered"], fates["rolled_back"])
    assert "reading half messages" in said
    differing = {entry.says for entry in report.violations.listed if entry.kind == "ALTERED"}
    assert {f"not that of the half message in a visible copy: {what}" for what in ("value", "timestamp")} <= differing
    for name, case in (CASES | TAIL).items():
        half = halves[name]
        if half is not None:
            kinds = {kind for kind, _, _ in evidence(report, half)}
            assert kinds == case.findings | ({case.fate} & set(report.violations.by_kind)), name


def test_evidence(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    half = log.half()
    first, second = log.end(half, ROLLBACK), log.end(half, COMMIT)
    copy = log.copy(half, partition=1)
    outcome = log.op("commit", half)
    log.transaction(copy, outcome)
    phantom = log.copy(Half(PLAIN, 7, "F" * 32, "billing", log.real(ORDERS)))
    log.transaction(phantom)
    report = audit(log)

    records = [("half", half.offset), ("end", first), ("end", second), ("op", outcome.offset), ("copy", copy.offset)]
    assert evidence(report, half) == [("WRONG_WINNER", log.real(ORDERS), records)]
    (entry,) = [entry for entry in report.violations.listed if entry.kind == "PHANTOM"]
    assert [(place.role, place.topic, place.partition, place.offset) for place in entry.evidence] == [
        ("copy", log.real(ORDERS), 0, phantom.offset),
        # The half coordinates that the copy claims.
        ("claims", log.names.half, PLAIN, 7),
    ]
    assert entry.transaction == "F" * 8
    # A complete transaction id is the right to decide, so a report never shows one.
    text = report.to_json()
    assert half.id not in text
    assert half.id[:8] in text
    assert json.loads(text)["cuts"][log.names.end] == {"0": {"start": 0, "end": 2}, "1": {"start": 0, "end": 0}}


def test_clean_and_empty(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    report = audit(log, real_topics=[log.real(ORDERS), log.real(ABSENT)])
    assert (report.transactions, report.exit_code, dict(report.findings.by_kind)) == (0, 0, {})
    assert log.real(ORDERS) in report.cuts
    log.transaction(log.copy(Half(PLAIN, 0, "F" * 32, "billing", log.real(ORDERS))))
    # No half message names the topic, so the audit reads it only when an option names it.
    assert audit(log).clean
    assert audit(log, real_topics=[log.real(ORDERS)]).violations.by_kind["PHANTOM"] == 1


def test_the_same_audit_is_made_again_at_its_cuts(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    leaked, held, undecided, kept = (log.half() for _ in range(4))
    log.end(leaked, ROLLBACK)
    log.transaction(log.copy(leaked), log.op("rollback", leaked), log.progress(PLAIN, half=0))
    log.end(held, COMMIT)
    log.transaction(log.parked(held, "held", error="no such topic"), log.progress(PLAIN, half=2))
    foreign = log.left_open(Record(log.real(ORDERS), 0, b"k", b"v", []))
    first = audit(log, settle_timeout=0.5)
    assert (first.fates["LEAKED"], first.pending_states["held"], first.pending_states["undecided"]) == (1, 1, 2)
    past = past_audit(first.to_json(), "report.json")

    # Everything moves on: what was hidden appears, what waited is finished, and somebody prepares another one.
    foreign.commit_transaction()
    log.transaction(log.copy(held), log.op("commit", held), log.parked(held, None), log.progress(PLAIN, half=2))
    for half in (undecided, log.half()):
        log.end(half, COMMIT)
        log.deliver(half)
    again = audit(log, at=past)
    assert same(again) == same(first)
    assert again.read_at > first.started_at
    assert audit(log).transactions == 5

    # What retention has removed since is not judged, and the report says how much that is.
    log.delete_records(log.names.half, PLAIN, held.offset)
    less = audit(log, at=past)
    assert (less.transactions, less.fates["LEAKED"], dict(less.findings.by_kind)) == (
        3,
        0,
        {"HALF_GONE": 1, "OPEN_TRANSACTION": 1, "BLIND": 2},
    )
    assert less.lost_since == {f"{log.names.half}/{PLAIN}": 1}
    assert kept.offset == 3

    log.delete(log.real(ORDERS))
    log.create(NewTopic(log.real(ORDERS), 2, 1))
    with pytest.raises(CouldNotAuditError, match="was deleted or created again since the report of --at"):
        audit(log, at=past)


def same(report: AuditReport) -> dict[str, object]:
    """What an audit says, apart from when it was made."""
    return {name: told for name, told in report.to_dict().items() if name not in {"seconds", "read_at"}}


def test_parked_entries_that_compaction_may_have_removed_are_not_missed(kafka: EmbeddedKafka, audit: Audit) -> None:
    """One checkpoint is left below the cut. An older one would prove that compaction has not come as far."""
    log = KafkaLog(kafka.bootstrap_servers)
    half = log.half(partition=PASSED)
    log.end(half, ROLLBACK)
    log.transaction(log.progress(PASSED, half=1))
    first = audit(log)
    assert first.violations.by_kind["PROGRESS_AHEAD"] == 1
    past = past_audit(first.to_json(), "report.json")
    assert same(audit(log, at=past)) == same(first)
    log.transaction(log.progress(PASSED, half=1))
    again = audit(log, at=past)
    assert (again.violations.total, again.unjudged["PROGRESS_AHEAD"]) == (0, {"PARKED_GONE": 1})


def test_open_kafka_transaction_hides_but_accuses_nobody(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    before, behind = log.half(), log.half()
    for half in (before, behind):
        log.end(half, COMMIT)
    log.deliver(before)
    foreign = log.left_open(Record(log.real(ORDERS), 0, b"k", b"v", []))
    log.deliver(behind)
    log.transaction(log.progress(PLAIN, half=2))
    report = audit(log, settle_timeout=0.5)
    assert report.clean
    assert (report.delivered, report.pending_states["in_commit"]) == (1, 1)
    assert dict(report.findings.by_kind) == {"OPEN_TRANSACTION": 1}
    foreign.abort_transaction()
    after = audit(log)
    assert (after.delivered, after.clean, after.findings.total) == (2, True, 0)


def test_open_kafka_transaction_in_end_hides_decisions_and_is_told(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    half, behind = log.half(), log.half()
    stranger = log.left_open(log.decision(half, ROLLBACK))
    log.end(behind, COMMIT)
    report = audit(log, settle_timeout=0.5)
    assert (report.clean, report.pending, dict(report.findings.by_kind)) == (True, 2, {"OPEN_TRANSACTION": 1})
    [entry] = report.findings.listed
    assert (entry.evidence[0].topic, entry.evidence[0].offset) == (log.names.end, 0)
    stranger.abort_transaction()
    log.transaction(log.copy(behind), log.op("commit", behind), log.progress(PLAIN, half=0))
    after = audit(log)
    assert (after.clean, after.delivered, after.pending, after.findings.total) == (True, 1, 1, 0)


def test_retention_and_deleted_records_raise_no_false_alarm(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    expired, removed, kept, also, lost = (log.half() for _ in range(5))
    for half in (expired, removed, kept, also, lost):
        log.end(half, COMMIT)
    log.transaction(log.progress(PLAIN, half=0))
    copies = [log.deliver(half) for half in (expired, removed, kept, also)]
    log.transaction(log.op("commit", lost))
    log.delete_records(log.real(ORDERS), 0, copies[2].offset)
    report = audit(log)
    assert (report.delivered, report.unverifiable, report.fates["LOST"]) == (2, 2, 1)
    # Now the half messages and all of END are removed, too, so no evidence against any copy is left.
    log.delete_records(log.names.half, 0, kept.offset)
    log.delete_records(log.names.end, 0, 5)
    log.transaction(log.copy(expired), log.copy(Half(PLAIN, removed.offset, "E" * 32, "billing", log.real(ORDERS))))
    report = audit(log)
    assert (report.transactions, report.delivered, report.fates["LOST"]) == (3, 2, 1)
    assert dict(report.findings.by_kind) == {"HALF_GONE": 2, "HALF_RANGE_GONE": 1, "BLIND": 5}
    # The real topic is deleted and created again, so the loss of its records is not txbridge's.
    log.delete(log.real(ORDERS))
    log.create(NewTopic(log.real(ORDERS), 2, 1))
    report = audit(log)
    assert (report.violations.total, report.unverifiable) == (0, 3)
    # Without evidence no audit is clean.
    assert not report.clean
    assert dict(report.findings.by_kind) == {"NOT_IN_TOPIC": 3, "HALF_RANGE_GONE": 1, "BLIND": 2}


def test_a_rule_that_judges_nothing_is_a_finding_and_no_audit_is_clean(kafka: EmbeddedKafka, audit: Audit) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.transaction(log.progress(PLAIN, half=1))
    assert (audit(log).unjudged, audit(log).strict_exit_code) == ({}, 0)
    log.delete_records(log.names.end, PLAIN, -1)
    report = audit(log)
    gone = {"END_GONE": 1}
    blind = ("BEFORE_DECISION", "CHECKED_AFTER_DECISION", "LEAKED", "OVERTAKEN", "WRONG_WINNER")
    assert report.unjudged == dict.fromkeys(blind, gone)
    assert (report.violations.total, report.clean, report.exit_code) == (0, False, 1)
    assert report.findings.by_kind["BLIND"] == len(blind)
    says = "LEAKED could judge none of 1: END no longer holds all decisions of their time"
    assert says in [entry.says for entry in report.findings.listed]
    # HALF is empty, so a verdict "clean" would be about nothing.
    log.delete_records(log.names.half, PLAIN, -1)
    report = audit(log)
    assert (report.transactions, report.clean, report.exit_code) == (0, False, 1)
    assert "retention has left nothing in" in report.findings.listed[-1].says
    assert set(report.unjudged) == set(VIOLATIONS)


def test_range_of_time_and_chosen_topics(kafka: EmbeddedKafka, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions outside the choice are not judged. Their copies and ENDs do not count as strays."""
    # One broker has one clock. The usual margin of an hour would make the audit read everything here.
    monkeypatch.setattr(plan, "CLOCK_MARGIN_MS", 0)
    log = KafkaLog(kafka.bootstrap_servers)
    leaked, old = log.half(), log.half(partition=PASSED)
    log.deliver(leaked)
    log.end(old, COMMIT)
    log.deliver(old)
    time.sleep(0.05)
    mark = time.time_ns() // 1_000_000
    time.sleep(0.05)
    new, elsewhere, _ = log.half(), log.half(topic=FORWARDED), log.several(ORDERS, FORWARDED)
    for half in (new, elsewhere):
        log.end(half, COMMIT)
        log.deliver(half)
    log.transaction(log.progress(PLAIN, half=0), log.progress(PASSED, half=0))
    since = audit(log, selection=AuditSelection(since=mark))
    assert (since.transactions, since.delivered, since.clean, dict(since.findings.by_kind)) == (3, 2, True, {})
    assert since.cuts[log.names.half]["0"]["start"] == new.offset
    alone = audit(log, selection=AuditSelection(since=mark, topics=frozenset({log.real(ORDERS)})))
    assert (alone.transactions, alone.clean, alone.strict_exit_code) == (1, True, 1)
    assert [entry.says[:31] for entry in alone.findings.listed] == ["1 transactions to several topic"]
    until = audit(log, selection=AuditSelection(until=mark, topics=frozenset({log.real(ORDERS)})))
    assert (until.transactions, until.delivered, until.fates["LEAKED"]) == (2, 1, 1)
    assert log.real(FORWARDED) not in until.cuts
    assert json.loads(until.to_json())["selection"] == {"since": None, "until": mark, "topics": [log.real(ORDERS)]}
    with pytest.raises(CouldNotAuditError, match=r"no topic nowhere, and no message names it: check --only-topic"):
        audit(log, selection=AuditSelection(topics=frozenset({"nowhere"})))
    log.delete_records(log.names.half, PLAIN, new.offset)
    with pytest.raises(CouldNotAuditError, match=r"retention has left nothing before .*HALF_TOPIC/0.* a later --since"):
        audit(log, selection=AuditSelection(since=mark - 1_000))


def test_a_visible_record_that_cannot_be_read_is_a_blindness(kafka: EmbeddedKafka, audit: Audit) -> None:
    """Somebody writes a second copy and a forged record, each with a header whose name is not UTF-8."""
    log = KafkaLog(kafka.bootstrap_servers)
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    with closing(Bridge(kafka.bootstrap_servers, "undecodable")) as bridge:
        for copy in (log.copy(half), log.copy(replace(half, id="F" * 32))):
            bridge.produce_undecodable(copy.topic, copy.value or b"", copy.headers, copy.partition, copy.key)
    log.transaction(log.progress(PLAIN, half=1))
    report = audit(log)
    assert (report.violations.total, report.clean, report.exit_code) == (0, False, 1)
    assert dict(report.findings.by_kind) == {"BLIND": 2}
    assert {place.role for entry in report.findings.listed for place in entry.evidence} == {"record"}


def test_two_namespaces_share_a_real_topic(kafka: EmbeddedKafka, audit: Audit) -> None:
    ours, theirs = KafkaLog(kafka.bootstrap_servers), KafkaLog(kafka.bootstrap_servers)
    mine = ours.half()
    ours.end(mine, COMMIT)
    ours.deliver(mine)
    shared = Half(PLAIN, mine.offset, theirs.half().id, "billing", mine.topic)
    ours.transaction(ours.copy(shared), ours.progress(PLAIN, half=0))
    report = audit(ours)
    assert report.clean
    assert dict(report.findings.by_kind) == {"OTHER_NAMESPACE": 1}


def test_live_system_raises_no_false_alarm(kafka: EmbeddedKafka, audit: Audit) -> None:
    """Transactions start, are decided and are delivered while audits run. No order of events is a violation."""
    log = KafkaLog(kafka.bootstrap_servers)
    stop = threading.Event()
    written = Counter[str]()

    def work() -> None:
        while not stop.is_set():
            first, second = log.half(), log.half()
            log.end(second, ROLLBACK)
            log.end(first, COMMIT)
            records = (log.op("rollback", second), log.progress(PLAIN, half=second.offset + 1))
            copy = log.copy(first, partition=first.offset % 2)
            if written["committed"] % 5 == 0:
                log.aborted(copy, log.op("commit", first))
            log.transaction(copy, log.op("commit", first), *records)
            written.update(["committed", "rolled back"])

    writer = threading.Thread(target=work)
    writer.start()
    try:
        eventually(lambda: written["committed"] > 0)
        reports = [audit(log) for _ in range(2)]
    finally:
        stop.set()
        writer.join()
    for report in reports:
        assert report.violations.total == 0, report.violations.listed
        assert report.findings.total == 0, report.findings.listed
        assert report.delivered > 0
    last = audit(log)
    assert last.pending == 0
    assert (last.delivered, last.rolled_back) == (written["committed"], written["rolled back"])
    assert last.transactions > reports[-1].transactions > reports[0].transactions


def test_refuses_when_no_verdict_is_possible(kafka: EmbeddedKafka, audit: Audit) -> None:
    with pytest.raises(CouldNotAuditError, match=r"127\.0\.0\.1:9 cannot be reached .*--bootstrap-servers"):
        run_audit("127.0.0.1:9")
    with pytest.raises(CouldNotAuditError, match=r"no topic nowhere\.RMQ_SYS_TRANS_HALF_TOPIC.*topics apply"):
        run_audit(kafka.bootstrap_servers, namespace="nowhere")
    log = KafkaLog(kafka.bootstrap_servers)
    newer = Record(log.names.op, PLAIN, None, b"0", [("TXB_V", b"2"), ("TAGS", b"d"), ("OUTCOME", b"commit")])
    log.transaction(newer)
    with pytest.raises(CouldNotAuditError, match=r"OP_HALF_TOPIC/0@0 has TXB_V=2, .* use the audit of that version"):
        audit(log)
    log.transaction(replace(log.progress(PLAIN, half=1), headers=[("TXB_V", b"2")]))
    with pytest.raises(CouldNotAuditError, match=r"OFFSET_TOPIC/0@0 has TXB_V=2"):
        audit(log)
    log = KafkaLog(kafka.bootstrap_servers)
    log.transaction(log.progress(PLAIN, half=1))
    with pytest.raises(CouldNotAuditError, match=r"HALF_TOPIC/0 ends at 0, below the worker's checkpoint \(1\)"):
        audit(log)
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.progress(PLAIN, half=0, topics={"end": "AAAAAAAAAAAAAAAAAAAAAA"}))
    with pytest.raises(CouldNotAuditError, match="END_TOPIC was deleted and created again"):
        audit(log)
    log.delete(log.names.op)
    log.create(NewTopic(log.names.op, PARTITIONS + 1, 1))
    with pytest.raises(CouldNotAuditError, match="the same number of partitions"):
        audit(log)
