"""Any losses at any steps of relays that take turns: every row becomes visible once, in the order of its key.

The relay is the real one. The database and Kafka are stand-ins in memory with what a relay relies on. One transaction
advances the state of the owner and deletes. Another one makes rows and their progress visible, and a fence ends that of
the relay before. Each step lets the others go on first, for as long as they like: so each relay is a zombie at times. A
step may fail before or after its effect, or be the last one of its process, and the database may lose the last ones.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import patch

from greenlet import greenlet
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import SQLAlchemyError
from txbridge_sqlalchemy import relay as relay_module
from txbridge_sqlalchemy.batch_writer import ProgressPlace, RowRefusal
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_state import StateRow
from txbridge_sqlalchemy.relay import Relay
from txbridge_sqlalchemy.relay_blocks import Blocks

from txbridge import Message
from txbridge.core.outbox_progress import BatchProgress, Ownership, hash_of
from txbridge.kafka.errors import (
    AbortedError,
    FencedError,
    IndefiniteError,
    OutdatedError,
    RecordFailure,
    RecordKind,
    RecordsRefusedError,
)

KEYS = [("t", b"a"), ("t", b"b"), ("u", b"a"), ("u", None)]
#: Rows that are read at once.
SOME = 3


#: What becomes of a step. Late: Kafka commits only when the next relay takes the fence.
FAULTS = ["", "", "lost before", "lost after", "lost after", "killed before", "killed after", "late"]
#: How Kafka refuses a row: told before, or by a report of its own, or by one for all rows of its topic.
REFUSED = [None] * 7 + ["known", "named", "unnamed"]


class KilledError(BaseException):
    pass


class World:
    """The database, Kafka, and a clock."""

    def __init__(self):
        self.table, self.state, self.next_id = {}, StateRow("0123456789abcdef", None, 0, None, None, None), 1
        self.saved = ({}, self.state, 1)
        self.log, self.visible, self.late, self.fence, self.refused, self.away = [], [], None, None, {}, set()
        self.now, self.added, self.lost, self.wrong = 0.0, [], set(), []

    def insert(self, topic, key, refused=None):
        unique = f"{len(self.added):016X}{0:016X}"
        row = OutboxRow(self.next_id, self.next_id, Message(topic, b"", key), None, unique, 0, 0, topic, key)
        self.table[row.id], self.refused[unique], self.next_id = row, refused, self.next_id + 1
        self.added.append(row)

    def fail_over(self):
        """The database is as it was once, and gives ids again."""
        table, self.state, self.next_id = self.saved
        self.lost |= {row for row in self.added if row.id >= self.next_id}
        self.table = dict(table)

    def commit(self, batch, rows):
        self.wrong += [f"{row.id} is visible twice" for row in rows if row in self.visible]
        self.visible += rows
        self.log.append(BatchProgress(batch, {row.name: hash_of(row.message_id) for row in rows}))

    def exchange(self, owner, old=None, /, **new):
        if self.state.owner != owner or old not in {None, self.state.batch}:
            raise OutdatedError("another one")
        self.state = self.state._replace(**new)

    def advance(self, owner, old, new, position, named):
        self.exchange(owner, old, batch=new, position=position)
        rows = [row for row in self.table.values() if named.get(row.name) == hash_of(row.message_id)]
        self.wrong += [f"{row.id} is deleted and not visible" for row in rows if row not in self.visible]
        for row in rows:
            del self.table[row.id]
        return len(rows)


class Process:
    """A relay, and all that it has to do with: session, state, producer, and the events that it waits for."""

    table = SimpleNamespace(name="outbox", state=SimpleNamespace(fullname="outbox_relay"))
    is_gate_closed, position = False, -1

    def __init__(self, world):
        self.world, self.is_dead, self.stops, self.has_session, self.blocks = world, False, False, True, Blocks()
        self.relay = Relay(self, self, self, self, self)
        self.relay._news = self.relay._aside = self
        self.beyond = None
        self.course = greenlet(self._run)
        self.course.switch()

    def _run(self):
        with suppress(KilledError):
            self.relay.run(self)
        self.is_dead = True

    def step(self, effect, before=SQLAlchemyError, after=SQLAlchemyError, late=None):
        """Let others go on, and then do this, unless it is lost with one of these errors."""
        fault = "killed before" if self.is_dead else self.course.parent.switch()
        if fault == "lost before" and before is not None:
            raise before
        is_late = fault == "late" and late is not None
        result = None if fault == "killed before" else late() if is_late else effect()
        if fault.startswith("killed"):
            self.is_dead = True
            raise KilledError
        if (is_late or fault == "lost after") and after is not None:
            raise after
        return result

    def ignore(self, *_, **__):
        pass

    name_outbox = forget_reads = require_session = close = clear = shutdown = on_batch = on_blocked = ignore

    def is_set(self):
        return self.stops

    def wait(self, pause):
        self.world.now += pause
        self.step(self.ignore, None, None)

    def submit(self, run):
        """What goes on beside the writing of a batch happens after it here."""
        found = SimpleNamespace(result=lambda: found.rows)

        def outcome():
            try:
                found.rows = run()
            except Exception as error:
                return error

        found.exception = outcome
        return found

    def ask(self, read):
        """Read in the session of the relay, which a fail-over ends."""

        def effect():
            if not self.has_session:
                self.has_session = True
                raise SQLAlchemyError("lost")
            return read()

        return self.step(effect)

    def try_lock(self):
        # It only saves work, and two may have it.
        return self.ask(lambda: True)

    def read_rows(self, *_, first=0):
        def read():
            rows = self.blocks.without_blocked(row for row in self.world.table.values() if row.id > first)[:SOME]
            self.beyond = rows[-1].id if len(rows) == SOME else None
            return rows

        return self.ask(read)

    @property
    def can_read_beyond(self):
        return self.beyond is not None

    def read_beyond(self, *_):
        return self.read_rows(first=self.beyond)

    def read_again(self, names):
        return self.ask(lambda: [self.world.table[name] for name in names if name in self.world.table])

    def read_state(self):
        return self.step(lambda: self.world.state)

    def take_outbox(self, before, owner, place):
        new = dict(zip(("owner", "topic_id", "partition", "position"), (owner, *place), strict=True))
        self.step(lambda: self.world.exchange(before.owner, before.batch, **new))

    def leave_outbox(self, owner):
        with suppress(OutdatedError):
            self.step(lambda: self.world.exchange(owner, owner=None))

    def note_position(self, owner, batch, position):
        self.step(lambda: self.world.advance(owner, batch, batch, position, {}))

    def confirm_batch(self, owner, batch, position, sent):
        self.confirm_named(owner, batch, position, {row.name: hash_of(row.message_id) for row in sent})

    def confirm_named(self, owner, batch, position, named):
        return self.step(lambda: self.world.advance(owner, batch - 1, batch, position, named))

    def find_place(self, *_):
        return self.step(lambda: ProgressPlace("topic", 0, 0, len(self.world.log)))

    def take_over(self, _identity, owner, batch, _place, position):
        def take_fence():
            self.world.fence = self
            if self.world.late is not None:
                self.world.commit(*self.world.late)
                self.world.late = None

        self.step(take_fence)
        self.produce(lambda: self.world.log.append(Ownership(owner, batch)))
        self.position = len(self.world.log)
        for offset in range(position, self.position):
            record = self.world.log[offset]
            if isinstance(record, BatchProgress) and record.batch > batch:
                yield record, offset + 1

    def find_other_owner(self, owner, position):
        later = self.world.log[position:]
        return self.step(lambda: any(isinstance(one, Ownership) and one.owner != owner for one in later))

    def refused(self, row):
        return self.world.refused[row.message_id]

    def list_refusals(self, rows):
        return {row.id: RowRefusal("no") for row in rows if self.refused(row) == "known"}

    def write_batch(self, batch, rows):
        failed = []
        for number, row in enumerate(rows):
            if self.refused(row) or row.topic in self.world.away:
                which, is_away = number if self.refused(row) == "named" else None, row.topic in self.world.away
                failed.append(RecordFailure(RecordKind.REAL, row.topic, which, "no", is_away, is_culprit=False))
        late = (batch, rows)
        self.produce(lambda: self.world.commit(batch, rows), failed, lambda: setattr(self.world, "late", late))
        return len(self.world.log)

    def produce(self, commit, failed=(), late=None):
        def fenced(effect):
            if self.world.fence is not self:
                raise FencedError("fenced")
            if failed:
                raise RecordsRefusedError(failed)
            effect()

        lost = (AbortedError, IndefiniteError)
        try:
            self.step(lambda: fenced(commit), *lost, late and (lambda: fenced(late)))
        except (*lost, RecordsRefusedError):
            # Nothing more without a new fence.
            if self.world.fence is self:
                self.world.fence = None
            raise


runs = st.tuples(st.integers(0, 2), st.integers(0, 12), st.sampled_from(FAULTS))
inserts = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(REFUSED)), min_size=1, max_size=5)
#: Ended: Kafka ends the transaction of a relay that stood still.
others = st.sampled_from(["t", "u", "save", "fail over", "ended"])


@given(st.lists(st.one_of(runs, runs, inserts, others), min_size=5, max_size=60))
def test_every_row_is_visible_once_and_in_order_whatever_is_lost(script):
    world = World()
    clock = SimpleNamespace(monotonic=lambda: world.now)

    def report(_level, event, **_):
        # A database that has lost who the owner is looks like a copy.
        if event == "relay_stopped" and "fail over" not in script:
            world.wrong.append(event)

    with patch.multiple(relay_module, time=clock, report=report):
        relays = [Process(world) for _ in range(3)]

        def run(number, steps, fault=""):
            for left in range(steps, -1, -1):
                if relays[number].is_dead:
                    relays[number] = Process(world)
                relays[number].course.switch("" if left else fault)

        for action in script:
            if isinstance(action, tuple):
                run(*action)
            elif isinstance(action, list):
                for (topic, key), refused in action:
                    world.insert(topic, key, refused)
            elif action == "save":
                world.saved = (dict(world.table), world.state, world.next_id)
            elif action == "ended":
                world.fence = None
            elif action == "fail over":
                world.fail_over()
                for relay in relays:
                    relay.has_session = False
            else:
                world.away ^= {action}
        world.refused, world.away = dict.fromkeys(world.refused), set()
        # Now one of them works until nothing waits, while the others come back.
        for number in (0, 1, 0, 2, 0):
            world.insert("t", b"a")
            for _ in range(100):
                run(number, 20)
                if not world.table:
                    break
        for relay in relays:
            relay.stops = True
            while not relay.is_dead:
                relay.course.switch("")
    assert (world.wrong, world.table) == ([], {})
    assert set(world.visible) >= set(world.added) - world.lost
    for topic, key in KEYS[:3]:
        ids = [row.message_id for row in world.visible if (row.topic, row.key) == (topic, key)]
        assert ids == sorted(ids)
