"""The tasks of both engines against the judge of single transactions: given Arrow batches by hand, without Spark."""

from __future__ import annotations

import dataclasses
import marshal
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from txbridge_audit.cluster.reader import RAW
from txbridge_audit.engines import blocks, tasks
from txbridge_audit.engines.columns import SCHEMAS, hash_keys
from txbridge_audit.engines.tasks import Told, other_mentions
from txbridge_audit.judge import table
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import AuditSelection, Facts
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol.client_records import half_mention
from txbridge_audit.protocol.mentions import AsideMention, from_row
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.report.sums import LEFT_OUT, Sums

from tests.support.audit_cases import plant
from tests.support.audit_judged import BORN, COUNTS, Judged, MemoryLog
from tests.support.audit_terms import COMMIT, FORWARDED, ORDERS, PLAIN, ROLLBACK, Record
from tests.support.fuzz import VALID, Setting, damaged
from tests.unit.audit.test_audit_laws import NOWS, SETTINGS, facts_of, histories, played
from txbridge.murmur2 import hash_key


def batches_of(records: Sequence[KafkaRecord]) -> list[pa.RecordBatch]:
    """The records as Spark hands them to a task, some at a time."""
    rows = [
        {
            **record._asdict(),
            "timestampType": 0 if record.is_dated else 1,
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for record in records
    ]
    return [pa.RecordBatch.from_pylist(rows[at : at + 7], schema=RAW) for at in range(0, len(rows), 7)]


def rows_of(log: MemoryLog, *, exactly: bool = False) -> list[Told]:
    """Everything that the tasks make of the log, in the order in which a judging task gets it."""
    names, asides = log.names, SetAside(log.names)
    real = {topic: COUNTS.get(topic, 1) for topic in log.real_topics}
    discards = list(tasks.discards(names, batches_of(log.read(names.discard))))
    for what, _, _, packed in discards:
        mention = from_row(marshal.loads(packed))
        if what == tasks.ODD and isinstance(mention, AsideMention):
            asides.add_record(mention)
    found = [
        *tasks.halves(names, batches_of(log.read(names.half))),
        *discards,
        *tasks.offsets(names, batches_of(log.read(names.offset))),
        *tasks.others(names, real, asides, exactly, batches_of(log.read(names.end, names.op, *real))),
        *tasks.progress(names, batches_of(log.read(names.outbox))),
        *tasks.checks(names, batches_of(log.read(names.check("billing")))),
    ]
    there = [row for row in found if row[0] not in tasks.FOR_CUTS]
    return sorted(there, key=lambda row: row[1:3])


def assert_agree(log: MemoryLog, facts: Facts, selection: AuditSelection | None = None) -> tuple[int, int]:
    """Compare everything that the tasks say with what the judge says. Returns how many are plain, and all."""
    judged, selection = Judged(log, facts), selection or AuditSelection()
    rows = rows_of(log, exactly=facts.discards_cut)
    evidence = Evidence()
    for transaction in (verdict.case.transaction for verdict in judged.verdicts):
        evidence.see_transaction(transaction)
    found, _ = tasks.evidence_of(tasks.blocks_of(rows))
    assert found == evidence

    sums = tasks.verdicts_on(log.names, judged.facts, selection, True, tasks.blocks_of(rows))
    whole = Sums(log.names)
    for verdict in judged.verdicts:
        whole.strays += verdict.case.strays
        message = verdict.case.message
        if selection.takes(message):
            whole.take_verdict(verdict)
            whole.overview.take_verdict(verdict)
        elif message is not None and selection.leaves_out(message):
            whole.counts[LEFT_OUT] += 1
    assert sums.counts == whole.counts
    assert Counter(map(repr, sums.strays)) == Counter(map(repr, whole.strays))
    assert sums.tally(table.KINDS) == whole.tally(table.KINDS)
    assert sums.overview.overview() == whole.overview.overview()
    plain = sum(len(block.plain.halves) for block, _ in tasks.blocks_of(rows))
    return plain, len(judged.verdicts)


@settings(SETTINGS, max_examples=100)
@given(histories, st.sampled_from(NOWS), st.integers(0, 6), st.booleans(), st.booleans())
def test_what_is_counted_is_what_the_judge_says(
    history: list[tuple[str, list[str]]], now: int, low: int, applied: bool, forgetful: bool
) -> None:
    log = played(history)
    gone = {"ends_since": BORN, "parked_since": BORN} if forgetful else {}
    assert_agree(log, facts_of(log, now, low, applied=applied, **gone))


@pytest.mark.parametrize("exactly", [False, True])
def test_all_cases(exactly: bool) -> None:
    log = MemoryLog()
    plant(log)
    plain, number = assert_agree(log, log.facts(discards_cut=exactly, checks_since={"billing": BORN}))
    assert 0 < plain < number
    assert_agree(log, log.facts(), AuditSelection(since=BORN, until=BORN + 1, topics=frozenset({ORDERS})))
    assert_agree(log, log.facts(), AuditSelection(since=BORN + 1))


def test_plain_ones_are_counted_in_all_blocks_beside_copies_of_another_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 16)
    log, number = MemoryLog(), 100
    for at in range(number):
        half = log.half()
        log.end(half, ROLLBACK if at % 5 == 0 else COMMIT)
        if at % 5 == 0:
            log.transaction(log.op("rollback", half))
        else:
            log.deliver(half)
        # Another namespace delivers to the same topic, and its half messages have the same coordinates.
        if at % 7 == 0:
            log.transaction(dataclasses.replace(log.copy(dataclasses.replace(half, id="F" * 32)), at=[], stamped=[]))
    assert assert_agree(log, log.facts()) == (number, number)


def test_a_copy_in_another_topic_is_none_of_a_plain_transaction() -> None:
    log = MemoryLog()
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(dataclasses.replace(log.copy(half), topic=FORWARDED, at=[], stamped=[]), log.op("commit", half))
    assert assert_agree(log, log.facts()) == (0, 1)


def test_an_audit_that_is_made_again_tells_checks_that_have_aged_since() -> None:
    log, hour = MemoryLog(), 3_600_000
    for stamp in (BORN, BORN + hour):
        half = log.half()
        log.end(half, COMMIT)
        log.records[-1].stamped[0] = stamp
        log.deliver(half)
    facts = log.facts(now=BORN + hour // 2, read_at=BORN + hour * 3 // 2, checks_since={"billing": BORN + 2 * hour})
    assert assert_agree(log, facts) == (2, 2)
    reasons = [verdict.reach["CHECKED_AFTER_DECISION"] for verdict in Judged(log, facts).verdicts]
    assert reasons == ["CHECKS_AGED", "CHECKS_GONE"]


def test_a_decision_by_an_operator_who_gives_no_reason_is_listed() -> None:
    log = MemoryLog()
    half = log.half()
    log.end(half, COMMIT, source="operator")
    log.deliver(half)
    half = log.half()
    log.end(half, ROLLBACK, source="operator")
    log.transaction(log.op("rollback", half))
    assert assert_agree(log, log.facts()) == (0, 2)


def mentions_of(rows: Iterable[Told]) -> Counter[str]:
    """The mentions in the rows, however they are packed."""
    there = (row for row in rows if row[0] not in tasks.FOR_CUTS)
    return Counter(repr(mention) for what, _, _, packed in there for mention in tasks.mentions_in(what, packed))


@pytest.mark.parametrize("kind", ["half", "end", "op", "copy"])
def test_good_and_damaged_records_read_as_the_protocol_reads_them(kind: str) -> None:
    log, rng = MemoryLog(), Random(7)
    names, setting = log.names, Setting(names=log.names, partition=PLAIN, group="billing", real_topic=ORDERS)
    topic = {"half": names.half, "end": names.end, "op": names.op, "copy": ORDERS}[kind]
    raw_kind = "half" if kind == "copy" else kind
    for number in range(600):
        raw = VALID[raw_kind](setting, rng) if number % 3 == 0 else damaged(raw_kind, setting, rng)
        headers = list(raw.headers)
        if kind == "copy":
            where = rng.choice([b"0:7", b"3:12345678901", b"0:7x", b"", None])
            headers += [("TXB_HALF", where)] * rng.choice([0, 1, 1, 1, 2])
            headers += [("TXB_MESSAGE", b"1/2")] * rng.choice([0, 0, 1])
        log.write(Record(topic, PLAIN, raw.key, raw.value, headers, rng.choice([None, BORN, 5])))
    given = batches_of(log.read(topic))
    asides = SetAside(names, ends={(PLAIN, 5)}, firsts={(PLAIN, 3): 1})
    made = list(
        tasks.halves(names, given) if kind == "half" else tasks.others(names, {ORDERS: 2}, asides, False, given)
    )
    said = (
        map(half_mention, log.read(topic))
        if kind == "half"
        else other_mentions(names, {ORDERS: 2}, asides, False, log.read(topic))
    )
    assert mentions_of(made) == Counter(map(repr, said))
    assert len({what for what, *_ in made} & {mention.__name__ for mention in SCHEMAS}) == 1


@given(st.lists(st.one_of(st.none(), st.binary(max_size=64)), min_size=1))
def test_keys_are_hashed_alike(keys: list[bytes | None]) -> None:
    found = hash_keys(pa.array(keys, pa.binary())).tolist()
    assert [one for one, key in zip(found, keys, strict=True) if key] == [hash_key(key) for key in keys if key]
