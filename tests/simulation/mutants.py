"""Defects planted in the worker, one at a time. The simulator has to find each within a few hundred seeds.

`python -m tests.simulation.mutants NAME [SEEDS [FIRST]]` prints the first violation and exits 1. Else it exits 0.
Each defect has a process of its own, because it changes the worker's code in that process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import nan
from types import MappingProxyType
from typing import Any

from tests.simulator import exhaustive, faults, simulation
from tests.simulator.__main__ import report
from tests.simulator.load import choose_load
from tests.simulator.runner import run_chunk
from tests.simulator.simulation import Simulation
from txbridge.client.barrier import Barrier
from txbridge.core import half_message, names, parked_table, states
from txbridge.core.checkpoint import OpPositions
from txbridge.core.decision_record import Decision, PlainEntries, Source
from txbridge.core.dedup import DeduplicationWindow
from txbridge.core.fresh_halves import FreshHalves, Run
from txbridge.core.half_message import Copy
from txbridge.core.half_queue import HalfQueue
from txbridge.core.headers import MalformedRecordError
from txbridge.core.offset_topic import ParkedEntries
from txbridge.core.parked_table import ParkedTable
from txbridge.core.plan import choice, draft
from txbridge.core.plan.choice import EndChoice, KnownSteps, Limits, OneByOne, TransactionSize
from txbridge.core.plan.draft import Draft
from txbridge.core.states import TransactionState
from txbridge.core.timers import Timers
from txbridge.kafka import group_membership, topic_lookup
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.broker_clock import BrokerClock
from txbridge.kafka.errors import AbortedError, IndefiniteError
from txbridge.kafka.fenced_producer import EndTxnWatch
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.kafka.proven_end import LATEST, EachBroker
from txbridge.worker.gates.group_liveness import GroupLiveness, _Group
from txbridge.worker.gates.lanes import TopicLanes
from txbridge.worker.ingest import half_log
from txbridge.worker.ingest.decision_log import DecisionInbox
from txbridge.worker.partitions import PartitionOwner
from txbridge.worker.takeover import restore
from txbridge.worker.takeover.restore import StateReader
from txbridge.worker.transaction.writer import TransactionalWriter, TransactionRecords
from txbridge.worker.turn import check_round
from txbridge.worker.turn.check_round import CheckRound
from txbridge.worker.turn.committer import Committer

#: Faults that strike in every run, besides those that the seed chooses. Some defects show only when they meet such a
#: fault.
MORE_FAULTS: dict[str, float] = {}
#: State that a lying reply names instead.
_SAID = {TransactionState.COMMITTED: TransactionState.ABANDONED}
NO_FAULTS: Mapping[str, float] = MappingProxyType({})


#: Functions that plant a defect, by its name.
MUTANTS: dict[str, Callable[[], None]] = {}


def planted(plant: Callable[[], None]) -> Callable[[], None]:
    """Add a defect that takes more than one replacement."""
    MUTANTS[plant.__name__] = plant
    return plant


def put(owner: object, name: str, other: object, faults: Mapping[str, float] = NO_FAULTS) -> Callable[[], None]:
    """A defect: the owner's attribute is another one, in runs that have these faults, too."""
    return wrap(owner, name, lambda _: other, faults)


def wrap(
    owner: object, name: str, other_of: Callable[[Any], object], faults: Mapping[str, float] = NO_FAULTS
) -> Callable[[], None]:
    """The same, with an attribute that is made of the right one."""

    def plant() -> None:
        setattr(owner, name, other_of(getattr(owner, name)))
        MORE_FAULTS.update(faults)

    return plant


@planted
def fence_after_reading() -> None:
    """The take-over reads first and takes the fence with its first transaction. It misses what was written in between.

    It does not look where its first record lands either, because that would show the loss. Only former leaders test
    that look, so the run has none.
    """
    offset_topic_ends_where_somebody_says()
    del faults.CHANCES["former leader"]
    fence, write = TransactionalWriter.take_fence, TransactionalWriter.write_transaction
    seen: set[TransactionalWriter] = set()

    def late_fence(self):
        if self in seen:
            fence(self)
        seen.add(self)

    def write_with_fence(self, contents, receipt):
        if self._producer is None:
            fence(self)
        write(self, contents, receipt)

    TransactionalWriter.take_fence = late_fence
    TransactionalWriter.must_fence = False
    TransactionalWriter.write_transaction = write_with_fence


@planted
def believe_an_indefinite_commit() -> None:
    """A commit without an answer counts as done."""
    write = TransactionalWriter.write_transaction

    def believing(self, contents, receipt):
        try:
            write(self, contents, receipt)
        except IndefiniteError:
            receipt.checkpoint_offset = max(receipt.checkpoint_offset, 0)

    TransactionalWriter.write_transaction = believing


@planted
def believe_an_abort() -> None:
    """A draft whose Kafka transaction was aborted is applied nevertheless, and the owner goes on without a new fence.

    Behind one it would notice that OFFSET lacks the checkpoint.
    """
    write = TransactionalWriter.write_transaction

    def believing(self, contents, receipt):
        producer = self._producer
        with suppress(AbortedError):
            write(self, contents, receipt)
        self._producer = producer

    TransactionalWriter.write_transaction = believing


@planted
def ignore_trouble() -> None:
    """A broken connection during a commit or abort is ignored: the producer goes on with its epoch.

    More connections break than in a usual run. Few resent requests come late enough to meet a later transaction, and
    early enough to meet it while it is open.
    """
    faults.CHANCES["EndTxn resent"] = 0.5
    EndTxnWatch.trouble = property(lambda _: None, lambda *_: None)
    EndTxnWatch.trouble_of_commit = lambda _: None


@planted
def end_out_of_order() -> None:
    """Every event that Faust offers is accepted."""

    def offer(self, event):
        with self._changed:
            self._last_offered = event.offset
            if self._level:
                self._events.append(event)
                self._expected = event.offset + 1
                self._changed.notify()

    DecisionInbox.offer_event = offer


@planted
def last_decision_wins() -> None:
    """Of several decisions in one record the last one counts."""
    apply_end = Draft.apply_end

    def reversed_entries(self, part, obstacle):
        record = part.record
        if (part.start, part.stop) == (0, len(record.entries)):
            part = part._replace(record=replace(record, entries=list(reversed(record.entries))))
        apply_end(self, part, obstacle)

    Draft.apply_end = reversed_entries


@planted
def checkpoint_not_in_the_transaction() -> None:
    """The checkpoint lags one transaction behind."""
    checkpoint = Committer._next_checkpoint

    def stale(self, draft):
        last = self.checkpoint
        return replace(checkpoint(self, draft), half=last.half, end=last.end, entry=last.entry)

    Committer._next_checkpoint = stale


@planted
def held_at_the_limit() -> None:
    """A message without room in the transaction is held. Later ones are delivered, so a small one overtakes it."""
    init, apply_end = EndChoice.__init__, Draft.apply_end

    def roomy(self, queue, limits, room=None, **others):
        queue.limits = limits
        init(self, queue, Limits(), room, **others)

    def holding(self, part, obstacle):
        def full(entry):
            has_room = not self.deliver or self.bytes + entry.size <= self.queue.limits.bytes
            return obstacle(entry) if has_room else "this Kafka transaction is full"

        apply_end(self, part, full)

    EndChoice.__init__, Draft.apply_end = roomy, holding
    # On a slow link no such transaction would succeed. That would be another failure than the one planted here.
    simulation.choose_load = lambda seed: replace(choose_load(seed), link=sys.maxsize)


@planted
def a_new_answer_makes_an_old_one_fresh() -> None:
    """A defect that the simulator found in GroupLiveness: a new answer makes an old one count as fresh."""

    def mark_arrived(self, _):
        self.arrived = self.outside.monotonic()
        self.believed_until = self.arrived + 2.0

    def is_alive(self, name):
        group = self._groups.get(name)
        return group is not None and group.alive and group.believed_until > self._outside.monotonic()

    _Group.mark_arrived = mark_arrived
    GroupLiveness.is_alive = is_alive


@planted
def believe_the_own_clock() -> None:
    """Due times are compared with the clock of the worker's machine."""
    BrokerClock.now = BrokerClock.due = lambda self: self._outside.now()


@planted
def offset_topic_ends_where_somebody_says() -> None:
    """A take-over does not look where its first record lands."""
    produce = TransactionRecords.produce_all
    TransactionRecords.produce_all = lambda self, contents: produce(self, replace(contents, offset_topic_end=None))


@planted
def what_is_pending_can_be_abandoned() -> None:
    """A pending message can be abandoned."""
    states.TRANSITIONS[TransactionState.PENDING, states.Event.ABANDON] = states.Transition(TransactionState.ABANDONED)


@planted
def what_is_abandoned_is_not_told() -> None:
    """An abandoned message is not copied to the discard topic."""
    discard = TransactionRecords._produce_discards

    def without(self, contents):
        abandoned, contents.draft.abandoned = contents.draft.abandoned, []
        discard(self, contents)
        contents.draft.abandoned = abandoned

    TransactionRecords._produce_discards = without


@planted
def a_delivered_id_still_decides() -> None:
    """Messages that are delivered first carry the id that decides about the others."""
    half_message.HalfMessage.delivered_id = half_message.HalfMessage.transaction_id


@planted
def copies_are_messages() -> None:
    """A half message that its producer has sent twice counts as two messages."""
    HalfQueue.note_id = lambda _self, _half: None
    DeduplicationWindow.note_all = _copies_are_not_seen


@planted
def a_run_believes_any_id() -> None:
    """A run decides the messages that it names, even with a wrong transaction id."""
    run_of = FreshHalves.run_of

    def believing(self, record):
        entries = record.entries
        if isinstance(entries, PlainEntries) and all(offset in self for offset in entries.offsets):
            known = [self.ids[offset - self.start] for offset in entries.offsets]
            record = replace(record, entries=PlainEntries(entries.offsets, known, entries.decisions, entries.remarks))
        return run_of(self, record)

    FreshHalves.run_of = believing


@planted
def runs_come_last() -> None:
    """A Kafka transaction delivers runs after all single decisions, whatever the order of END."""
    produce = TransactionRecords.produce_all

    def last(self, contents):
        draft = contents.draft
        draft.parts.sort(key=lambda part: isinstance(part, Run))
        produce(self, contents)

    TransactionRecords.produce_all = last


@planted
def several_in_two_transactions() -> None:
    """Of several messages those for other topics than the first wait for the next Kafka transaction."""
    each, produce, waiting = choice.delivered_copies, TransactionRecords.produce_all, list[Copy]()

    def first_topic(half, partition, due=None):
        first, *others = each(half, partition, due)
        yield first
        for one in others:
            if one[1] == first[1]:
                yield one
            else:
                waiting.append(one)

    def others_first(self, contents):
        before = waiting.copy()
        waiting.clear()
        for one in before:
            self._records.deliver(*one)
        produce(self, contents)

    choice.delivered_copies = first_topic
    TransactionRecords.produce_all = others_first


@planted
def frames_are_read_as_far_as_they_go() -> None:
    """Frames that are cut off count as the messages that can still be read."""
    parse = half_message.parse_frames

    def lenient(value, count):
        for fewer in range(count, 0, -1):
            for end in range(len(value or b""), 0, -1):
                with suppress(MalformedRecordError):
                    return parse(value[:end], fewer)
        return parse(value, count)

    half_message.parse_frames = lenient


@planted
def a_check_answers_for_any_database() -> None:
    """A check that finds no row rolls the message back, although its sender has another database."""
    MORE_FAULTS["two stores under one group"] = 1.0
    answer = Barrier.answer

    def answer_for_any(self, message, state, barrier_id):
        object.__setattr__(message, "barrier_id", None)
        return answer(self, message, state, barrier_id)

    Barrier.answer = answer_for_any


def _end_of_one(brokers: EachBroker, topic: str, partition: int) -> int | None:
    for node, view in brokers.views_of(topic, partition):
        if view.leader == node:
            return (brokers.offsets_of(node, topic, [partition], LATEST) or {}).get(partition)
    return None


def _end_uncommitted(*arguments: Any, committed: bool, follows: bool = False, **keywords: Any) -> PartitionReader:
    return PartitionReader(*arguments, committed=committed and not follows, follows=follows, **keywords)


def _all_of_it(due_part, self, entry, due):
    del due
    return due_part(self, entry, 10**15)


def _without_the_last(due_part, self, entry, due):
    part = due_part(self, entry, due)
    if part.stop - part.first < 2:
        return part
    return part._replace(stop=part.stop - 1, next_time=part.next_time or due + 1_000)


def _with_all_topics(due_part, self, entry, due):
    part = due_part(self, entry, due)
    return part._replace(entry=part.entry._replace(real_topic=entry.real_topic))


def _without_its_time(state_of, row):
    return state_of(row if row.state is TransactionState.SCHEDULED else row._replace(deliver_at=None))


def _copies_are_not_seen(_self: object, _start: object, _ids: object, _births: object) -> bool:
    return True


def _taken_for_a_commit(event_of, which, decision, source):
    """The event of a decision, where one of the decisions of clients counts as a commit."""
    is_taken = decision is which and source in (Source.CLIENT, Source.CHECK)
    return event_of(Decision.COMMIT if is_taken else decision, source)


def _park_nothing(self, _limit, *, grown_old=True):
    del grown_old
    self.watermark = self.queue.read_position


def _without_the_header(parse, offset, born, key, value, headers, topic_names):
    known = [header for header in headers or () if header[0] != "TXB_MESSAGES"]
    return parse(offset, born, key, value, known, topic_names)


MUTANTS |= {
    # A commit without an answer counts as not done. The fence is taken, but no topic is read.
    "disbelieve_an_indefinite_commit": put(
        Committer, "_was_committed", lambda self, _: self._state.writer.take_fence()
    ),
    # The first message of each part of a plan is named in OP, and not delivered.
    "a_message_is_named_and_not_delivered": wrap(OneByOne, "copies", lambda was: lambda *of: iter([*was(*of)][1:])),
    # A client's unknown, or its rollback, is taken for a commit.
    "unknown_is_a_commit": wrap(draft, "event_of", lambda was: partial(_taken_for_a_commit, was, Decision.UNKNOWN)),
    "a_rollback_is_a_commit": wrap(draft, "event_of", lambda was: partial(_taken_for_a_commit, was, Decision.ROLLBACK)),
    # What a topic takes is believed for a minute.
    "believe_a_topic": put(topic_lookup, "BELIEVED_S", 60.0, {"no room for a marker": 1.0}),
    # A plan asks what topics take, and a transaction does not ask about OP, OFFSET and the discard topic.
    "trust_our_own_topics": put(Committer, "_require_room", lambda *_: None, {"no room for a marker": 1.0}),
    # The checkpoint names the next END record, but not the next entry in it.
    "checkpoint_without_the_entry": wrap(
        Committer, "_next_checkpoint", lambda was: lambda self, draft: replace(was(self, draft), entry=0)
    ),
    # A take-over goes on with the END record of the checkpoint, but from its first entry.
    "take_over_from_the_beginning_of_the_record": put(
        restore, "HalfQueue", lambda policy, next_entry, **start: HalfQueue(policy, next_entry=0 * next_entry, **start)
    ),
    # A Kafka transaction that timed out does not become smaller.
    "what_times_out_is_tried_again_as_it_was": put(
        TransactionSize, "timed_out", lambda self, entries, size, *, in_part: None
    ),
    # A check is sent as soon as it is due, even if END has entries that were not applied.
    "check_before_the_end_is_applied": put(
        CheckRound, "as_of", lambda self, _: None if self._due is None else self._due[0]
    ),
    # A group without a live member is checked.
    "check_the_dead": put(GroupLiveness, "is_alive", lambda _self, _name: True),
    # The client that asks about groups is replaced when it does not answer, but kept when each answer is an error.
    "keep_a_client_that_fails": put(group_membership, "ABOUT_THE_GROUP", frozenset(range(-200, 200))),
    # A question about a group is waited for although no answer comes.
    "keep_a_client_that_is_silent": put(group_membership, "_ABANDON_AFTER_S", float("inf")),
    # Requests about topics go to the former controller, whichever broker is the controller now.
    "keep_a_client_whose_controller_is_gone": put(KafkaCluster, "_give_up", lambda *_: None),
    # The interval after a check counts from before its Kafka transaction began, however long that one takes.
    "an_interval_counts_from_the_drafting": put(BrokerClock, "now_at_latest", lambda _: 0),
    # The interval counts from the last checkpoint's time when its report arrives, however late that is.
    "an_interval_counts_from_the_report": put(
        BrokerClock, "now_at_latest", BrokerClock.now, {"Produce answered late": 0.3}
    ),
    # The discard does not wait for the interval after the last check.
    "discard_without_waiting": put(
        Timers, "take_exhausted", lambda self, now, limit: self._take_from(self._exhausted, now + 1_000_000, limit)
    ),
    # The low watermark passes messages that are neither finished nor parked.
    "watermark_passes_the_undecided": put(Draft, "park_entries", _park_nothing),
    # A take-over reads only the newest records of OP.
    "op_replayed_from_its_end": put(OpPositions, "start", property(lambda self: self.end)),
    # A take-over reads OFFSET and OP with records of aborted transactions.
    "dirty_reads_at_take_over": put(
        restore,
        "PartitionReader",
        lambda *of, committed, **more: PartitionReader(*of, committed=committed and False, **more),
    ),
    # Decisions of aborted or open Kafka transactions are applied.
    "end_read_uncommitted": put(restore, "PartitionReader", _end_uncommitted),
    # A take-over does not read the parked entries.
    "parked_entries_forgotten": put(HalfQueue, "restore_parked", lambda _self, _parked: None),
    # A former defect of parked messages: a check that its topic refuses is offered again at once, endlessly.
    "a_refused_check_has_no_back_off": put(TopicLanes, "obstacle_of_check", lambda *_: None),
    # One broker that takes itself for the leader decides that HALF does not hold an offset.
    "absence_by_the_word_of_one_broker": put(half_log, "proven_end", _end_of_one),
    # Messages are discarded once END is applied up to the end that one self-declared leader knows.
    "discard_by_the_word_of_one_broker": put(check_round, "proven_end", _end_of_one, {"leader cut off": 1.0}),
    # A take-over reads OP up to the end that a former leader knows. It does not see that OFFSET has lost its tail.
    "a_take_over_by_the_word_of_one_broker": put(restore, "proven_end", _end_of_one, {"OFFSET lost its tail": 1.0}),
    # A take-over ignores that OP names a later Kafka transaction than OFFSET's checkpoint.
    "go_on_from_an_older_checkpoint": put(restore._TakeOver, "_refuse_older_checkpoint", lambda *_: None),
    # An OFFSET without a checkpoint counts as new, whatever OP holds.
    "go_on_without_a_checkpoint": put(restore._TakeOver, "_refuse_lost_checkpoint", lambda *_: None),
    # An owner does not look where its records land. Behind a lost tail they look complete, and are not.
    "an_owner_does_not_look_where_its_records_land": put(TransactionRecords, "_lost_tail", lambda *_: None),
    # A transaction that OFFSET does not show counts as not committed, whatever OP holds.
    "an_outcome_by_the_word_of_offset_alone": wrap(
        StateReader,
        "last_op",
        # Neither above nor below what is known.
        lambda was: lambda *arguments: was(*arguments) * nan,
        {"OFFSET lost its tail": 1.0, "EndTxn not answered": 0.5},
    ),
    # After an abort an owner does not look whether OP still has its last record.
    "what_was_aborted_hides_a_lost_tail": wrap(
        StateReader,
        "last_op",
        lambda was: lambda *arguments: found if (found := was(*arguments)) >= 0 else nan,
        {"OP lost its tail": 1.0},
    ),
    # A take-over does not count the records of OP.
    "op_ends_where_somebody_says": wrap(
        Committer, "_next_checkpoint", lambda was: lambda self, draft: replace(was(self, draft), ops=0)
    ),
    # An END that names a copy counts only while the copy is recognised, not as long as the first message is open.
    "a_copy_is_known_as_long_as_its_time": put(
        HalfQueue, "_is_open", lambda *_: False, {"half message sent twice": 0.3}
    ),
    # A take-over reads from the oldest recognised message. The first message of a copy may be older and still open.
    "a_take_over_knows_copies_of_the_last_messages": put(
        DeduplicationWindow,
        "start",
        property(lambda self: self._tables[0].start if self._tables else None),
        {"half message sent twice": 0.3},
    ),
    # A copy among half messages that are read in bulk counts as a message.
    "fresh_copies_are_messages": put(DeduplicationWindow, "note_all", _copies_are_not_seen),
    # A run decides again what an earlier END record of the same Kafka transaction has decided.
    "a_run_may_be_decided_twice": put(
        EndChoice, "run_of", lambda self, record: None if self._queue.next_entry else self._queue.fresh.run_of(record)
    ),
    # A fresh half message without a decision never becomes due.
    "what_is_fresh_is_never_due": put(HalfQueue, "fresh_until", lambda self, _now: self.fresh.first),
    # What was born or put off by a clock that was ahead waits until the right clock has caught up.
    "a_clock_that_was_ahead_puts_off": put(HalfQueue, "note_time", lambda self, _now: None),
    # A take-over reads nothing below the watermark, not even ids.
    "copies_across_a_take_over_are_messages": put(HalfQueue, "recent_start", HalfQueue.watermark),
    # Of several messages the last is delivered first.
    "several_change_places": wrap(choice, "delivered_copies", lambda was: lambda *of: reversed([*was(*of)])),
    # OP names held messages as if END had just decided them.
    "held_ones_are_named_as_in_turn": wrap(
        Draft, "ends_of", lambda was: lambda self, outcome, _: was(self, outcome, ())
    ),
    # One message of several that its topic refuses is left out, and the others are delivered.
    "several_without_what_is_refused": wrap(
        choice,
        "delivered_copies",
        lambda was: lambda *of: (one for one in was(*of) if b"poison" not in (one[2] or b"")),
    ),
    # A worker that does not know the header delivers the frames as one message.
    "frames_are_a_message": wrap(half_message, "_parse_by_name", lambda was: partial(_without_the_header, was)),
    # The delivery time of a message is ignored.
    "what_is_delayed_is_not": wrap(
        HalfQueue, "_entry_of", lambda was: lambda self, half: was(self, half)._replace(deliver_at=None)
    ),
    # A message that the watermark passed undecided is delivered as soon as it is committed, before its time.
    "a_pending_row_has_no_time": wrap(parked_table, "_state_of", lambda was: partial(_without_its_time, was)),
    # A new owner reads the parked entries of scheduled messages, but does not schedule them.
    "a_take_over_forgets_what_is_scheduled": put(ParkedTable, "iter_deliveries", lambda _self: iter(())),
    # A commit before the delivery time is kept in memory only.
    "what_is_scheduled_is_not_parked": wrap(
        Draft,
        "changed",
        lambda was: property(
            lambda self: [entry for entry in was.fget(self) if entry.state is not TransactionState.SCHEDULED]
        ),
    ),
    # The first step of a transaction delivers all of its messages, whatever their times.
    "all_steps_come_with_the_first": wrap(KnownSteps, "due_part", lambda was: lambda *of: _all_of_it(was, *of)),
    # Of several messages with the same time the last one comes a second later.
    "a_step_is_divided": wrap(KnownSteps, "due_part", lambda was: lambda *of: _without_the_last(was, *of)),
    # A topic that takes nothing holds what is due, although only later messages need it.
    "a_later_topic_holds_what_is_due": wrap(KnownSteps, "due_part", lambda was: lambda *of: _with_all_topics(was, *of)),
    # OP names a transaction as finished when its first step is delivered.
    "op_names_the_first_step": put(OneByOne, "commits", property(lambda self: [one.offset for one in self.entries])),
    # A new owner does not know which messages of a transaction were delivered.
    "a_take_over_begins_with_the_first_step": wrap(
        ParkedEntries,
        "take_entry",
        lambda was: (
            lambda self, offset, value, next_check=0: was(
                self, offset, value and re.sub(rb'"delivered":\d+', b'"delivered":0', value), next_check
            )
        ),
    ),
    # The index forgets the number of delivered messages when the watermark passes the half message.
    "a_row_knows_no_steps": wrap(parked_table, "_kind_of", lambda was: lambda row: (*was(row)[:3], None)),
    # A step that cannot be delivered begins anew with the first one.
    "a_held_step_begins_anew": wrap(
        Draft,
        "hold_entry",
        lambda was: (
            lambda self, entry, why, decided: was(self, entry._replace(delivered=entry.delivered and 0), why, decided)
        ),
    ),
    # The copy of an abandoned transaction does not say how much of it was delivered.
    "an_abandoned_one_does_not_say_what_came": put(names, "DELIVERED", "TXB_IGNORED"),
    # A cancellation that comes too late is told that it has come in time.
    "a_late_cancel_is_told_in_time": wrap(
        draft, "Reply", lambda was: lambda name, state=None, *of: was(name, _SAID.get(state, state), *of)
    ),
    # An id is looked for among the last half messages alone, and not among those that wait for their time.
    "a_cancel_finds_nothing_old": put(HalfQueue, "find_id", lambda self, name: self._finished_ids.find_id(name)),
    # Another group learns what has become of a finished transaction.
    "a_stranger_learns_what_is_finished": wrap(
        Draft,
        "_state_of",
        lambda was: lambda self, known, group: was(self, known, known.finished.group if known.finished else group),
    ),
    # Messages that are due within the next second are delivered already.
    "a_schedule_is_early": wrap(
        Timers, "take_timers_due", lambda was: lambda self, now, limit: was(self, now + 1_000, limit)
    ),
    # A check that finds no row rolls the message back, however young it is. Its sender may wait for a connection.
    "a_check_without_a_row_rolls_back_at_once": wrap(
        Barrier, "__init__", lambda was: lambda self, _patience: was(self, 0), {"sender waits before its row": 1.0}
    ),
}


def a_defect_that_does_not_fit() -> None:
    """A replacement with other arguments than the worker gives. The run must refuse it instead of finding it."""
    Draft.park_entries = lambda _self, _limit: None


#: Errors of a planted defect that no longer fits the worker's code. They break no promise and test nothing.
_DOES_NOT_FIT = (TypeError, AttributeError, NameError)


def _refuse_those_that_do_not_fit() -> None:
    """Exit with code 2 and a line of text when the worker meets such an error, in each kind of search."""
    error = PartitionOwner._explain_failure

    def explain(self, raised):
        if isinstance(raised, _DOES_NOT_FIT):
            print(f"the defect does not fit the worker's code: {raised!r}", flush=True)
            # This code runs in an actor's thread, where an exception would not end the process.
            os._exit(2)
        return error(self, raised)

    PartitionOwner._explain_failure = explain


def main(name: str, how: str = "400", first: str = "1") -> int:
    """Plant a defect and search for it: in seeds, in all schedules of the small scope, or as the command line does."""
    _refuse_those_that_do_not_fit()
    if name == "--silent-end-txn":
        # The only defect outside the worker: librdkafka sends EndTxn again and does not report it.
        MORE_FAULTS["EndTxn resent silently"] = 0.3
    else:
        (a_defect_that_does_not_fit if name == "--unfit" else MUTANTS[name])()
    if how == "--exhaustive":
        return exhaustive.main()
    if how == "--cli":
        return report(run_chunk(1, 50, 200), 200)
    for seed in range(int(first), int(first) + int(how)):
        violation = Simulation(seed, more_faults=MORE_FAULTS).run().violation
        if violation is not None:
            print(f"{name}: seed {seed}: {violation}")
            return 1
    print(f"{name}: not found in {how} seeds from {first} on")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
