"""TurnPlanner and HalfQueue against the reference model, with aborted transactions, lost answers and take-overs."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property.reference_model import IMMUNITY, Message, Reference
from tests.property.topics import Room, Topics, Worker
from txbridge.core import dedup
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import COMMANDS, Decision, DecisionEntry, DecisionRecord, Source
from txbridge.core.half_message import HalfMessage
from txbridge.core.open_messages import SLOT_MS
from txbridge.core.plan.draft import Draft
from txbridge.core.states import TransactionState

GROUPS = ("orders", "billing", "shipping")
TOPICS = ("orders.placed", "invoices")
POLICIES = (
    # RocketMQ's settings, with fewer checks.
    CheckPolicy(transaction_check_max=2, transaction_max_age=400_000, discard_retention=300_000),
    # The park limits are so small that nearly every message is parked.
    CheckPolicy(transaction_check_max=1, transaction_max_age=200_000, discard_retention=100_000, park_after_records=2),
    CheckPolicy(transaction_check_max=2, transaction_max_age=200_000, discard_retention=100_000, park_after_bytes=250),
    # Messages become too old before their checks are used up.
    CheckPolicy(transaction_check_max=3, transaction_max_age=50_000, discard_retention=60_000, park_after=4_000),
)
DECISIONS = st.sampled_from([Decision.COMMIT, Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN])
#: Group, topic, immunity time, size and delay.
HALVES = st.tuples(
    st.sampled_from(GROUPS),
    st.sampled_from(TOPICS),
    st.sampled_from(sorted(IMMUNITY, key=str)),
    st.sampled_from([0, 100, 300]),
    st.sampled_from([None, None, None, 0, 5_000, 40_000]),
)
#: Half message of an END entry: counted back from the last one, or an offset beyond any log's end.
PICKS = st.one_of(st.integers(-3, 20), st.just(2**60))
ENTRIES = st.lists(st.tuples(PICKS, st.booleans(), st.sampled_from(Decision)), min_size=1, max_size=3)
JUMPS = st.one_of(st.sampled_from([1, 500, 1_000, 3_000, 5_999, 6_000, 30_000, 90_000]), st.integers(0, 20_000))
#: Limits of one transaction, some of them small.
ROOMS = st.builds(
    Room,
    entries=st.sampled_from([10**9, 10**9, 1, 2]),
    bytes=st.sampled_from([10**9, 10**9, 150, 350]),
    checks=st.sampled_from([1_000, 1_000, 0, 1, 2]),
    discards=st.sampled_from([1_000, 1_000, 1]),
    malformed=st.sampled_from([10**9, 10**9, 1]),
)
AMPLE = Room()
#: Effects of committed transactions, counted. A run that misses one of them proves little.
REACHED: Counter[str] = Counter()
EFFECTS = (
    "deliver",
    "rolled_back",
    "held",
    "scheduled",
    "checks",
    "discards",
    "resumed",
    "parked",
    "forgotten",
    "malformed",
    "abandoned",
)
TO_REACH = """
    NO_HALF_MESSAGE WRONG_TRANSACTION_ID WRONG_GROUP REPEAT CONTRADICTION LATE NOT_DISCARDED NOT_HELD
    delivered_when_due due_undeliverable no_such_topic cut left_out take_over_within_a_record
    MAX_CHECKS EXPIRED retried check_2 committed_after_resume committed_below_the_watermark
    remembered_below_the_watermark
    abort crash crash_after_commit take_over_with_outcomes take_over_with_parked take_over_with_resumed
"""


def id_of(offset: int) -> str:
    return f"{offset:032X}"


class HalfQueueMachine(RuleBasedStateMachine):
    """Clients, time, and a worker that may lose its transaction, Kafka's answer to it, or its life at any step."""

    @initialize(policy=st.sampled_from(POLICIES), halves=st.lists(HALVES, min_size=2, max_size=12))
    def start(self, policy: CheckPolicy, halves: list) -> None:
        self.policy = policy
        self.topics = Topics()
        self.worker = Worker(self.topics, policy)
        self.model = Reference(
            policy.transaction_check_interval, policy.transaction_check_max, policy.transaction_max_age
        )
        self.now = 1_000_000
        self.dead: set[str] = set()
        self.blocked: set[str] = set()
        self.resumes: Counter[int] = Counter()
        self.has_failed = False
        self.prepare(halves)

    @rule(halves=st.lists(HALVES, min_size=1, max_size=6))
    def prepare(self, halves: list) -> None:
        for group, topic, immunity, size, delay in halves:
            half = HalfMessage.of(
                offset=self.topics.half_end,
                transaction_id=id_of(self.topics.half_end),
                group=group,
                real_topic=topic,
                born=self.now,
                key=None,
                value=b"x" * size,
                headers=(),
                immunity=immunity,
                deliver_at=None if delay is None else self.now + delay,
            )
            self.topics.half[half.offset] = half
            self.topics.half_end += 1
            self.model.prepare(half, immunity)

    @rule(what=st.sampled_from(["malformed half", "malformed end", "marker in half", "marker in end"]))
    def a_stranger_writes(self, what: str) -> None:
        if what == "malformed half":
            self.topics.half[self.topics.half_end] = 50
            self.model.messages[self.topics.half_end] = None
        elif what == "malformed end":
            self.topics.end[self.topics.end_end] = None
        self.topics.half_end += what.endswith("half")
        self.topics.end_end += what.endswith("end")

    def write_end(self, entries: list[DecisionEntry], group: str, source: Source) -> None:
        self.topics.end[self.topics.end_end] = DecisionRecord(self.topics.end_end, group, source, entries)
        self.topics.end_end += 1

    @precondition(lambda self: any(self.model.messages.values()))
    @rule(
        decisions=st.lists(st.tuples(st.integers(0, 5), DECISIONS), min_size=1, max_size=6),
        source=st.sampled_from([Source.CLIENT, Source.CHECK, Source.OPERATOR]),
    )
    def decide(self, decisions: list, source: Source) -> None:
        """A client decides some of the last messages of its group."""
        group = next(message.group for message in reversed(self.model.messages.values()) if message is not None)
        own = [offset for offset, message in self.model.messages.items() if message and message.group == group]
        entries = [
            DecisionEntry(own[-1 - pick], id_of(own[-1 - pick]), decision)
            for pick, decision in decisions
            if pick < len(own)
        ]
        if entries:
            self.write_end(entries, group, source)

    @precondition(lambda self: self.discarded())
    @rule(pick=st.integers(0, 3), then=st.one_of(st.none(), DECISIONS))
    def resume(self, pick: int, then: Decision | None) -> None:
        """An operator resumes a discarded message, and may decide it at once."""
        discarded = self.discarded()
        offset = discarded[pick % len(discarded)]
        group = self.model.messages[offset].group
        self.write_end([DecisionEntry(offset, id_of(offset), Decision.UNKNOWN)], group, Source.RESUME)
        if then is not None:
            self.write_end([DecisionEntry(offset, id_of(offset), then)], group, Source.OPERATOR)

    @rule(pick=st.integers(0, 10))
    def abandon(self, pick: int) -> None:
        """An operator abandons a message that is committed, but not delivered."""
        held = [
            offset
            for offset, message in self.model.messages.items()
            if message is not None and message.state == "committed" and not message.is_finished
        ]
        if held:
            offset = held[pick % len(held)]
            group = self.model.messages[offset].group
            self.write_end([DecisionEntry(offset, id_of(offset), Decision.UNKNOWN)], group, Source.ABANDON)

    def discarded(self) -> list[int]:
        return [
            offset
            for offset, message in self.model.messages.items()
            if message is not None and message.state == "discarded" and not message.is_finished
        ]

    @rule(entries=ENTRIES, source=st.sampled_from(Source), group=st.sampled_from([*GROUPS, "nobody"]))
    def end_anything(self, entries: list, source: Source, group: str) -> None:
        """Write an END record that may name a missing or decided half message, a wrong id or a wrong group."""
        self.write_end(
            [
                DecisionEntry(
                    offset := max(self.topics.half_end - 1 - pick, 0) if pick < 2**60 else pick,
                    id_of(offset if right else offset + 1),
                    Decision.UNKNOWN if source in COMMANDS else decision,
                )
                for pick, right, decision in entries
            ],
            group,
            source,
        )

    @rule(jump=JUMPS)
    def time_passes(self, jump: int) -> None:
        self.now += jump

    @rule(early=st.sampled_from([0, 0, 1]))
    def time_passes_until_something_is_due(self, early: int) -> None:
        due = self.worker.queue.next_due()
        if due is not None:
            self.now = max(self.now, due - early)

    @rule(group=st.sampled_from(GROUPS))
    def a_group_dies_or_returns(self, group: str) -> None:
        self.dead ^= {group}

    @rule(topic=st.sampled_from(TOPICS))
    def a_topic_vanishes_or_appears(self, topic: str) -> None:
        self.blocked ^= {topic}

    @rule(count=st.integers(1, 10))
    def the_worker_reads_half(self, count: int) -> None:
        self.worker.read(self.worker.queue.half_position + count)

    @rule(
        ends=st.sampled_from([0, 1, 2, 1_000, 1_000, 1_000]),
        room=st.one_of(st.just(AMPLE), ROOMS),
        lag=st.sampled_from([0, 0, 7]),
        fate=st.sampled_from(["commit", "commit", "commit", "commit", "abort", "crash", "crash after commit"]),
        read_on=st.sampled_from([0, 0, 2]),
    )
    def transaction(self, ends: int, room: Room, lag: int, fate: str, read_on: int) -> None:
        self.has_failed = True
        worker, queue = self.worker, self.worker.queue
        before = worker.known(self.topics.half_end), queue.watermark, queue.ops.start, queue.malformed
        position, announced = queue.half_position, queue.next_due()
        applied = worker.waiting(ends)
        as_of = self.now if applied == worker.waiting(10**9) else None
        self.now += lag
        worker.gates.obstacles = dict.fromkeys(self.blocked, "no such topic")
        draft = worker.draft(self.now, applied, as_of, self.dead, room)
        if position == queue.half_position and (announced is None or announced > self.now):
            assert not draft.checks, "not announced by next_due"
            assert not draft.discards
            assert not draft.forgotten
            assert not draft.malformed
            assert not draft.parked
        model = copy.deepcopy(self.model)
        as_of = None if self.is_cut(draft, applied) else as_of
        self.verify(model, draft, applied, as_of, room)
        commit = fate in {"commit", "crash after commit"}
        if not draft.is_empty:
            self.note(draft, fate)
        landed = self.topics.write(draft, queue.ops.start, commit=commit)
        worker.read(queue.half_position + read_on)
        if commit:
            self.model = model
            self.resumes.update(entry.offset for entry in draft.resumed)
        if fate == "commit":
            worker.apply(draft, landed)
            assert queue.watermark >= draft.watermark
        elif fate == "abort":
            draft.abandon()
            if position == queue.half_position:
                assert before == (
                    worker.known(self.topics.half_end),
                    queue.watermark,
                    queue.ops.start,
                    queue.malformed,
                ), "an aborted transaction left a trace"
        else:
            self.worker = Worker(self.topics, self.policy)
        self.has_failed = False

    def is_cut(self, draft: Draft, applied: list[int]) -> bool:
        """Whether a draft stops before the end of the END records that it was given."""
        return bool(applied) and draft.next_end <= applied[-1]

    @rule(entries=st.sampled_from([0, 0, 1, 2]))
    def take_over(self, entries: int) -> None:
        """Another worker takes over between two transactions; it knows all that this one knew."""
        if entries:
            self.all_is_well(Room(entries=entries))
        old = self.worker
        below, watermark = old.queue.half_position, old.queue.watermark
        self.worker = Worker(self.topics, self.policy)
        queue = self.worker.queue
        assert (queue.next_end, queue.next_entry) == (old.queue.next_end, old.queue.next_entry)
        REACHED["take_over_within_a_record"] += queue.next_entry > 0
        assert self.topics.checkpoint.half <= watermark
        for entry in self.worker.open_entries:
            REACHED["take_over_with_parked"] += entry.parked
            REACHED["take_over_with_resumed"] += entry.resumed is not None
        REACHED["take_over_with_outcomes"] += any(key < 0 for key in self.worker.known(below))
        known = {key: value for key, value in self.worker.known(below).items() if key >= 0 or -1 - key >= watermark}
        assert known == old.known(below), "a take-over knows something else"
        assert {offset for offset in queue.malformed if offset < below} == old.queue.malformed

    def verify(self, model: Reference, draft: Draft, applied: list[int], as_of: int | None, room: Room) -> None:
        """Compare a draft with the reference model, and bring the model to the state after it."""
        queue = self.worker.queue
        delivered = [entry.offset for entry in draft.deliver]
        assert len(set(delivered)) == len(delivered), "P3: delivered twice in one transaction"
        held_before = {o for o, m in model.messages.items() if m and m.state == "committed" and not m.is_finished}
        retried = held_before & set(delivered)
        forgotten = {entry.offset for entry in draft.forgotten}
        assert all(model.messages[offset].state == "discarded" for offset in forgotten)

        # END: refusals, decisions, and the order of delivery.
        parked = self.topics.parked

        def is_forgotten(offset: int) -> bool:
            if offset in self.topics.set_aside:
                return True
            message = model.messages.get(offset)
            if queue.remembered(offset) is not None:
                REACHED["remembered_below_the_watermark"] += 1
                return False
            return offset < queue.watermark and (message is None or offset not in parked)

        refused, decided = [], {"committed": [], "rolled_back": [], "resumed": [], "abandoned": []}
        for end_offset in applied:
            record = self.topics.end[end_offset]
            if record is None or end_offset > draft.next_end:
                continue
            # Each entry counts once and none is left out: the range starts where the last transaction stopped and ends
            # where this one stops.
            start = queue.next_entry if end_offset == queue.next_end else 0
            stop = draft.next_entry if end_offset == draft.next_end else len(record.entries)
            record = replace(record, entries=record.entries[start:stop])
            effects = model.end(record, self.now, delivered, is_forgotten, queue.owner_of)
            for entry, what in zip(record.entries, effects, strict=True):
                if what in decided:
                    decided[what].append(entry.half_offset)
                elif what:
                    refused.append((end_offset, entry, what))
        found = [(one.end_offset, one.entry, one.reason.name) for one in draft.refused]
        assert found == refused, f"refused {found}, not {refused}"
        assert [entry.offset for entry in draft.rolled_back] == decided["rolled_back"], "P4"
        assert [entry.offset for entry in draft.resumed] == decided["resumed"], "P7"
        assert [one.entry.offset for one in draft.abandoned] == decided["abandoned"], "P2: abandoned"
        assert set(delivered) <= held_before | set(decided["committed"]), "P1: no commit decision"
        assert not any(model.is_early(offset, self.now) for offset in delivered), "P13: early"
        scheduled = [o for o in decided["committed"] if model.is_early(o, self.now)]
        assert [entry.offset for entry in draft.scheduled] == scheduled, "P13"
        in_time = [o for o in decided["committed"] if o not in scheduled]
        writable = [o for o in in_time if model.messages[o].topic not in self.blocked]
        newly = [offset for offset in delivered if offset not in retried]
        assert newly == writable, "P2, P14: all that was applied is delivered, in the order of decisions"
        assert all(model.messages[offset].topic not in self.blocked for offset in retried)
        held = [entry.offset for entry in draft.held]
        due_now = [offset for offset in held if offset in held_before]
        assert all(parked[offset].state is TransactionState.SCHEDULED for offset in due_now)
        assert all(model.messages[offset].topic in self.blocked for offset in due_now)
        assert not any(model.is_early(offset, self.now) for offset in due_now), "P13: tried early"
        assert set(held) - set(due_now) == set(in_time) - set(newly), "P2: neither delivered nor held"
        if room.entries == room.bytes == 10**9:
            waiting = held_before - set(delivered) - set(held) - set(decided["abandoned"])
            late = [offset for offset in waiting if parked[offset].state is TransactionState.SCHEDULED]
            assert all(model.is_early(offset, self.now) for offset in late), "P13: not delivered when due"
        for some in (set(newly), retried):
            size = sum(entry.size for entry in draft.deliver if entry.offset in some)
            assert size <= room.bytes or len(some) == 1
        assert draft.entries <= room.entries
        if room.bytes == room.entries == 10**9:
            assert not self.is_cut(draft, applied)
            assert not draft.left_out
        self.finish(model, retried | forgotten)

        # Discards and checks.
        discards = {entry.offset: entry.reason for entry in draft.discards}
        checks = {entry.offset: entry.checks for entry in draft.checks}
        assert len(discards) == len(draft.discards) <= room.discards * 2
        assert len(checks) == len(draft.checks) <= room.checks
        assert not discards.keys() & checks.keys(), "P7: checked and discarded at once"
        assert as_of is not None or not (checks or discards), "P6: END was not applied to its end"
        if as_of is not None:
            for offset, message in model.messages.items():
                if message is not None and offset < queue.half_position:
                    self.verify_due(model, offset, message, discards, checks, as_of, room)

        # The watermark passes only what a take-over finds in OFFSET or OP. OP names each outcome once.
        parked_after = (parked.keys() | {entry.offset for entry in draft.changed}) - set(draft.tombstones)
        open_after = {
            o for o, m in model.messages.items() if m is not None and not m.is_finished and o < queue.half_position
        }
        assert parked_after <= open_after, "parked, but finished"
        changed = {
            entry.offset
            for entries in (draft.held, draft.scheduled, draft.resumed, draft.checks, draft.discards, draft.parked)
            for entry in entries
        }
        assert {entry.offset for entry in draft.changed} == changed & open_after
        for offset, message in model.messages.items():
            if offset < draft.watermark and message is None:
                assert offset in self.topics.set_aside or offset in draft.malformed
            elif offset < draft.watermark and offset in open_after:
                assert offset in parked_after, "the watermark has passed an open message"
        assert draft.watermark >= queue.watermark
        named = Counter(offset for _, offsets in draft.ops() for offset in offsets)
        by_people = decided["abandoned"]
        assert named == Counter([*delivered, *decided["rolled_back"], *by_people, *discards, *draft.malformed])

    def verify_due(
        self,
        model: Reference,
        offset: int,
        message: Message,
        discards: dict[int, str | None],
        checks: dict[int, int],
        as_of: int,
        room: Room,
    ) -> None:
        entry = self.worker.queue.entry(offset)
        # A message that is parked before it is due is scheduled only when it is parked. A resumed one is scheduled when
        # it is resumed.
        scheduled = (
            entry is not None
            and entry.state.value == message.state
            and (entry.parked or message.due <= entry.born + self.policy.effective_park_after)
        )
        reasons = model.discard_reasons(message, as_of)
        if offset in checks:
            assert model.is_check_due(message, as_of), "P6: checked too early, too often or after its decision"
            assert checks[offset] == message.checks + 1
            assert message.group not in self.dead, "P6: nobody was there to answer"
            model.check(offset, self.now)
        elif offset in discards:
            assert discards[offset] in reasons, "P7: discarded too early"
            message.state = "discarded"
        else:
            if model.is_check_due(message, as_of) and scheduled and message.group not in self.dead:
                assert room.checks < 1_000 or room.bytes < 10**9, f"not checked: {offset} {message} {entry}"
            if "MAX_CHECKS" in reasons or ("EXPIRED" in reasons and entry is not None and entry.parked):
                assert room.discards < 1_000 or room.bytes < 10**9, "P7: not discarded"

    def note(self, draft: Draft, fate: str) -> None:
        if fate != "commit":
            REACHED[fate.replace(" ", "_")] += 1
            return
        for name in EFFECTS:
            REACHED[name] += len(getattr(draft, name))
        REACHED.update(refusal.reason.name for refusal in draft.refused)
        REACHED["no_such_topic"] += len(draft.held)
        REACHED["cut"] += draft.next_entry > 0
        REACHED["left_out"] += draft.left_out
        REACHED.update(entry.reason for entry in draft.discards)
        REACHED.update(f"check_{entry.checks}" for entry in draft.checks)
        REACHED["delivered_when_due"] += sum(entry.state is TransactionState.SCHEDULED for entry in draft.deliver)
        REACHED["due_undeliverable"] += sum(
            offset in self.topics.parked and self.topics.parked[offset].state is TransactionState.SCHEDULED
            for offset in (entry.offset for entry in draft.held)
        )
        REACHED["retried"] += sum(entry.state.value == "held" for entry in draft.deliver)
        REACHED["committed_after_resume"] += sum(entry.resumed is not None for entry in draft.deliver)
        REACHED["committed_below_the_watermark"] += sum(
            entry.offset < self.worker.queue.watermark for entry in draft.deliver
        )

    def finish(self, model: Reference, offsets: set[int]) -> None:
        for offset in offsets:
            model.messages[offset].is_finished = True

    @invariant()
    def topics_agree_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        fates = {offset: message for offset, message in self.model.messages.items() if message is not None}
        delivered = Counter(self.topics.delivered)
        finished = {o for o, m in fates.items() if m.state == "committed" and m.is_finished}
        assert delivered == Counter(finished), "P1, P2, P3: delivered exactly once if and only if committed"
        # P7: one discard, and one more for each resume.
        discards = Counter(offset for offset, _ in self.topics.discards)
        for offset, message in fates.items():
            is_discarded = message.state == "discarded"
            assert discards[offset] == self.resumes[offset] + is_discarded
        # P6: checks are numbered from 1, and from 1 again after a resume.
        by_message: dict[int, list[int]] = {}
        for offset, number in self.topics.checks:
            by_message.setdefault(offset, []).append(number)
        for offset, numbers in by_message.items():
            assert max(numbers) <= self.policy.transaction_check_max
            assert all(b == a + 1 or b == 1 for a, b in zip([0, *numbers], numbers, strict=False))
            assert numbers.count(1) <= 1 + self.resumes[offset]
        # P8: each malformed record is copied to the discard topic once.
        assert max(Counter(self.topics.set_aside).values(), default=1) == 1
        # A take-over finds every outcome from the watermark on, and every open message below it.
        checkpoint, parked = self.topics.checkpoint, self.topics.parked
        for op_offset, offset in self.topics.named_in_op():
            assert op_offset >= checkpoint.op or offset < checkpoint.half, "an outcome would be forgotten"
        assert all(
            parked[offset].state is not TransactionState.SCHEDULED or fates[offset].state == "committed"
            for offset in parked
        )
        assert all(parked[offset].state.value != "pending" or fates[offset].state == "pending" for offset in parked)
        # P9: the schedules hold few entries beyond the open messages.
        queue = self.worker.queue
        schedules = [
            queue.timers._exhausted,
            queue.timers._timers,
            queue.timers._by_age,
            *queue.timers._checks.schedules.values(),
        ]
        assert sum(map(len, schedules)) <= 1_024 * len(schedules) + 4 * len(fates)
        # The running counts equal a count of all open entries.
        counted: Counter[object] = Counter()
        for entry in self.worker.open_entries:
            is_pending = entry.state is TransactionState.PENDING
            counted[entry.group, entry.since // SLOT_MS if is_pending else entry.state] += 1
        open_counts = queue.open_counts()
        pending = {
            (group, slot): number for group, slots in open_counts.pending.items() for slot, number in slots.items()
        }
        assert {**pending, **open_counts.others} == dict(counted)

    @precondition(lambda self: self.topics.end_end > self.topics.checkpoint.end)
    @rule(limit=st.sampled_from([10**9, 150, 350]))
    def all_of_end_is_applied(self, limit: int) -> None:
        """Apply all of END without failures. This rule makes sure that each run gets far."""
        self.all_is_well(Room(bytes=limit))

    @precondition(lambda self: self.worker.queue.open_counts().by_state()[TransactionState.HELD])
    @rule(limit=st.sampled_from([150, 350]))
    def the_topics_come_back(self, limit: int) -> None:
        """All topics take records again. All held messages are due, but no transaction has room for all of them."""
        self.blocked.clear()
        self.now += 60_000
        self.all_is_well(Room(bytes=limit))

    @rule(rounds=st.integers(1, 5))
    def nobody_answers(self, rounds: int) -> None:
        """Let time pass until the next due time, several times."""
        for _ in range(rounds):
            self.time_passes_until_something_is_due(0)
            self.all_is_well(AMPLE)

    def all_is_well(self, room: Room) -> None:
        self.transaction(1_000, room, 0, fate="commit", read_on=0)

    def teardown(self) -> None:
        """End without failures and without answers: each message reaches its end, and no entry is left."""
        if not hasattr(self, "model") or self.has_failed:
            return
        self.dead.clear()
        self.blocked.clear()
        self.worker.read(self.topics.half_end)
        for _ in range(1_000):
            self.all_is_well(AMPLE)
            due = self.worker.queue.next_due()
            if due is None:
                break
            self.now = max(self.now, due)
        else:
            raise AssertionError("it does not come to an end")
        self.topics_agree_with_the_model()
        for offset, message in self.model.messages.items():
            assert message is None or message.is_finished, "P2, P7: left open"
            assert message is not None or offset in self.topics.set_aside
        assert self.topics.parked == {}
        assert self.worker.open_entries == []
        assert self.worker.queue.watermark == self.topics.half_end
        assert list(self.worker.queue.window) == []


# Hypothesis may search five minutes longer for the smallest failing example.
@pytest.mark.timeout(3_600)
def test_the_promises_hold_against_the_reference_model(few_are_remembered: None) -> None:
    run_state_machine_as_test(HalfQueueMachine)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_the_promises_hold_wherever_the_model_can_get(few_are_remembered: None) -> None:
    REACHED.clear()
    often = settings(settings.default, max_examples=4 * settings.default.max_examples)
    # Hypothesis also draws constants from all loaded modules, and these depend on the tests that run beside this one.
    # So rare effects may need another round.
    for another in range(5):
        run_state_machine_as_test(seed(another)(HalfQueueMachine), settings=often)
        if not not_reached():
            break
    assert not not_reached(), "it did not happen, so it is not tested"


@pytest.fixture
def few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember so few outcomes below the watermark that some decisions find theirs and others do not."""
    monkeypatch.setattr(dedup, "PLACES", 4)


def not_reached() -> set[str]:
    return {*EFFECTS, *TO_REACH.split()} - {name for name, times in REACHED.items() if times}
