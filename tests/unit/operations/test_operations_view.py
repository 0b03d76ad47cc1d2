"""An operation's view of a partition's records, without Kafka."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.support.partition_builder import COMMIT, ROLLBACK, UNKNOWN, Partition, end, entry, half, id_of, resume
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import offset_headers
from txbridge.core.decision_record import COMMANDS, Decision, DecisionEntry, DecisionRecord, Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic, ParkedEntries
from txbridge.core.states import Outcome, TransactionState
from txbridge.operations.model import NextStep, Selection
from txbridge.operations.view import DecisionCommand, PartitionView, foresee

KEY = b"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/3"
POLICY = CheckPolicy(
    transaction_timeout=6_000, transaction_check_interval=30_000, transaction_check_max=3, transaction_max_age=600_000
)
CHECKPOINT = json.dumps({"half": 10, "end": 20, "op": 30, "topics": {"half": "x"}, "owner": "o", "seq": 1}).encode()


def parked(offset: int, state: str = "pending", **fields: object) -> bytes:
    data = {
        "state": state,
        "id": id_of(offset),
        "group": "orders",
        "topic": "orders.placed",
        "born": 1_000,
        "size": 100,
        "checks": 0,
        "next": 7_000,
        "end": 5,
        **fields,
    }
    return json.dumps(data).encode()


def view(*, checkpoint: bool = True, half_start: int = 0, **entries: bytes) -> PartitionView:
    """A view of partition 3; the names of entries are `p<half offset>`."""
    offset_topic = OffsetTopic(Names(), 3)
    if checkpoint:
        offset_topic.take_record(KEY, CHECKPOINT, offset_headers())
    for name, value in entries.items():
        offset_topic.take_record(KEY + b"/" + name[1:].encode(), value, offset_headers())
    return PartitionView(offset_topic, POLICY, half_start=half_start, half_end=100)


def test_entries_that_are_applied_already_are_not_waiting():
    seen = view()
    seen.next_end, seen.next_entry = 20, 2
    record = DecisionRecord(
        20, "g", Source.CLIENT, [DecisionEntry(offset, id_of(offset), Decision.COMMIT) for offset in (1, 2, 3)]
    )
    later = DecisionRecord(21, "g", Source.CLIENT, record.entries)
    assert [entry.half_offset for entry in seen.rest_of(record).entries] == [3]
    assert [entry.half_offset for entry in seen.rest_of(later).entries] == [1, 2, 3]


def test_a_half_message_is_open_unless_op_names_it():
    seen = view()
    seen.take_op(Outcome.COMMIT, [9, 11])
    seen.take_op(Outcome.DISCARD, [13])
    for offset in (10, 11, 12, 13):
        seen.take_half(half(offset, group="g", topic="t"))
    assert [one.half_offset for one in seen.open_messages()] == [10, 12]
    assert seen.find_open(11) is None
    assert (seen.outcome_of(11), seen.outcome_of(13), seen.outcome_of(10)) == (Outcome.COMMIT, Outcome.DISCARD, None)
    # The view has no outcomes below the watermark: it may have been resumed and finished otherwise since.
    assert seen.outcome_of(9) is None
    message = seen.find_open(12)
    assert message is not None
    assert (message.coordinates, message.transaction_id, message.short_id) == ("3:12", id_of(12), "ABCDEF00")
    assert (message.group, message.real_topic, message.born, message.size) == ("g", "t", 1_000, 100)
    assert (message.state, message.checks, message.parked, message.gone) == (TransactionState.PENDING, 0, False, False)


def test_a_parked_entry_says_more_than_the_half_message_and_op():
    seen = view(p4=parked(4, checks=1, next=50_000), p12=parked(12, "discarded", reason="MAX_CHECKS", at=[0, 7]))
    seen.take_op(Outcome.DISCARD, [12])
    seen.take_half(half(12))
    old, discarded = seen.open_messages()
    assert (old.half_offset, old.checks, old.next_due, old.parked) == (4, 1, 50_000, True)
    assert (discarded.state, discarded.reason, discarded.discarded_at) == (
        TransactionState.DISCARDED,
        "MAX_CHECKS",
        (0, 7),
    )


def test_without_a_checkpoint_everything_in_half_is_open():
    seen = view(checkpoint=False, half_start=7)
    assert seen.watermark == 7
    seen.take_half(half(7))
    assert [one.half_offset for one in seen.open_messages()] == [7]


@pytest.mark.parametrize(
    ("immunity", "step", "due"),
    [
        (None, NextStep.CHECK, 7_000),
        ("60", NextStep.CHECK, 61_000),
        ("-1", NextStep.CHECK, 7_000),
        # Immune for longer than its greatest age: it is discarded instead.
        ("6000", NextStep.DISCARD, 601_000),
    ],
)
def test_the_first_check_of_a_message_that_is_not_parked(immunity, step, due):
    seen = view()
    seen.take_half(half(10, immunity=immunity))
    [message] = seen.open_messages()
    assert (message.next_step, message.next_due) == (step, due)


@pytest.mark.parametrize(
    ("entry_of_offset", "step", "due"),
    [
        (parked(4, checks=2, next=50_000), NextStep.CHECK, 50_000),
        (parked(4, checks=3, next=80_000), NextStep.DISCARD, 80_000),
        (parked(4, checks=3, next=700_000), NextStep.DISCARD, 601_000),
        (parked(4, checks=0, next=650_000), NextStep.DISCARD, 601_000),
        # Its age counts from the resume.
        (parked(4, checks=0, next=650_000, resumed=100_000), NextStep.CHECK, 650_000),
        (parked(4, "held", decision=8, decided=6, error="no topic"), NextStep.RETRY, None),
        (parked(4, "discarded", reason="EXPIRED", at=[0, 1], next=9_000_000), NextStep.LAPSE, 9_000_000),
    ],
)
def test_the_next_step_of_a_parked_message(entry_of_offset, step, due):
    [message] = view(p4=entry_of_offset).open_messages()
    assert (message.next_step, message.next_due) == (step, due)


def test_a_message_below_the_log_start_of_half_has_no_body():
    gone, kept = view(half_start=5, p4=parked(4), p5=parked(5)).open_messages()
    assert (gone.gone, kept.gone) == (True, False)


def test_the_first_decision_in_end_is_shown_as_stored():
    seen = view(p4=parked(4))
    seen.take_half(half(10))
    seen.take_end(end(20, entry(4, UNKNOWN), entry(10, ROLLBACK, id_of(4))))
    seen.take_end(end(21, entry(4, ROLLBACK), source=Source.OPERATOR))
    seen.take_end(end(22, entry(4, COMMIT)))
    old, young = seen.open_messages()
    assert young.stored is None, "with a forged id"
    assert old.state is TransactionState.PENDING
    assert str(old.stored) == "rollback of operator at END offset 21"


def test_a_decision_about_a_discarded_message_is_not_stored_but_a_resume_is():
    seen = view(p4=parked(4, "discarded", reason="EXPIRED", at=[0, 1]))
    seen.take_end(end(20, entry(4, COMMIT)))
    [message] = seen.open_messages()
    assert message.stored is None
    seen.take_end(resume(21, 4))
    [message] = seen.open_messages()
    assert str(message.stored) == "resume at END offset 21"


@pytest.mark.parametrize(
    ("selection", "offsets"),
    [
        (Selection(), [4, 5]),
        (Selection(states=frozenset({TransactionState.DISCARDED})), [6]),
        (Selection(group="billing"), [5]),
        (Selection(topic="orders.placed"), [4]),
        (Selection(partition=3), [4, 5]),
        (Selection(partition=2), []),
        (Selection(min_age=9_000), [4, 5]),
        (Selection(min_age=9_001), []),
    ],
)
def test_a_selection_admits(selection, offsets):
    seen = view(
        p4=parked(4),
        p5=parked(5, "held", group="billing", topic="bills", decision=8, decided=6, error="x"),
        p6=parked(6, "discarded", reason="EXPIRED", at=[0, 1]),
    )
    assert [one.half_offset for one in seen.open_messages() if selection.includes_message(one, 10_000)] == offsets


@pytest.mark.parametrize("state", ["pending", "held", "discarded"])
def test_what_is_foreseen_is_what_the_worker_does(state):
    """Random commands about one message, which the worker's own core gets as well."""
    fields = {"held": {"decision": 8, "decided": 6, "error": "x"}, "discarded": {"reason": "MAX_CHECKS", "at": [0, 1]}}
    written = parked(0, state, next=10**12, **fields.get(state, {}))
    random = Random(state)
    seen_states = set()
    for _ in range(300):
        commands = [
            DecisionCommand(
                offset,
                random.choice(["orders", "orders", "orders", "others"]),
                random.choice(list(Source)),
                entry(0, random.choice([COMMIT, ROLLBACK, UNKNOWN]), random.choice([None, None, None, id_of(1)])),
            )
            for offset in range(random.randrange(6))
        ]
        # A resume or an abandon with a decision is no valid record, and a question is no command about a message.
        commands = [
            one
            for one in commands
            if one.source is not Source.FIND and (one.source not in COMMANDS or one.entry.decision is Decision.UNKNOWN)
        ]
        partition = Partition(watermark=1)
        partition.queue.restore_parked(ParkedEntries([HalfEntry.decode(0, written)]))
        draft = partition.step(
            1_001, *(end(one.end_offset, one.entry, group=one.group, source=one.source) for one in commands)
        )
        open_entry = partition.queue.entry(0)
        if open_entry is not None:
            state_now = open_entry.state
        else:
            gone = TransactionState.ABANDONED if draft.abandoned else TransactionState.ROLLED_BACK
            state_now = TransactionState.COMMITTED if draft.deliver else gone
        [message] = view(p0=written).open_messages()
        foreseen = foresee(message, commands)
        assert (foreseen[-1].after if foreseen else message.state) is state_now
        # For "unknown", which changes nothing, the worker does not compare the id of a finished message.
        refused = {one.end_offset: one.reason for one in draft.refused if one.entry.decision is not Decision.UNKNOWN}
        assert refused == {
            one.command.end_offset: one.refused
            for one in foreseen
            if one.refused is not None and one.command.entry.decision is not Decision.UNKNOWN
        }
        seen_states.add(state_now)
    assert len(seen_states) == {"pending": 3, "held": 2, "discarded": 4}[state]
