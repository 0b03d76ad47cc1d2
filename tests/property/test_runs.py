"""Runs: half messages that are read and decided in bulk, compared with the same ones processed one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.partition_builder import POLICY, Partition, id_of
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
from txbridge.core.names import Names
from txbridge.core.plan.choice import Limits

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


class Side(Partition):
    """A partition whose worker uses runs where it can, or processes each message by itself."""

    def __init__(self, *, together: bool) -> None:
        super().__init__(POLICY)
        self.together = together
        self.waiting: list[DecisionRecord] = []

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
        self.max_entries, self.max_bytes = limits.entries, limits.bytes
        if is_due or queue.must_park:
            queue.enter_fresh(queue.fresh_until(now))
        planner = self.planner
        choice = planner.choose(self.waiting, 0, 0, may_run=self.together)
        due_round = self.due_round(now) if is_due else None
        draft = planner.plan(choice, now, due_round, may_discard=False, most_malformed=0)
        for part in draft.parts:
            if isinstance(part, Run):
                assert [copy[-1][-1][1] for copy in part.copies(0, {})] == [b"0:%d" % offset for offset in part.commits]
        found = (
            [offset for part in draft.parts for offset in part.commits],
            sorted((outcome.value, sorted(named)) for outcome, named in draft.ops()),
            [(one.end_offset, one.entry, one.reason) for one in draft.refused],
            +draft.decisions,
            sorted(entry.offset for entry in draft.checks),
            (draft.delivered, draft.bytes, draft.entries, draft.next_end, draft.next_entry),
        )
        if commit:
            self.commit(draft)
            self.waiting = [record for record in self.waiting if record.offset >= queue.next_end]
        else:
            draft.abandon()
        return found

    def known(self) -> tuple:
        """What matters between two turns, but for the open messages."""
        queue = self.queue
        offsets = range(queue.read_position)
        outcomes = {offset: queue.finish_of(offset) for offset in offsets}
        return queue.watermark, queue.read_position, outcomes, queue.open_counts()


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
                DecisionEntry(
                    which % (offset + 1),
                    id_of(which % (offset + 1) + (not is_right) * 1_000),
                    decision,
                    remark=None if which % 3 else "out of stock, 5 %",
                )
                for which, is_right, decision in entries
            ]
            value, headers = encode_end(named, group, Source.CLIENT)
            record = parse_end(end, value, headers, now)
            assert isinstance(record.entries, PlainEntries)
            assert record.entries == named
            slow.waiting.append(DecisionRecord(end, group, Source.CLIENT, named, appended=now))
            fast.waiting.append(record if is_plain else slow.waiting[-1])
            end += 1
        for side in (fast, slow):
            side.read(records)
        # A record that does not fit as a run is cut like any other. What one side holds back comes in its next turns.
        assert fast.turn(now, limits, is_due=is_due, commit=commit) == slow.turn(
            now, limits, is_due=is_due, commit=commit
        )
        assert fast.known() == slow.known()
    fast.queue.enter_fresh(fast.queue.read_position)
    assert fast.open_entries == slow.open_entries
    assert not fast.queue.fresh.bytes
