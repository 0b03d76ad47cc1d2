"""FreshHalves: half messages that were read, and that are neither due for a check nor to be parked, in columns.

Nearly all are decided while they are fresh. Such a message never becomes an entry: no object, no place in the window,
no scheduled check. The decisions of an END record about them are a Run, which is looked up, delivered and finished as a
whole. A message that is not decided in time, or not in a run, enters the HalfQueue as if it had just been read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from txbridge.core import names
from txbridge.core.decision_record import Decision, DecisionRecord, PlainEntries, Source
from txbridge.core.half_message import (
    LONGEST_NAME,
    PLAIN,
    Copy,
    Envelope,
    HalfMessage,
    coordinates,
    envelope_of,
    users_of_plain,
)
from txbridge.core.names import Headers
from txbridge.core.states import TRANSITIONS, TransactionState, event_of

_ID_BYTES = 32
_are_ids = re.compile(rb"[0-9A-F]*\Z").match
_is_reserved = lru_cache(1_000)(names.is_reserved_header)
#: State of a pending message after each decision. Decisions are as in END.
_STATES = {
    b"%d" % decision: TRANSITIONS[TransactionState.PENDING, event_of(decision, Source.CLIENT)].state
    for decision in Decision
}
#: Rows at the front that are not fresh any more are removed when there are this many: each removal moves all others.
_FEW = 1_024


class FreshHalves:
    """Plain half messages with consecutive offsets and births that grow. Those below `first` are not fresh any more."""

    __slots__ = (
        *("_open_from", "births", "bytes", "envelopes", "first", "headers", "ids", "keys", "sizes", "start"),
        *("stop", "unfinished", "values"),
    )

    def __init__(self) -> None:
        #: Offset of the first row in the columns, of the first message that is still fresh, and behind the last one.
        self.start = self.first = self.stop = 0
        # No message below this offset is open.
        self._open_from = 0
        #: Number and bytes of the fresh messages that are not finished.
        self.unfinished = self.bytes = 0
        self.births: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Sequence[tuple[str, bytes | None]]] = []
        #: None for a message that is finished.
        self.ids: list[bytes | None] = []
        self.envelopes: list[Envelope] = []
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return self.stop - self.first

    def __contains__(self, offset: int) -> bool:
        return self.first <= offset < self.stop

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return self.births, self.keys, self.values, self.headers, self.ids, self.envelopes, self.sizes

    def append_halves(self, more: FreshHalves) -> None:
        """Append half messages that follow on these. If nothing is fresh here, their offsets may begin anywhere."""
        if not self:
            for column in self._columns:
                column.clear()
            self.start = self.first = self._open_from = more.start
        self.stop = more.stop
        self.bytes += more.bytes
        self.unfinished += more.unfinished
        for mine, its in zip(self._columns, more._columns, strict=True):
            mine.extend(its)

    def open_at(self, offset: int) -> HalfMessage | None:
        """The message at an offset, as an object; None if it is finished."""
        index = offset - self.start
        name = self.ids[index]
        if name is None:
            return None
        group, real_topic, _ = self.envelopes[index]
        headers = self.headers[index]
        key, value, users = self.keys[index], self.values[index], users_of_plain(headers)
        return HalfMessage(
            offset, name.decode(), group, real_topic, self.births[index], key, value, headers, users, self.sizes[index]
        )

    def size_of(self, offset: int) -> int:
        return self.sizes[offset - self.start]

    def older_than(self, born: int) -> int:
        """Offset behind the last fresh message that was born by then (ms)."""
        return self.start + bisect_right(self.births, born, self.first - self.start)

    @property
    def oldest_birth(self) -> int | None:
        """Birth (ms) of the first message that is not finished; None if all are."""
        ids, start, stop = self.ids, self.start, self.stop
        offset = max(self._open_from, self.first)
        # The messages that are passed are finished for good, so each is passed once.
        while offset < stop and ids[offset - start] is None:
            offset += 1
        self._open_from = offset
        return self.births[offset - start] if offset < stop else None

    def free_finished(self, offsets: Collection[int]) -> None:
        """Free the contents of finished messages. No run may need them any more."""
        start = self.start
        ids, keys, values, headers, sizes = self.ids, self.keys, self.values, self.headers, self.sizes
        for offset in offsets:
            index = offset - start
            ids[index] = keys[index] = values[index] = None
            headers[index] = ()
            self.bytes -= sizes[index]
        self.unfinished -= len(offsets)

    def enter_first(self) -> HalfMessage | None:
        """End the freshness of the first message and return it; None if it is finished. A run with it stays valid."""
        half = self.open_at(self.first)
        if half is not None:
            self.bytes -= half.size
            self.unfinished -= 1
        self.first += 1
        return half

    def forget_entered(self) -> None:
        """Remove the rows that are not fresh any more. No run may be in use."""
        gone = self.first - self.start
        if gone >= _FEW or not self:
            for column in self._columns:
                del column[:gone]
            self.start = self.first

    def run_of(self, record: DecisionRecord) -> Run | None:
        """The decisions of an END record; None unless all of them are about fresh messages and valid."""
        entries = record.entries
        if not isinstance(entries, PlainEntries):
            return None
        offsets, ids, decisions = entries.offsets, entries.ids, entries.decisions
        lowest, highest, count = min(offsets), max(offsets), len(offsets)
        if lowest < self.first or highest >= self.stop or len(set(offsets)) != count:
            return None
        start, known, envelopes, sizes = self.start, self.ids, self.envelopes, self.sizes
        if [known[offset - start] for offset in offsets] != ids:
            return None
        its = [envelopes[offset - start] for offset in offsets]
        distinct = {its[0]} if its.count(its[0]) == count else set(its)
        if any(envelope.group != record.group for envelope in distinct):
            return None
        if decisions.count(decisions[0]) == count:
            by_state = {_STATES[decisions[0]]: offsets}
        else:
            by_state = {}
            for offset, decision in zip(offsets, decisions, strict=True):
                by_state.setdefault(_STATES[decision], []).append(offset)
        commits = by_state.get(TransactionState.COMMITTED, [])
        rollbacks = by_state.get(TransactionState.ROLLED_BACK, [])
        size = sum([sizes[offset - start] for offset in commits])
        return Run(record, self, commits, rollbacks, size, {envelope.real_topic for envelope in distinct})


class Run(NamedTuple):
    """Decisions of one END record about fresh half messages: half offsets, in the order of the record."""

    record: DecisionRecord
    fresh: FreshHalves
    commits: list[int]
    rollbacks: list[int]
    #: Bytes of the messages that it commits.
    size: int
    #: Real topics of the messages that it decides.
    topics: set[str]

    @property
    def births(self) -> list[int]:
        """Births (ms) of the messages that it commits."""
        births, start = self.fresh.births, self.fresh.start
        return [births[offset - start] for offset in self.commits]

    def halves(self, _bodies: Mapping[int, HalfMessage]) -> Iterator[HalfMessage]:
        return filter(None, map(self.fresh.open_at, self.commits))

    def copies(self, partition: int, _bodies: Mapping[int, HalfMessage]) -> Iterator[Copy]:
        """The records of the messages that it commits."""
        fresh, name = self.fresh, names.HALF_COORDINATES
        start, births, keys, values = fresh.start, fresh.births, fresh.keys, fresh.values
        for offset in self.commits:
            index = offset - start
            headers = fresh.headers[index]
            copied = [*users_of_plain(headers), headers[-1], (name, coordinates(partition, offset))]
            yield offset, fresh.envelopes[index].real_topic, values[index], keys[index], -1, births[index], copied


def read_plain(
    start: int,
    births: list[int],
    keys: list[bytes | None],
    values: list[bytes | None],
    headers: list[Any],
    namespace: str,
) -> FreshHalves | None:
    """Records of HALF with consecutive offsets; None unless all are plain half messages with different ids."""
    # All headers but the last, which is the id: messages of one kind have the same ones.
    before: Headers | None = None
    envelope: Envelope | None = None
    size = 0
    envelopes: list[Envelope] = []
    sizes: list[int] = []
    for one in headers:
        if (found := one[:-1]) != before:
            before, envelope = found, envelope_of(found[1 - PLAIN :], namespace)
            if envelope is None:
                return None
            size = envelope.size
            for name, _ in users_of_plain(one):
                if len(name) > LONGEST_NAME or _is_reserved(name):
                    return None
            size += sum(len(name) + len(value or b"") for name, value in found[: 1 - PLAIN])
        assert envelope is not None
        envelopes.append(envelope)
        sizes.append(size)
    ids = [one[-1][1] for one in headers]
    count = len(ids)
    if (
        [one[-1][0] for one in headers].count(names.UNIQ_KEY) != count
        or None in ids
        or set(map(len, ids)) != {_ID_BYTES}
        or not _are_ids(b"".join(ids))
        or len(set(ids)) != count
    ):
        return None
    halves = FreshHalves()
    halves.start = halves.first = start
    halves.stop = start + count
    halves.births, halves.keys, halves.values, halves.headers = births, keys, values, headers
    halves.ids, halves.envelopes = ids, envelopes
    halves.sizes = [
        size + len(key or b"") + len(value or b"") for size, key, value in zip(sizes, keys, values, strict=True)
    ]
    halves.bytes, halves.unfinished = sum(halves.sizes), count
    return halves
