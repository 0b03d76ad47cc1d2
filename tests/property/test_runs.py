"""Runs: half messages that are read and decided in bulk, compared with the same ones processed one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.partition_builder import POLICY, id_of
from txbridge.core.decision_record import (
    Decision,
    DecisionEntry,
    DecisionRecord,
    PlainEntries,
    Source,
    encode_end,
    parse_end,
)
from txbridge.core.fresh_halves import Run, read_plain
from txbridge.core.half_message import half_headers, parse_half
from txbridge.core.half_queue import HalfQueue
from txbridge.core.names import Names
from txbridge.core.plan import due_work
from txbridge.core.plan.choice import EndChoice, Slice
from txbridge.core.plan.draft import Draft
from txbridge.core.transaction_size import Limits

GROUPS, TOPICS = ("orders", "billing"), ("placed", "invoices")
#: Group, topic, bytes, and milliseconds since the half message before.
HALVES = st.tuples(
    st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.integers(0, 300), st.sampled_from([0, 0, 1, 4_000, 12_000])
)
#: Number of the half message, whether the entry states its id, and the decision.
ENTRIES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9).map(bool), st.sampled_from(Decision)), min_size=1)
ENDS = st.lists(st.tuples(st.sampled_from(GROUPS), ENTRIES, st.booleans()), max_size=4)
#: Half messages, END records, limits of one transaction, whether it is committed, and whether fresh ones are due before
#: it.
TURNS = st.tuples(
    st.lists(HALVES, max_size=8),
    ENDS,
    st.builds(Limits, st.sampled_from([10_000, 3, 1]), st.sampled_from([10**9, 600])),
    st.booleans(),
    st.booleans(),
)


class Side:
    """A partition whose worker uses runs where it can, or processes each message by itself."""

    def __init__(self, *, together: bool) -> None:
        self.queue = HalfQueue(POLICY)
        self.together = together
        self.waiting: list[DecisionRecord] = []
        self.next_op = 0
        self.runs = 0

    def read(self, records: Sequence[tuple]) -> None:
        self.queue.fresh.forget_entered()
        if self.together and records:
            offsets, births, keys, values, headers = map(list, zip(*records, strict=True))
            halves = read_plain(offsets[0], births, keys, values, headers, "")
            assert halves is not None
            assert self.queue.take_fresh(halves)
            return
        for record in records:
            half = parse_half(*record, Names())
            assert self.queue.note_id(half) is None
            self.queue.read_half(half)

    def turn(self, now: int, limits: Limits, *, is_due: bool, commit: bool) -> tuple:
        queue = self.queue
        if is_due or queue.must_park:
            queue.enter_fresh(queue.fresh_until(now))
        choice, parts = EndChoice(queue, limits, due=0), []
        for record in self.waiting:
            run = choice.run_of(record)
            if run is not None and choice.take_run(run):
                parts.append(run)
                continue
            queue.enter_fresh(max((o for o in record.half_offsets if o in queue.fresh), default=-1) + 1)
            part = choice.take_entries(record)
            parts.append(part)
            if part.stop < len(record.entries):
                break
        draft, order = Draft(queue, now), []
        for part in parts:
            if isinstance(part, Run):
                draft.apply_run(part)
                assert [copy[-1][-1][1] for copy in part.copies(0, {})] == [b"0:%d" % offset for offset in part.commits]
                order += part.commits
                self.runs += 1
            elif isinstance(part, Slice) and part.stop > part.start:
                before = len(draft.deliver)
                draft.apply_end(part, lambda _: None)
                order += [entry.offset for entry in draft.deliver[before:]]
        if is_due:
            due_work.send_checks(draft, now, lambda _: True, 100)
        draft.park_entries(100, grown_old=is_due)
        told = (
            order,
            sorted((outcome.value, sorted(named)) for outcome, named in draft.ops()),
            [(one.end_offset, one.entry, one.reason) for one in draft.refused],
            {source: (one.entries, one.commits, one.rollbacks) for source, one in draft.decisions.items()},
            sorted(entry.offset for entry in draft.checks),
            (draft.delivered, draft.bytes, draft.entries, draft.next_end, draft.next_entry),
        )
        if not commit:
            draft.abandon()
            return told
        for _, named in draft.ops():
            queue.ops.note_record(self.next_op, named)
            self.next_op += 2
        draft.apply(now)
        self.waiting = [record for record in self.waiting if record.offset >= queue.next_end]
        return told


def known(side: Side) -> tuple:
    """All state of a partition that matters between two turns."""
    queue = side.queue
    outcomes = {offset: queue.outcome_of(offset) or queue.remembered(offset) for offset in range(queue.read_position)}
    entries = sorted(queue.open_entries())
    return queue.watermark, queue.read_position, outcomes, entries, queue.open_counts(), queue.count_by_state()


@given(st.lists(TURNS, max_size=8))
def test_what_is_decided_in_runs_is_decided_as_if_one_by_one(turns):
    fast, slow = Side(together=True), Side(together=False)
    offset, end, now = 0, 0, 1_000_000
    for halves, ends, limits, commit, is_due in turns:
        records = []
        for group, topic, size, later in halves:
            now += later
            barrier_id = "0123456789abcdef" if size % 2 else None
            headers = half_headers(
                (), transaction_id=id_of(offset), group=group, real_topic=topic, barrier_id=barrier_id
            )
            records.append((offset, now, None, b"v" * size, headers))
            offset += 1
        for group, entries, is_plain in ends:
            named = [
                DecisionEntry(which % (offset + 1), id_of(which % (offset + 1) + (not is_right) * 1_000), decision)
                for which, is_right, decision in entries
            ]
            value, headers = encode_end(named, group, Source.CLIENT)
            record = parse_end(end, value, headers, now)
            assert isinstance(record.entries, PlainEntries)
            assert record.entries == named
            slow.waiting.append(DecisionRecord(end, group, Source.CLIENT, named, appended=now))
            fast.waiting.append(record if is_plain else slow.waiting[-1])
            end += 1
        told = []
        for side in (fast, slow):
            side.read(records)
            told.append(side.turn(now, limits, is_due=is_due, commit=commit))
        # A record that does not fit as a run is cut like any other. What one side holds back comes in its next turns.
        assert told[0] == told[1]
        assert known(fast) == known(slow)
    assert len(fast.queue.fresh) or not fast.queue.fresh.bytes
