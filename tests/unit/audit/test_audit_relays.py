"""The judge of relays' rows, on logs in memory: what is planted is found, and nothing else, by either engine's way."""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from txbridge_audit.judge.facts import RealTopicFacts
from txbridge_audit.judge.relays import STATES
from txbridge_audit.protocol.mentions import UnreadableMention
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered, progress_of
from txbridge_audit.report.html import html
from txbridge_audit.report.overview import OverviewSums
from txbridge_audit.report.sums import OddRecords
from txbridge_audit.report.terminal import print_report

from tests.support.audit_judged import Judged, MemoryLog, raw_of, reported
from tests.support.audit_relay import BROKEN, FINDINGS, ROWS, UNJUDGED, Outbox, plant
from tests.support.audit_terms import FORWARDED, ORDERS
from tests.unit.audit.test_audit_columns import assert_agree
from tests.unit.audit.test_audit_steps import Steps, compare


def test_all_breaks_are_found_by_both_engines_and_by_steps() -> None:
    log = MemoryLog()
    plant(log)
    judged = Judged(log, log.facts())
    report = reported(log, judged)
    assert report.rows == ROWS
    assert {kind: count for kind, count in report.violations.by_kind.items() if count} == BROKEN
    assert (report.findings.by_kind, report.unjudged) == (FINDINGS, UNJUDGED)
    assert report.transactions == 0
    assert_agree(log, log.facts())
    [lost] = [entry for entry in report.violations.listed if entry.kind == "LOST"]
    digits = str(dict(Outbox(log).row(6, 3).headers)["UNIQ_KEY"], "ascii")  # type: ignore[arg-type]
    # Batch 3 is the fourth record of OUTBOX.
    assert lost.id == f"LOST {log.names.outbox}/0@3 {digits[:8]}"
    turns = [entry.says for entry in report.findings.listed if entry.kind == "BATCH_OUT_OF_TURN"]
    assert turns == ["batch 6 comes behind batch 4", "batch 6 comes behind batch 6"]
    out = io.StringIO()
    print_report(report, Console(file=out, width=160))
    states = "delivered 6, unverifiable 4, LOST 1, DUPLICATED 2, PHANTOM 3"
    assert "6 violations: 0 transactions and 16 rows of relays in " in out.getvalue()
    assert f"rows of relays: {states}" in out.getvalue()
    assert f"Rows of relays: {states}." in html(report, OverviewSums().overview())
    for cut in range(1, len(log.records)):
        with tempfile.TemporaryDirectory() as folder:
            steps = Steps(log, Path(folder))
            steps.step(0, cut, dataclasses.replace(log.facts(), before={}))
            steps.step(cut, len(log.records), log.facts())
            compare(log, steps, log.facts())
            steps.state.close()


def rows_of(judged: Judged) -> dict[str, int]:
    return dict(+Counter(judged.sums.by_name("row", STATES)))


def states(log: MemoryLog, **changed: object) -> dict[str, int]:
    return rows_of(Judged(log, log.facts(**changed)))


def test_what_is_in_flight_accuses_nobody() -> None:
    log = MemoryLog()
    outbox = Outbox(log)
    outbox.send(1, outbox.row(1, 1))
    # A row that became visible behind the earlier cut: its progress may lie behind the cut of OUTBOX.
    log.transaction(outbox.row(2, 2))
    assert states(log) == {"delivered": 1, "PHANTOM": 1}
    assert states(log, before={(ORDERS, 0): 1}) == {"delivered": 1, "pending": 1}
    assert states(log, are_relays_settled=False) == {"delivered": 1, "pending": 1}
    # The real topic is cut below a Kafka transaction that stays open.
    log.transaction(outbox.progress(2, outbox.row(3, 2)))
    assert states(log, topics=[RealTopicFacts(ORDERS, settled=False)]) == {"delivered": 1, "PHANTOM": 1, "pending": 1}


def test_rows_of_topics_that_are_left_out_do_not_count() -> None:
    log = MemoryLog()
    outbox = Outbox(log)
    log.transaction(outbox.row(1, 1), outbox.progress(1, outbox.row(1, 1), outbox.row(2, 1, FORWARDED)))
    assert states(log, topics=[RealTopicFacts(ORDERS)], only_topics={ORDERS}) == {"delivered": 1}


def test_a_loss_behind_what_retention_has_removed_needs_older_rows_in_each_cut_partition() -> None:
    log = MemoryLog()
    outbox = Outbox(log)
    for batch in (1, 2):
        outbox.send(batch, outbox.row(batch, batch))
    log.transaction(outbox.progress(3, outbox.row(3, 3)))
    truncated = [RealTopicFacts(ORDERS, truncated=True)]
    assert Judged(log, log.facts(topics=truncated), [(ORDERS, 0)]).sums.counts["row", "LOST"] == 1
    assert Judged(log, log.facts(topics=truncated), [(ORDERS, 0), (ORDERS, 1)]).sums.counts["row", "LOST"] == 0


@pytest.mark.parametrize(
    ("records", "first", "last", "breaks"),
    [
        ("b1 b2 b3", 1, 3, []),
        # Batch 2 is visible, and its relay has died before it could say so in the database.
        ("o0 b1 b2 o1 b3", 1, 3, []),
        # Retention has removed batch 8, which lay before the ownership record.
        ("o7 b9", 9, 9, []),
        ("b1 b3", 1, 3, [1]),
        ("b1 b2 b2 b3", 1, 3, [2]),
        # Kafka has lost batches that the database knows, and somebody has accepted that.
        ("b1 b2 o5 b6", 6, 6, [2]),
    ],
)
def test_numbers_of_batches(records: str, first: int, last: int, breaks: list[int]) -> None:
    found: dict[int, Numbering] = {}
    for at, (kind, *number) in enumerate(records.split()):
        found |= numbered(found, ProgressStep(0, at, -7, int("".join(number)), kind == "o"))
    told = found[-7]
    assert (told.first, told.last, [at for at, _ in told.breaks]) == (first, last, breaks)


@pytest.mark.parametrize(
    "value",
    [
        {"batch": -1, "topics": [], "rows": []},
        {"batch": True, "topics": [], "rows": []},
        {"batch": 1, "rows": []},
        {"batch": 1, "topics": ["RMQ_SYS_TRANS_HALF_TOPIC"], "rows": []},
        {"batch": 1, "topics": ["orders"], "rows": [[1, "0123456789ABCDEF", 1]]},
        {"batch": 1, "topics": ["orders"], "rows": [[1, "0123456789ABCDE", 0]]},
        {"batch": 1, "topics": ["orders"], "rows": [[1, "0123456789ABCDEF", 0, 0]]},
        {"batch": 1, "topics": ["orders"], "rows": [[None, "0123456789ABCDEF", 0]]},
        {"owner": 7, "batch": 1},
        [],
    ],
)
def test_progress_that_cannot_be_read(value: object) -> None:
    log = MemoryLog()
    log.write(Outbox(log).told(value))
    [told] = map(progress_of, map(raw_of, log.records))
    assert isinstance(told, UnreadableMention), json.dumps(value)
    odd = OddRecords(log.names)
    odd.add_record(told)
    assert [entry.kind for entry in odd.make_entries()] == ["MALFORMED"]
