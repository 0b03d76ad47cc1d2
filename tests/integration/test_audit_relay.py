"""The audit of relays' rows on a real Kafka, by both engines. A writer of the test sends what the protocol says."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from txbridge_audit import AuditReport, run_audit
from txbridge_audit.audit import AuditEngine
from txbridge_audit.cluster.plan import past_audit
from txbridge_audit.judge.facts import AuditSelection

from tests.support.audit_engines import Audit, both_engines
from tests.support.audit_log import KafkaLog
from tests.support.audit_relay import BROKEN, FINDINGS, ROWS, UNJUDGED, Outbox, plant
from tests.support.audit_terms import COMMIT, COMPACTED, FORWARDED, ORDERS, PLAIN, Record
from tests.support.harness import eventually
from tests.support.module_fixtures import module_kafka
from txbridge.embedded import EmbeddedKafka

audit = both_engines()
kafka = module_kafka()


@pytest.fixture
def log(kafka: EmbeddedKafka) -> KafkaLog:
    """A namespace in which relays work."""
    made = KafkaLog(kafka.bootstrap_servers)
    made.create(NewTopic(made.names.outbox, 1, 1))
    return made


def test_finds_what_was_planted_and_nothing_else(log: KafkaLog, audit: Audit) -> None:
    plant(log)
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half, log.progress(PLAIN, half=1))
    report = audit(log)
    assert (dict(report.rows), report.transactions, report.delivered) == (ROWS, 1, 1)
    assert {kind: number for kind, number in report.violations.by_kind.items() if number} == BROKEN
    assert (dict(report.findings.by_kind), report.unjudged) == (FINDINGS, UNJUDGED)
    again = audit(log, at=past_audit(report.to_json(), "report.json"))
    assert (again.rows, again.violations, again.findings) == (report.rows, report.violations, report.findings)
    chosen = audit(log, selection=AuditSelection(topics=frozenset({log.real(COMPACTED)})))
    assert {state: number for state, number in chosen.rows.items() if number} == {"unverifiable": 1}


def test_where_only_relays_work_nothing_else_is_needed(log: KafkaLog, audit: Audit) -> None:
    outbox = Outbox(log)
    log.delete(*log.names.internal)
    outbox.send(1, outbox.row(1, 1), outbox.row(2, 1, FORWARDED))
    report = audit(log)
    assert (report.clean, report.strict_exit_code, report.rows["delivered"]) == (True, 0, 2)
    log.transaction(outbox.row(3, 1))
    assert audit(log).violations.by_kind["PHANTOM"] == 1


def test_a_relay_at_work_raises_no_false_alarm(log: KafkaLog, audit: Audit) -> None:
    """Batches are written, aborted and taken over while audits run."""
    outbox, stop, sent = Outbox(log), threading.Event(), count(1)
    done = [0]

    def work() -> None:
        while not stop.is_set():
            batch = next(sent)
            rows = [outbox.row(batch, batch), outbox.row(-batch, batch, partition=1)]
            log.aborted(*rows, outbox.progress(batch, *rows))
            log.transaction(outbox.owner(batch - 1))
            outbox.send(batch, *rows)
            done[0] = 2 * batch

    writer = threading.Thread(target=work)
    writer.start()
    try:
        eventually(lambda: done[0] > 0)
        reports = [audit(log) for _ in range(2)]
    finally:
        stop.set()
        writer.join()
    for report in reports:
        assert (report.violations.total, report.findings.total) == (0, 0), report.to_json()
        assert report.rows["delivered"] > 0
    last = audit(log)
    assert (last.rows["delivered"], sum(last.rows.values()), last.unjudged) == (done[0], done[0], {})


def test_what_retention_and_an_open_transaction_hide_is_not_judged(log: KafkaLog, audit: Audit) -> None:
    outbox = Outbox(log)
    for batch in range(1, 7):
        outbox.send(batch, outbox.row(batch, batch))
    # Two records and a marker for each batch: the progress of 1 and 2 goes, and the records of 1 to 3.
    log.delete_records(log.names.outbox, 0, 4)
    log.delete_records(log.real(ORDERS), 0, 6)
    log.transaction(outbox.progress(7, outbox.row(7, 7)))
    report = audit(log)
    assert {state: number for state, number in report.rows.items() if number} == {
        "delivered": 3,  # 4, 5 and 6
        "unverifiable": 1,  # 3, whose record is gone
        "LOST": 1,  # 7: the rows of 4 and 5 are older and still there
    }
    stranger = log.left_open(Record(log.real(ORDERS), 0, b"k", b"v", []))
    outbox.send(8, outbox.row(8, 8))
    report = audit(log, settle_timeout=0.5)
    # Neither is it known now whether 3 and 7 lie behind it.
    hidden = {"OPEN_TRANSACTION": 3}
    assert (report.clean, report.rows["pending"], report.unjudged["LOST"]) == (True, 3, hidden)
    stranger.abort_transaction()
    after = audit(log)
    assert (after.rows["delivered"], after.rows["LOST"], after.findings.total) == (4, 1, 0)


def test_a_continued_audit_says_the_same_and_forgets_what_the_progress_no_longer_holds(
    log: KafkaLog, tmp_path: Path
) -> None:
    def step() -> AuditReport:
        folder = str(tmp_path / "ledger")
        return run_audit(log.servers, namespace=log.names.namespace, continued=True, ledger_path=folder)

    early = Outbox(log, "e" * 16)
    early.send(1, early.row(1, 1), early.row(2, 1))
    assert step().rows["delivered"] == 2
    plant(log)
    log.transaction(early.row(1, 1))
    report = step()
    assert report.violations.by_kind["DUPLICATED"] == BROKEN["DUPLICATED"] + 1
    full = run_audit(log.servers, namespace=log.names.namespace, engine=AuditEngine.LOCAL)
    assert (report.rows, report.unjudged) == (full.rows, full.unjudged)
    assert (report.violations, report.findings) == (full.violations, full.findings)
    log.delete_records(log.names.outbox, 0, -1)
    # Of a batch whose progress is gone.
    log.transaction(early.row(3, 1))
    assert {state: number for state, number in step().rows.items() if number} == {"PHANTOM": 3, "unverifiable": 2}
