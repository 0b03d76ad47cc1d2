"""Every rule of the audit on records in memory: it finds only what is planted, and all of it. No Spark, no Kafka."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Collection
from random import Random

import pytest
from txbridge_audit.cluster.cuts import AuditCut
from txbridge_audit.cluster.facts import partition_facts
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.judge import table
from txbridge_audit.judge.facts import Facts, HalfFacts, RealTopicFacts, TopicPartition
from txbridge_audit.judge.strays import OtherNamespaces
from txbridge_audit.protocol import client_records
from txbridge_audit.protocol.mentions import (
    AsideMention,
    DiscardMention,
    EndMention,
    HalfMention,
    OutcomeMention,
    ParkedMention,
    UnreadableMention,
    from_row,
    to_row,
)
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.worker_records import AuditCheckpoint

from tests.corruption import writer
from tests.support.audit_cases import CASES, FAR_AWAY, TAIL, plant
from tests.support.audit_judged import BORN, Judged, MemoryLog
from tests.support.audit_terms import ABSENT, COMMIT, ORDERS, PASSED, PLAIN, ROLLBACK, Half, Record, headers
from tests.support.fuzz import VALID, Raw, Setting, damaged
from txbridge.core.decision_record import parse_end
from txbridge.core.headers import MalformedRecordError
from txbridge.murmur2 import hash_key

HOUR = 3_600_000


def test_damaged_records_are_read_without_an_error_and_those_of_offset_say_nothing() -> None:
    """Damaged records of every internal topic and the discard topic. Nothing raises an error."""
    log, rng = MemoryLog(), Random(11)
    names, setting = log.names, Setting(names=log.names, partition=PLAIN, group="billing", real_topic=ORDERS)
    half = log.half()
    log.write(log.progress(PLAIN, 4, topics={}))
    log.write(log.parked(half, "pending"))
    topics = {"half": names.half, "end": names.end, "op": names.op, "discard": names.discard}
    for kind in VALID:
        for _ in range(60):
            raw = damaged(kind, setting, rng)
            if kind in {"checkpoint", "parked"}:
                # The same keys as the good records, with values that no worker accepts.
                key = names.checkpoint_key(PLAIN) if kind == "checkpoint" else names.parked_key(PLAIN, half.offset)
                value = rng.choice([b"{", b"null", b"[" * 9_000, b'{"half":1e400,"end":"x"}', b'{"state":"odd"}'])
                raw = Raw(key, value, [("TXB_V", b"1")])
                log.write(Record(names.offset, PLAIN, key, None, [("TXB_V", b"2")]))
            log.write(Record(topics.get(kind, names.offset), PLAIN, raw.key, raw.value, list(raw.headers)))
    mentions = log.mentions()
    assert {type(mention) for mention in mentions} >= {HalfMention, EndMention, UnreadableMention, OutcomeMention}
    assert any(isinstance(mention, DiscardMention | AsideMention) for mention in mentions)
    [(partition, progress)] = log.checkpoints().items()
    assert (progress.low, partition) == (4, PLAIN)
    parked = [(mention.half, mention.state) for mention in mentions if isinstance(mention, ParkedMention)]
    assert parked == [(half.offset, "pending")]
    # A mention is the same after it was JSON.
    assert [from_row(json.loads(json.dumps(to_row(mention)))) for mention in mentions] == mentions


@pytest.fixture(scope="module")
def planted() -> tuple[dict[str, Half | None], Judged]:
    log = MemoryLog()
    halves = plant(log)
    facts = log.facts(partitions=[HalfFacts(p, 0, seen.applied_to, seen.low) for p, seen in log.checkpoints().items()])
    judged = Judged(log, facts)
    assert judged.strays
    assert judged.odd.faults
    return halves, judged


@pytest.mark.parametrize("name", [*CASES, *TAIL])
def test_fate_and_findings(planted: tuple[dict[str, Half | None], Judged], name: str) -> None:
    halves, judged = planted
    case, half = (CASES | TAIL)[name], halves[name]
    if half is None:
        assert case.fate is None
        return
    row = judged.of(half)
    assert (row.fate, row.pending_state, {*row.violations, *row.findings}) == (case.fate, case.state, case.findings)


def test_everything_planted_is_counted_once(planted: tuple[dict[str, Half | None], Judged]) -> None:
    _, judged = planted
    cases = [*CASES.values(), *TAIL.values()]
    fates = Counter(row.fate for row in judged.verdicts if row.fate)
    assert fates == Counter(fate for case in cases for fate in case.fates)
    stray = Counter(kind for row in judged.verdicts if not row.fate for kind in row.findings) + Counter(judged.strays)
    stray += Counter(entry.kind for entry in judged.odd.make_entries())
    assert stray == Counter(kind for case in cases for kind in case.strays)


def test_evidence_names_every_record() -> None:
    log = MemoryLog()
    half = log.half()
    first, second = log.end(half, ROLLBACK), log.end(half, COMMIT)
    copy = log.deliver(half)
    [(_, entry)] = Judged(log, log.facts()).sums.listed["WRONG_WINNER"]
    names = log.names
    assert [dataclasses.astuple(place) for place in entry.evidence] == [
        ("half", names.half, PLAIN, half.offset),
        ("end", names.end, PLAIN, first),
        ("end", names.end, PLAIN, second),
        ("op", names.op, PLAIN, 0),
        ("copy", ORDERS, 0, copy.offset),
    ]
    assert (entry.transaction, entry.group, entry.real_topic) == (half.id[:8], "billing", ORDERS)
    assert entry.id_sha256 == hashlib.sha256(half.id.encode()).hexdigest()
    assert entry.times == {"prepared": BORN, "decided": BORN, "recorded as delivered": BORN}


def test_worker_says_what_is_wrong_with_a_malformed_record(planted: tuple[dict[str, Half | None], Judged]) -> None:
    _, judged = planted
    said = Counter(entry.says for entry in judged.odd.make_entries())
    assert said["no good"] == 16
    assert said["TXB_V is not 1"] == said["TRAN_MSG is not true"] == 1
    assert said["REAL_TOPIC is forbidden"] == 4
    assert said["an entry cannot be read"] == 1


def test_nothing_is_judged_above_the_earlier_cut() -> None:
    """A copy and its END may both have come after END was cut: neither a leak nor a phantom."""
    log = MemoryLog()
    moving, rolled_back, doubled, unread = log.half(), log.half(), log.half(), log.half()
    log.end(rolled_back, ROLLBACK)
    log.end(doubled, COMMIT)
    log.end(unread, ROLLBACK)
    log.transaction(log.copy(moving))
    log.transaction(log.copy(rolled_back))
    log.transaction(log.copy(doubled), log.copy(doubled), log.op("commit", doubled))
    log.transaction(log.copy(Half(PLAIN, 99, "F" * 32, "billing", ORDERS)))
    # The worker has not read it yet: a coming discard may make this rollback late.
    log.transaction(log.copy(unread))
    facts = log.facts(before={(ORDERS, 0): 0}, partitions=[HalfFacts(PLAIN, 0, applied_to=2, low=0)])
    judged = Judged(log, facts)
    assert (judged.fate(moving), judged.of(moving).pending_state) == ("pending", "moving")
    assert (judged.fate(unread), judged.of(unread).pending_state) == ("pending", "moving")
    # A first decision never changes, and neither do existing copies: these need no cut.
    assert judged.fate(rolled_back) == "LEAKED"
    assert judged.fate(doubled) == "DUPLICATED"
    assert judged.strays == []


def test_open_transactions_are_not_judged() -> None:
    log = MemoryLog()
    in_commit, unapplied = log.half(), log.half(partition=PASSED)
    log.end(in_commit, COMMIT)
    log.transaction(log.op("commit", in_commit))
    log.end(unapplied, COMMIT)
    partitions = [HalfFacts(PLAIN, 0, 1, 0), HalfFacts(PASSED, 0, 1, 0, op_settled=False)]
    judged = Judged(log, log.facts(partitions=partitions, topics=[RealTopicFacts(ORDERS, settled=False)]))
    assert (judged.fate(in_commit), judged.of(in_commit).pending_state) == ("pending", "in_commit")
    assert (judged.fate(unapplied), judged.of(unapplied).pending_state) == ("pending", "decision_unread")


def test_closed_is_what_only_a_new_record_could_change() -> None:
    log = MemoryLog()
    delivered, rolled_back, discarded, lost = log.half(), log.half(), log.half(), log.half()
    tombstone_unread, unapplied, undecided, forgotten = log.half(), log.half(), log.half(), log.half()
    for half, decision in ((delivered, COMMIT), (rolled_back, ROLLBACK), (lost, COMMIT), (tombstone_unread, COMMIT)):
        log.end(half, decision)
    log.deliver(delivered)
    log.transaction(log.op("rollback", rolled_back), log.discard(discarded))
    log.transaction(log.op("discard", discarded), log.parked(discarded, "discarded"))
    log.transaction(log.parked(tombstone_unread, "held"))
    log.deliver(tombstone_unread)
    log.transaction(log.op("commit", lost))
    log.end(unapplied, COMMIT)
    log.deliver(unapplied)
    repeated_at = log.end(unapplied, COMMIT)
    assert undecided.offset < forgotten.offset
    partitions = [HalfFacts(PLAIN, 0, applied_to=repeated_at, low=0)]
    judged = Judged(log, log.facts(partitions=partitions))
    halves = {"delivered": delivered, "rolled back": rolled_back, "discarded": discarded, "lost": lost}
    halves |= {"tombstone unread": tombstone_unread, "unapplied": unapplied, "undecided": undecided}
    assert judged.fate(lost) == "LOST"
    closed = {name for name, half in halves.items() if judged.of(half).is_closed}
    assert closed == {"delivered", "rolled back", "discarded", "lost"}
    # Records that an open Kafka transaction hides may still be evidence.
    hidden = Judged(log, log.facts(partitions=partitions, topics=[RealTopicFacts(ORDERS, settled=False)]))
    assert not any(hidden.of(half).is_closed for half in halves.values())
    unsettled = [HalfFacts(PLAIN, 0, applied_to=repeated_at, low=0, op_settled=False)]
    hidden = Judged(log, log.facts(partitions=unsettled))
    assert not any(hidden.of(half).is_closed for half in halves.values())


def test_no_worker_ever_ran() -> None:
    log = MemoryLog()
    half = log.half()
    log.end(half, COMMIT)
    judged = Judged(log, log.facts(partitions=[HalfFacts(PLAIN, 0)]))
    assert (judged.fate(half), judged.of(half).pending_state) == ("pending", "decision_unread")


def test_history_that_retention_removed_accuses_nobody() -> None:
    log = MemoryLog()
    winner_gone, all_gone, finished, forgotten = log.half(), log.half(), log.half(), log.half()
    open_still, leaked = log.half(), log.half()
    log.end(winner_gone, ROLLBACK)  # Refused: an earlier commit was removed.
    log.deliver(winner_gone)
    log.transaction(log.copy(all_gone))
    log.transaction(log.op("rollback", finished))
    log.transaction(log.op("rollback", leaked), log.copy(leaked))
    log.transaction(log.parked(open_still, "pending"))
    old = [HalfFacts(PLAIN, 0, applied_to=1, low=6, ends_since=BORN, outcomes_since=BORN)]
    judged = Judged(log, log.facts(partitions=old))
    assert judged.fate(winner_gone) == "delivered"
    # Visible, without any evidence of a commit.
    assert judged.fate(all_gone) == "unverifiable"
    assert judged.fate(finished) == "rolled_back"
    assert judged.fate(forgotten) == "unverifiable"
    assert judged.fate(open_still) == "pending"
    # OP itself says that it was rolled back: no history is needed.
    assert judged.fate(leaked) == "LEAKED"
    assert not any(row.findings for row in judged.verdicts)


def test_history_is_known_for_those_born_later() -> None:
    log = MemoryLog()
    half = log.half()
    log.end(half, ROLLBACK)
    log.deliver(half)
    judged = Judged(
        log, log.facts(partitions=[HalfFacts(PLAIN, 0, 1, 0, ends_since=BORN - 1, outcomes_since=BORN - 1)])
    )
    assert judged.fate(half) == "LEAKED"


def test_a_cancellation_with_its_question_and_its_replies_is_judged_as_an_abandon_alone() -> None:
    """The question names another half message, as far as HALF is to be read. A reply is no check after a decision."""
    log = MemoryLog()
    half, last = log.half(TXB_DELIVER_AT=str(FAR_AWAY)), log.half()
    log.end(half, COMMIT)
    log.transaction(log.parked(half, "scheduled", next=FAR_AWAY))
    asked = half.entry(0).replace(f"{half.offset},", f"{last.offset},", 1).encode()
    log.decision_record(asked, SOURCE="find", TXB_REPLY="asked")
    log.decision_record(half.entry(0, rest=",,paid").encode(), SOURCE="cancel", TXB_REPLY="cancelled")
    reply = headers(TXB_V="1", TXB_REPLY="cancelled", TXB_STATE="abandoned", TXB_HALF=f"0:{half.offset}")
    log.transaction(
        log.op("abandon", half),
        log.parked(half, None),
        Record(log.names.check(half.group), 0, b"cancelled", None, reply),
    )
    judged = Judged(log, log.facts())
    assert (judged.fate(half), judged.of(half).violations, judged.of(half).findings) == ("cancelled", (), ())
    assert (judged.fate(last), judged.of(last).violations) == ("pending", ())
    assert judged.broken() == {}


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_discard_whose_record_is_gone_makes_late_undecidable(decision: int) -> None:
    log = MemoryLog()
    half, resumed = log.half(), log.half()
    log.transaction(log.op("discard", half, resumed))
    log.end(half, decision)
    log.end(resumed, 0, source="resume")
    log.end(resumed, ROLLBACK)
    log.transaction(log.op("rollback", resumed))
    judged = Judged(log, log.facts())
    assert (judged.fate(half), judged.of(half).violations) == ("discarded", ())
    assert judged.fate(resumed) == "rolled_back"


def test_topic_truncated_or_made_again_proves_a_loss_only_after_an_older_record() -> None:
    """All earlier deliveries are gone. A missing record after an existing one is lost."""
    log = MemoryLog()
    gone, there, next_one, lost = log.half(), log.half(), log.half(), log.half()
    other = log.half(partition=PASSED)
    for half in (gone, there, next_one, lost, other):
        log.end(half, COMMIT)
    log.transaction(log.op("commit", gone))
    log.deliver(there)
    log.deliver(next_one)
    log.transaction(log.op("commit", lost))
    log.transaction(log.op("commit", other))
    judged = Judged(log, log.facts())
    assert [judged.fate(half) for half in (gone, there, lost)] == ["unverifiable", "delivered", "LOST"]
    # Records of another half partition have an order of their own.
    assert (judged.fate(other), judged.of(other).findings) == ("unverifiable", ("NOT_IN_TOPIC",))
    assert judged.of(gone).findings == ("NOT_IN_TOPIC",)
    truncated = [RealTopicFacts(ORDERS, truncated=True)]
    judged = Judged(log, log.facts(topics=truncated), truncated=((ORDERS, 0),))
    assert [judged.fate(half) for half in (gone, other, lost)] == ["unverifiable", "unverifiable", "LOST"]
    # The missing record may have gone to the other partition of the topic, where there is no evidence.
    both = Judged(log, log.facts(topics=truncated), truncated=((ORDERS, 0), (ORDERS, 1)))
    assert both.fate(lost) == "unverifiable"


def test_an_old_record_that_was_put_back_into_a_topic_created_again_proves_no_loss() -> None:
    log = MemoryLog()
    put_back, gone, also_gone, new = log.half(), log.half(), log.half(), log.half()
    for half in (put_back, gone, also_gone, new):
        log.end(half, COMMIT)
    log.transaction(log.op("commit", put_back))
    log.transaction(log.op("commit", gone))
    log.transaction(log.op("commit", also_gone))
    log.transaction(log.copy(put_back))
    log.deliver(new)
    judged = Judged(log, log.facts())
    assert [judged.fate(half) for half in (put_back, gone, also_gone, new)] == [
        *("delivered", "unverifiable", "unverifiable", "delivered")
    ]


def test_coordinates_below_the_log_start_are_nobodys_fault() -> None:
    log = MemoryLog()
    expired = Half(PLAIN, 3, "F" * 32, "billing", ORDERS)
    log.end(expired, COMMIT)
    log.deliver(expired)
    judged = Judged(log, log.facts(partitions=[HalfFacts(PLAIN, half_start=4, log_start=4, applied_to=1, low=4)]))
    assert judged.strays == ["HALF_GONE"]
    assert not any(row.findings for row in judged.verdicts)


def test_undecided_for_too_long_is_stuck() -> None:
    """Greatest age 72 h, and an hour for clocks that differ."""
    log = MemoryLog()
    old, decided, resumed, held = log.half(), log.half(), log.half(), log.half()
    log.end(decided, COMMIT)
    log.transaction(log.discard(resumed), log.op("discard", resumed), log.parked(resumed, "discarded"))
    log.end(resumed, 0, source="resume")
    log.transaction(log.parked(resumed, "pending", resumed=BORN + 10 * HOUR))
    at = log.end(held, COMMIT)
    log.transaction(log.parked(held, "held", decided=at))
    unread = [HalfFacts(PLAIN, 0, applied_to=0, low=0)]
    young = Judged(log, log.facts(partitions=unread, now=BORN + 73 * HOUR))
    assert not any(row.violations for row in young.verdicts)
    aged = Judged(log, log.facts(partitions=unread, now=BORN + 73 * HOUR + 1))
    assert {row.key[1]: row.violations for row in aged.verdicts if row.violations} == {old.offset: ("STUCK",)}


def test_held_for_hours_although_its_topic_is_there_is_a_finding() -> None:
    log = MemoryLog()
    held, waits = log.half(), log.half(topic=ABSENT)
    for half in (held, waits):
        at = log.end(half, COMMIT)
        log.transaction(log.parked(half, "held", decided=at))
    young = Judged(log, log.facts(now=BORN + 3 * HOUR))
    assert not any(row.findings for row in young.verdicts)
    aged = Judged(log, log.facts(now=BORN + 3 * HOUR + 1))
    assert {row.key[1]: row.findings for row in aged.verdicts if row.findings} == {held.offset: ("HELD_LONG",)}


def test_a_record_of_end_may_be_applied_in_part() -> None:
    """The progress names the entry: earlier ones are applied, it and later ones are not."""
    log = MemoryLog()
    first, second, third = log.half(), log.half(), log.half()
    log.decision_record("\n".join(half.entry(COMMIT) for half in (first, second, third)).encode())
    progress = log.progress(PLAIN, half=0, end=0, entry=2)
    log.transaction(log.copy(first), log.op("commit", first), progress)
    [seen] = log.checkpoints().values()
    assert (seen.applied_to, seen.applied_entry) == (0, 2)
    facts = log.facts(partitions=[HalfFacts(PLAIN, 0, applied_to=0, applied_entry=2, low=0)])
    judged = Judged(log, facts)
    assert [judged.fate(half) for half in (first, second, third)] == ["delivered", "LOST", "pending"]
    assert not any(row.violations for row in judged.verdicts)


def test_open_ones_whose_half_message_is_gone_have_expired() -> None:
    log = MemoryLog()
    pending, held, discarded, finished, resolved, there = (
        Half(PLAIN, offset, f"{offset:032X}", "billing", ORDERS) for offset in (1, 2, 3, 4, 5, 6)
    )
    log.transaction(log.parked(pending, "pending"), log.parked(held, "held"), log.parked(discarded, "discarded"))
    log.transaction(log.parked(finished, "pending"), log.op("rollback", finished))
    log.transaction(log.parked(resolved, "pending"), log.parked(resolved, None), log.parked(there, "pending"))
    judged = Judged(log, log.facts(partitions=[HalfFacts(PLAIN, half_start=6, log_start=6, applied_to=0, low=7)]))
    assert {row.key[1]: row.violations for row in judged.verdicts if row.violations} == {
        1: ("EXPIRED",),
        2: ("EXPIRED",),
    }


@pytest.mark.parametrize("field", ["id", "group", "topic", "error"])
def test_a_parked_entry_with_half_of_a_character_says_nothing(field: str) -> None:
    log = MemoryLog()
    half = Half(PLAIN, 1, "A" * 32, "billing", ORDERS)
    log.write(log.parked(half, "held", **{field: "\ud800"}))
    judged = Judged(log, log.facts(partitions=[HalfFacts(PLAIN, half_start=6, log_start=6, applied_to=0, low=7)]))
    assert judged.verdicts == []


def test_records_of_another_namespace_are_no_phantoms() -> None:
    log, other = MemoryLog(), MemoryLog()
    theirs = other.half()
    log.transaction(log.copy(theirs), log.copy(Half(PLAIN, 0, "F" * 32, "billing", ORDERS)))
    log.transaction(log.copy(Half(PASSED, 7, "F" * 32, "billing", ORDERS)))
    others = OtherNamespaces({(theirs.partition, theirs.offset, theirs.id)}, starts={PASSED: 8})
    # The last one may have been a message of theirs that retention has removed, with its END. Nothing proves it.
    found = sorted(Judged(log, log.facts(), others=others).strays)
    assert found == ["HALF_GONE_ELSEWHERE", "OTHER_NAMESPACE", "PHANTOM"]


def test_a_phantom_below_the_log_start_of_another_namespace_is_one() -> None:
    """Their END is complete: it names each of their delivered half messages by id."""
    log, other = MemoryLog(), MemoryLog()
    gone = other.half()
    other.end(gone, COMMIT)
    log.transaction(log.copy(gone), log.copy(Half(PLAIN, gone.offset, "F" * 32, "billing", ORDERS)))
    others = OtherNamespaces(ends={(gone.partition, gone.offset, gone.id)})
    assert sorted(Judged(log, log.facts(), others=others).strays) == ["HALF_GONE", "PHANTOM"]


def test_repeated_header_names_the_last_one_counts() -> None:
    log = MemoryLog()
    half = log.half()
    log.end(half, COMMIT)
    copy = log.copy(half)
    copy.headers[:0] = [("UNIQ_KEY", b"the user's"), ("TXB_HALF", None)]
    log.transaction(copy, log.op("commit", half))
    assert Judged(log, log.facts()).fate(half) == "delivered"


def test_empty_topics() -> None:
    log = MemoryLog()
    judged = Judged(log, log.facts())
    assert (judged.verdicts, judged.strays, list(judged.odd.make_entries())) == ([], [], [])


# Reach: what cannot be judged is told

FOREVER = 2**62
BOTH = (PLAIN, PASSED)


def without(log: MemoryLog, name: str, **gone: object) -> tuple[MemoryLog, Facts]:
    """The log after retention has emptied a topic, and the facts that are known then of each half partition."""
    left = MemoryLog()
    left.records = [record for record in log.records if record.topic != name]
    left.end_position = log.end_position
    written = {
        record.partition: json.loads(record.value or b"") for record in log.records if record.key in keys_of(log)
    }
    facts = log.facts(
        partitions=[
            HalfFacts(p, 0, **({"applied_to": end, "low": low} | gone))  # type: ignore[arg-type]
            for p in BOTH
            for end, low in [(written[p]["end"], written[p]["half"]) if p in written else (log.end_position[p], 0)]
        ],
        discards_cut=name == log.names.discard,
        checks_since={"billing": FOREVER if name == log.names.check("billing") else -1, "shipping": -1},
    )
    return left, facts


def keys_of(log: MemoryLog) -> set[bytes]:
    return {log.names.checkpoint_key(p) for p in BOTH}


def test_ends_are_read_as_strictly_as_by_the_worker_where_its_word_is_gone() -> None:
    log = MemoryLog()
    half = CASES["ends_that_only_the_worker_finds_malformed"].plant(log)
    judged = Judged(*without(log, log.names.discard))
    assert half is not None
    assert judged.of(half).kinds == ()


@pytest.mark.parametrize("replies", [[b"one", None], [None, None]])
def test_a_command_with_two_names_of_a_reply_is_no_command_as_for_the_worker(replies) -> None:
    ours = [*headers(TXB_V="1", PGROUP="billing", SOURCE="cancel"), *(("TXB_REPLY", one) for one in replies)]
    value = f"0,{'AB' * 16},0,,paid".encode()
    with pytest.raises(MalformedRecordError):
        parse_end(0, value, ours)
    record = KafkaRecord("end", 0, 0, 0, is_dated=True, key=None, value=value, headers=ours)
    assert [type(one) for one in client_records.end_mentions(record, exactly=True)] == [UnreadableMention]


TAKEN_AWAY = {
    "end": {"ends_since": FOREVER},
    "op": {"outcomes_since": FOREVER},
    "discard": {"discards_since": FOREVER},
    "offset": {"parked_since": FOREVER, "checkpoint_gone": True, "applied_to": None, "low": None},
    "check": {},
}
#: Reasons why a rule cannot judge a transaction then.
REASONS = {
    "end": {"END_GONE"},
    "op": {"OP_GONE"},
    "discard": {"DISCARD_GONE", "COPY_GONE"},
    "offset": {"CHECKPOINT_GONE", "PARKED_GONE"},
    "check": {"CHECKS_GONE", "CHECKS_AGED"},
}


@pytest.mark.parametrize("name", TAKEN_AWAY)
def test_what_a_topic_that_is_gone_leaves_open_is_told_and_nobody_is_accused(
    planted: tuple[dict[str, Half | None], Judged], name: str
) -> None:
    """The audit finds each planted violation, or its rule names the reason why it cannot judge this transaction."""
    log = MemoryLog()
    plant(log)
    topic = {"check": log.names.check("billing")}.get(name) or getattr(log.names, name)
    found = planted[1].broken()
    left, facts = without(log, topic, **TAKEN_AWAY[name])
    judged = Judged(left, facts)
    now, unjudged = judged.broken(), judged.unjudged
    assert unjudged, "it says nothing at all"
    for kind, halves in found.items():
        for half in halves - now.get(kind, set()):
            assert unjudged.get((kind, half)) in REASONS[name], f"{kind} of {half} is passed over without a word"
    # The reported reach of each rule equals the counted one.
    counted = Counter((kind, reason) for (kind, _), reason in unjudged.items())
    assert {name[1:]: n for name, n in judged.sums.counts.items() if name[0] == "unjudged"} == counted
    for kind, halves in now.items():
        if kind not in {"LOST", "LEAKED", "WRONG_WINNER", "DUPLICATED"}:
            assert halves <= found.get(kind, set()), f"{kind} was not planted"
        # A violation of one kind may become another one: a delivered copy is a phantom once it is known as a copy.
        # Without the parked entry, what an abandon leaves out seems to have come after it.
        first, miscounted = (planted[0][case] for case in ("both_copies_delivered", "given_up_miscounted"))
        others = {(PLAIN, first.offset + 1), (PLAIN, miscounted.offset)}  # type: ignore[union-attr]
        assert halves <= set().union(*found.values(), others), f"{kind} was not planted"


def test_an_emptied_discard_topic_hides_only_what_was_discarded() -> None:
    log = MemoryLog()
    leaked, undecided, forgotten, discarded, delivered = (log.half() for _ in range(5))
    log.end(leaked, ROLLBACK)
    log.transaction(log.copy(leaked))
    log.transaction(log.copy(undecided))
    log.end(forgotten, COMMIT)
    log.transaction(log.op("discard", discarded))
    log.end(discarded, COMMIT)
    log.end(delivered, COMMIT)
    log.deliver(delivered)
    _, facts = without(log, log.names.discard, discards_since=FOREVER)
    judged = Judged(log, facts)
    assert [judged.fate(half) for half in (leaked, undecided, forgotten)] == ["LEAKED", "LEAKED", "LOST"]
    assert (judged.fate(discarded), judged.fate(delivered)) == ("discarded", "delivered")
    assert judged.sums.unjudged_by_kind() == {
        "CHECKED_AFTER_DECISION": {"DISCARD_GONE": 1},
        "LOST": {"DISCARD_GONE": 1},
        "WRONG_WINNER": {"DISCARD_GONE": 1},
    }
    assert judged.sums.blind() == {}


class LastDiscard(AuditedCluster):
    """A cluster where retention has removed the first record of the discard topic. The next one is of `at` (ms)."""

    def __init__(self, at: int) -> None:
        self._at = at

    def first_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        return dict.fromkeys(partitions, self._at)


def test_a_recent_discard_behind_a_removed_one_exempts_nobody_who_was_born_before_it() -> None:
    """Only for the message whose own discard record was removed it is unknown which decisions came too late."""
    log, day = MemoryLog(), 24 * HOUR
    leaked, undecided, forgotten, overruled, asked, recent, removed = (log.half() for _ in range(7))
    log.end(leaked, ROLLBACK)
    log.transaction(log.copy(leaked))
    log.transaction(log.copy(undecided))
    log.end(forgotten, COMMIT)
    log.end(overruled, ROLLBACK)
    log.end(overruled, COMMIT)
    log.deliver(overruled)
    decided = log.end(asked, COMMIT)
    log.deliver(asked)
    log.write(log.check(asked, decided + 1))
    log.transaction(log.op("discard", removed))
    log.transaction(log.op("discard", recent), log.discard(recent))
    log.end(removed, COMMIT)
    late = log.end(recent, COMMIT)
    names = log.names
    topics = (names.half, names.end, names.op, names.offset)
    partitions = {name: [(name, PLAIN), (name, PASSED)] for name in topics} | {names.discard: [(names.discard, 0)]}
    keys = [key for of in partitions.values() for key in of]
    nothing = dict.fromkeys(keys, 0)
    known = {PLAIN: AuditCheckpoint(log.end_position[PLAIN], 0), PASSED: AuditCheckpoint(0, 0)}
    starts = nothing | {(names.discard, 0): 1}
    told = partition_facts(names, LastDiscard(BORN + day), partitions, starts, known, AuditCut({}), nothing, nothing)
    assert {fact.discards_since for fact in told} == {BORN + day + HOUR}
    judged = Judged(log, log.facts(partitions=told, discards_cut=True, now=BORN + 2 * day))
    assert judged.broken() == {
        "LEAKED": {(PLAIN, leaked.offset), (PLAIN, undecided.offset)},
        "LOST": {(PLAIN, forgotten.offset)},
        "WRONG_WINNER": {(PLAIN, overruled.offset)},
        "CHECKED_AFTER_DECISION": {(PLAIN, asked.offset)},
        # Its rollback is applied, and OP has no outcome for it.
        "PROGRESS_AHEAD": {(PLAIN, leaked.offset)},
    }
    assert (judged.fate(recent), judged.of(recent).case.late[0].at) == ("discarded", late)
    assert judged.fate(removed) == "discarded"
    assert set(judged.unjudged.values()) == {"DISCARD_GONE"}
    assert {half for _, half in judged.unjudged} == {(PLAIN, removed.offset)}


def test_a_copy_that_the_discard_topic_no_longer_tells_of_accuses_nobody() -> None:
    """The END names the copy, and decides the first one. Only the discard record shows which is which."""
    log = MemoryLog()
    first = log.half()
    again = log.half(UNIQ_KEY=first.id)
    log.decision_record(f"{again.offset},{first.id},8".encode(), first.partition)
    log.deliver(first, log.op("discard", again))
    _, facts = without(log, log.names.discard, discards_since=FOREVER)
    judged = Judged(log, facts)
    assert judged.fate(first) == "delivered"
    assert not any(row.violations or row.findings for row in judged.verdicts)
    assert judged.sums.unjudged_by_kind()["LEAKED"] == {"COPY_GONE": 1}


def test_a_resumed_message_is_stuck_though_the_record_of_its_discard_is_gone() -> None:
    """OFFSET says that it waits again, and OP names no other discard."""
    log = MemoryLog()
    resumed, again, silent = log.half(), log.half(), log.half()
    for half in (resumed, again, silent):
        log.transaction(log.op("discard", half))
        log.end(half, 0, source="resume")
    log.transaction(log.parked(resumed, "pending", resumed=BORN))
    log.transaction(log.op("discard", again), log.parked(again, "pending", resumed=BORN))
    _, facts = without(log, log.names.discard, discards_since=FOREVER)
    judged = Judged(log, dataclasses.replace(facts, now=BORN + 90 * HOUR))
    stuck, twice, forgotten = (judged.of(half) for half in (resumed, again, silent))
    assert (stuck.fate, stuck.pending_state, stuck.violations) == ("pending", "resumed", ("STUCK",))
    # The second discard may have come after the resume, and so may one without a parked entry.
    for unknown in (twice, forgotten):
        assert (unknown.fate, unknown.violations, unknown.reach["STUCK"]) == ("discarded", (), "DISCARD_GONE")


def test_a_resumed_message_waits_though_end_and_op_are_gone() -> None:
    """OFFSET says so, and the discard topic has the record of one discard only."""
    log = MemoryLog()
    resumed, again = log.half(), log.half()
    for half in (resumed, again, again):
        log.transaction(log.discard(half))
    log.transaction(log.parked(resumed, "pending", resumed=BORN), log.parked(again, "pending", resumed=BORN))
    gone = [HalfFacts(PLAIN, 0, applied_to=4, low=2, ends_since=FOREVER, outcomes_since=FOREVER)]
    judged = Judged(log, log.facts(partitions=gone, now=BORN + 90 * HOUR))
    stuck, twice = judged.of(resumed), judged.of(again)
    assert (stuck.fate, stuck.pending_state, stuck.violations) == ("pending", "resumed", ("STUCK",))
    assert (twice.fate, twice.violations, twice.reach["STUCK"]) == ("discarded", (), "END_GONE")


def test_a_resume_reopens_a_message_once_the_checkpoint_is_past_it() -> None:
    log = MemoryLog()
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half))
    resumed = log.end(half, 0, source="resume")
    fates = [
        Judged(log, log.facts(partitions=[HalfFacts(PLAIN, 0, applied_to=to, low=0)])).fate(half)
        for to in (resumed, resumed + 1)
    ]
    assert fates == ["discarded", "pending"]


def test_twelve_topics_with_the_same_history_lose_the_same() -> None:
    """The two oldest records that are left prove a loss, wherever their offsets in OP lie."""
    log = MemoryLog()
    topics = [f"orders.{number}" for number in range(12)]
    halves = [[log.half(topic=topic) for _ in range(4)] for topic in topics]
    for number in range(4):
        for of_topic in halves:
            log.end(of_topic[number], COMMIT)
            if number < 3:
                log.deliver(of_topic[number])
            else:
                log.transaction(log.op("commit", of_topic[number]))
    # Retention has removed the first record of each topic.
    gone = {of_topic[0].offset for of_topic in halves}
    log.records = [
        record
        for record in log.records
        if record.topic not in topics or int(dict(record.headers)["TXB_HALF"].split(b":")[1]) not in gone
    ]
    facts = log.facts(topics=[RealTopicFacts(topic, truncated=True) for topic in topics])
    judged = Judged(log, facts, truncated=[(topic, 0) for topic in topics])
    for first, second, third, lost in halves:
        assert [judged.fate(half) for half in (first, second, third, lost)] == [
            *("unverifiable", "delivered", "delivered", "LOST")
        ]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_without_decisions_and_outcomes_no_rule_of_a_visible_record_is_silent(decision: int) -> None:
    """END and OP are emptied, as retention does it."""
    log = MemoryLog()
    half = log.half()
    log.end(half, decision)
    log.transaction(log.copy(half), log.op("commit", half, ends="9:0-9:1"))
    _, facts = without(log, log.names.end, ends_since=FOREVER, outcomes_since=FOREVER)
    log.records = [record for record in log.records if record.topic not in {log.names.end, log.names.op}]
    judged = Judged(log, facts)
    assert judged.fate(half) == "unverifiable"
    silent = {"LOST", "PARTIAL", "EARLY", "OVERDUE"}
    assert {*judged.of(half).reach} == {kind for kind, _ in table.NEEDING} - silent
    assert set(judged.of(half).reach.values()) == {"END_GONE"}
    assert judged.sums.blind().keys() >= {"BEFORE_DECISION", "OVERTAKEN", "LEAKED", "WRONG_WINNER"}


def test_a_rule_that_judges_nothing_is_blind() -> None:
    log = MemoryLog()
    visible = log.half()
    log.deliver(visible)
    _, facts = without(log, "none", ends_since=FOREVER)
    judged = Judged(log, facts)
    blind = ["BEFORE_DECISION", "CHECKED_AFTER_DECISION", "LEAKED", "OVERTAKEN", "WRONG_WINNER"]
    assert list(judged.sums.blind()) == blind
    _, whole = without(log, "none")
    assert Judged(log, whole).sums.blind() == {}


def test_a_key_is_hashed_as_kafkas_java_producer_does() -> None:
    """The first values are those of Kafka's own UtilsTest (without the sign), the others are of its Python twin."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    rng = Random(5)
    others = [rng.randbytes(size) for size in range(1, 40)]
    keys = [*known, *others]
    assert {key: hash_key(key) for key in keys} == (
        {key: value & 0x7FFFFFFF for key, value in known.items()} | {key: writer.murmur2(key) for key in others}
    )
