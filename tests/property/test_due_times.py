"""Due times of a partition against a naive look at every open message, when append times jump back and ahead.

A turn is what the worker's commit loop does. After a turn with room for everything, nothing may be left that is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.support.partition_builder import Partition, end, entry, id_of
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.decision_record import Decision
from txbridge.core.fresh_halves import read_plain
from txbridge.core.half_message import half_headers, parse_half
from txbridge.core.names import Names
from txbridge.core.plan.draft import Draft

#: With the third one, messages are parked before their first check.
POLICIES = (
    CheckPolicy(transaction_check_max=2, transaction_max_age=400_000),
    CheckPolicy(transaction_check_max=2, transaction_max_age=120_000, park_after=90_000),
    CheckPolicy(transaction_timeout=60_000, transaction_check_max=2, park_after=10_000),
)
#: Clocks of brokers that agree differ by less than this (ms), so a message may be this late.
LATE = 5_000
#: Immunity (s), delay of the delivery (ms), and the time since the message before, by a clock that jumps (ms).
HALVES = st.lists(
    st.tuples(
        st.sampled_from([None, None, None, None, 0, 20, 100]),
        st.sampled_from([None, None, None, None, None, 40_000]),
        st.sampled_from([0, 1, 1, 40, 3_000, -3, -50_000, -600_000, 50_000, 600_000]),
    ),
    max_size=6,
)
#: Half messages that come together, decisions (which, what), time until the next turn (ms) or until something is due.
TURNS = st.lists(
    st.tuples(
        HALVES,
        st.lists(st.tuples(st.integers(0, 30), st.sampled_from(Decision)), max_size=3),
        st.sampled_from([None, None, None, 100, 6_000, 31_000]),
    ),
    max_size=12,
)


@dataclass
class Known:
    """An open message, as the test knows it: times in ms."""

    born: int
    deliver_at: int | None
    due: int
    checks: int = 0
    state: str = "pending"


class Loop(Partition):
    """The worker's commit loop without Kafka."""

    def __init__(self, policy: CheckPolicy) -> None:
        super().__init__(policy)
        self.policy = policy
        self.open: dict[int, Known] = {}

    def read(self, start: int, halves: list[tuple[int, int | None, int | None]], now: int) -> None:
        """Take in half messages: birth, immunity, delay."""
        queue = self.queue
        records = []
        for offset, (born, immunity, delay) in enumerate(halves, start):
            deliver_at = None if delay is None else now + delay
            headers = half_headers(
                (),
                transaction_id=id_of(offset),
                group="orders",
                real_topic="placed",
                immunity_seconds=immunity,
                deliver_at=deliver_at,
            )
            records.append((offset, born, None, b"v", headers))
            wait = self.policy.transaction_timeout if immunity is None else immunity * 1_000
            since = born if born <= now + LATE else now
            self.open[offset] = Known(born, deliver_at, since + wait)
        queue.fresh.forget_entered()
        if not records:
            return
        offsets, births, keys, values, headers = map(list, zip(*records, strict=True))
        fresh = read_plain(offsets[0], births, keys, values, headers, "")
        if fresh is None or not queue.take_fresh(fresh):
            queue.enter_fresh(queue.read_position)
            for record in records:
                half = parse_half(*record, Names())
                queue.note_id(half)
                queue.read_half(half)

    def turn(self, now: int, decisions: list[tuple[int, Decision]]) -> None:
        queue, planner = self.queue, self.planner
        due = queue.next_due(now)
        is_round = due is not None and due <= now
        if is_round or queue.must_park:
            queue.enter_fresh(queue.fresh_until(now))
        entries = [entry(offset, decision) for offset, decision in decisions]
        choice = planner.choose([end(queue.next_end, *entries)] if entries else [], 0, now)
        due_round = self.due_round(now) if is_round else None
        draft = planner.plan(choice, now, due_round, may_discard=True, most_malformed=0)
        self.note(draft, now)
        self.commit(draft)

    def note(self, draft: Draft, now: int) -> None:
        for finished in (*draft.deliver, *draft.rolled_back, *draft.discards):
            self.open.pop(finished.offset, None)
        for scheduled in draft.scheduled:
            one = self.open[scheduled.offset]
            one.state, one.due = "scheduled", one.deliver_at or 0
        for check in draft.checks:
            one = self.open[check.offset]
            assert now >= one.due - LATE, f"{check.offset} was checked {one.due - now} ms early"
            one.checks, one.due = one.checks + 1, now + self.policy.transaction_check_interval

    def late(self, now: int) -> dict[int, int]:
        """Milliseconds by which messages are late for a check, a discard or a delivery."""
        ages = {offset: now - one.born - self.policy.transaction_max_age for offset, one in self.open.items()}
        return {
            offset: late
            for offset, one in self.open.items()
            if (late := max(now - one.due, ages[offset] if one.state == "pending" else -1)) >= 0
        }


def run(policy: CheckPolicy, turns: list, steps: dict[int, int]) -> None:
    """`steps`: what the brokers' clock jumps by (ms) before the turn of that number. Without steps, births jump."""
    loop = Loop(policy)
    # After several steps the immunity of a message may be forgotten; then its wait is that of all others at most.
    bound = LATE + policy.transaction_timeout if steps else 0
    clock, now, offset = 10_000_000, 10_000_000, 0
    for number, (halves, picks, wait) in enumerate(turns):
        if (step := steps.get(number, 0)) != 0:
            # The worker notes the time every 0.1 s.
            loop.queue.note_time(now)
            now += step
            clock = now
            if step < -LATE:
                for one in loop.open.values():
                    if one.state == "pending" and one.checks:
                        one.due = min(one.due, now + policy.transaction_check_interval)
                    elif one.state == "pending" and one.born > now:
                        one.due -= min(-step, one.born - now)
        loop.queue.note_time(now)
        births = []
        for immunity, delay, later in halves:
            clock = now if steps else clock + later
            births.append((clock, immunity, delay))
        loop.read(offset, births, now)
        offset += len(births)
        loop.turn(now, [(pick % offset, decision) for pick, decision in picks if offset])
        # Several rounds may follow each other at once.
        for _ in range(4):
            loop.turn(now, [])
        is_late = {name: late for name, late in loop.late(now).items() if late > bound}
        assert not is_late, f"late by ms: {is_late}"
        announced = loop.queue.next_due()
        awaited = [one.due for one in loop.open.values()]
        assert announced is None or announced > now, "it is due, and nothing happens"
        if awaited:
            assert announced is not None, "something is open, and nothing is announced"
            assert announced <= min(awaited) + bound, f"announced {announced - min(awaited)} ms late"
        now = (announced or now + 1) if wait is None else now + wait


@given(st.sampled_from(POLICIES), TURNS)
def test_nothing_waits_for_another_message_though_append_times_jump(policy, turns):
    run(policy, turns, {})


@given(
    st.sampled_from(POLICIES), TURNS, st.dictionaries(st.integers(0, 11), st.sampled_from([-600_000, -50_000, 50_000]))
)
def test_nothing_waits_for_a_clock_that_was_ahead(policy, turns, steps):
    run(policy, turns, steps)
