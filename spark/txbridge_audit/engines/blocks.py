"""Blocks: what was read of neighbouring half messages, and the plain ones among them.

Most of it is in columns (columns.py). So plain transactions, which nearly all are, are found and counted without a
Python object of each. Only the others become transactions. What is plain follows from judge/verdict.py; a test draws
histories, and whatever is counted here the judge settles in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from txbridge_audit.engines.columns import SCHEMAS
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.evidence import ENOUGH, Evidence
from txbridge_audit.judge.facts import AuditSelection, Facts
from txbridge_audit.judge.lazy import lazy
from txbridge_audit.judge.transaction import AuditedTransaction, transaction_of
from txbridge_audit.protocol.mentions import (
    COMMIT,
    ROLLBACK,
    CopyMention,
    EndMention,
    HalfMention,
    Mention,
    NamedMention,
    OutcomeMention,
    RowMention,
    position_of,
)

#: Half messages of a block: enough for arrays to pay off, few enough for many tasks.
BLOCK = 4_096
_FOREVER = 2**63 - 1

Piece = tuple[str, int, int, bytes]


def block_of(mention: Mention) -> int:
    """The number of the block of a half offset; -1 for records that name none.

    The numbers of relays' rows are hashes: they make a thousand blocks.
    """
    if isinstance(mention, NamedMention | RowMention):
        return mention.half >> 54
    return -1 if mention.half is None else mention.half // BLOCK


def cut(kind: type[Mention], some: Sequence[Any]) -> Iterator[Piece]:
    """Columns in pieces of blocks: kind, half partition, number of the block, packed lines."""
    columns = _joined(kind, some)
    if not len(columns):
        return
    partition, block = columns.column("partition").to_numpy(), columns.column("half").to_numpy() // BLOCK
    order = np.lexsort((block, partition))
    columns, partition, block = columns.take(pa.array(order)), partition[order], block[order]
    starts = [0, *(np.flatnonzero((np.diff(partition) != 0) | (np.diff(block) != 0)) + 1)]
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        packed = columns.slice(start, end - start).serialize().to_pybytes()
        yield kind.__name__, int(partition[start]), int(block[start]), packed


def unpacked(kind: type[Mention], piece: bytes) -> Any:
    """The columns of a piece."""
    return pa.ipc.read_record_batch(pa.py_buffer(piece), SCHEMAS[kind])


def _joined(kind: type[Mention], some: Sequence[Any]) -> Any:
    columns = pa.Table.from_batches(some, SCHEMAS[kind]).columns
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in columns], schema=SCHEMAS[kind])


def _are_same(some: Any, others: Any) -> Any:
    """Where both have a value, and the same."""
    return pc.equal(some, others).fill_null(False).to_numpy(zero_copy_only=False)


def _are_missing(some: Any) -> Any:
    return some.is_null().to_numpy(zero_copy_only=False)


def _numbers(some: Any, otherwise: int = -1) -> Any:
    return some.fill_null(otherwise).to_numpy()


def _codes(some: Any) -> tuple[list[str], Any]:
    """The different values, and which of them each line has."""
    coded = some.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True)
class PlainOnes:
    """Transactions with a half message, an END, an outcome and at most one copy: one line of columns each."""

    halves: Any
    ends: Any
    outcomes: Any
    #: Null where there is none.
    copies: Any

    def keep_marked(self, chosen: Any) -> PlainOnes:
        """Those that are marked."""
        some = pa.array(chosen)
        return PlainOnes(*(kind.filter(some) for kind in (self.halves, self.ends, self.outcomes, self.copies)))

    def are_plain(self) -> Any:
        """Which of them are plain: as judge/verdict.py says, where each `return None` has its reason."""
        half, end, outcome, copy = self.halves.column, self.ends.column, self.outcomes.column, self.copies.column
        decision = end("decision").to_numpy()
        is_commit = (decision == COMMIT) & _are_same(outcome("outcome"), "commit")
        is_rollback = (decision == ROLLBACK) & _are_same(outcome("outcome"), "rollback")
        position = position_of(end("at").to_numpy(), end("line").to_numpy())
        in_turn = (position >= _numbers(outcome("since"))) & (position < _numbers(outcome("until"), _FOREVER))
        is_same = _are_same(half("content"), copy("content")) & _are_same(half("real_topic"), copy("topic"))
        is_same &= _are_missing(copy("dated")) | _are_same(half("dated"), copy("dated"))
        fixed = half("fixed_partition")
        is_same &= np.where(_are_missing(fixed), _are_missing(copy("by_key")), _are_same(fixed, copy("place")))
        agree = _are_same(half("id"), end("id")) & _are_same(half("group"), end("group"))
        is_copied = ~_are_missing(copy("half"))
        return agree & ((is_commit & in_turn & is_same & is_copied) | (is_rollback & ~is_copied))

    def make_transaction(self, line: int) -> AuditedTransaction:
        """One of them, as an object."""
        columns = ((HalfMention, self.halves), (EndMention, self.ends), (OutcomeMention, self.outcomes))
        mentions: list[Mention] = [kind(**some.slice(line, 1).to_pylist()[0]) for kind, some in columns]
        if (copy := self.copies.slice(line, 1).to_pylist()[0])["half"] is not None:
            mentions.append(CopyMention(**copy))
        return transaction_of(mentions)

    def times_of(self, lines: Any) -> tuple[list[int], list[int], list[int], list[int]]:
        """Of some lines: birth, decision, outcome, and the number of the check that the decision answers, or 0."""
        columns = (self.halves.column("born"), self.ends.column("stamp"), self.outcomes.column("stamp"))
        checks = self.ends.column("checks").fill_null(0)
        born, decided, outcome, checked = (some.to_numpy()[lines].tolist() for some in (*columns, checks))
        return born, decided, outcome, checked

    def add_evidence(self, evidence: Evidence) -> None:
        """Add what they prove: the oldest anchors of each place. See `Evidence.see_transaction`."""
        some = self.keep_marked(~_are_missing(self.copies.column("half")))
        if not len(some.halves):
            return
        partition = some.halves.column("partition")[0].as_py()
        topics, topic = _codes(some.copies.column("topic"))
        place, at = (some.copies.column(name).to_numpy() for name in ("place", "at"))
        op, stamp = (some.outcomes.column(name).to_numpy() for name in ("at", "stamp"))
        order = np.lexsort((at, op, place, topic))
        is_first = np.ones(len(order), bool)
        is_first[1:] = (np.diff(topic[order]) != 0) | (np.diff(place[order]) != 0)
        firsts = np.flatnonzero(is_first)
        rank = np.arange(len(order)) - firsts[np.cumsum(is_first) - 1]
        for line in order[rank < ENOUGH]:
            anchor = int(op[line]), int(at[line]), int(stamp[line])
            evidence.add_anchor((partition, topics[topic[line]], int(place[line])), anchor)

    def group_alike(self, facts: Facts, selection: AuditSelection) -> Iterator[Any]:
        """The lines in groups. The judge says the same of all in a group, and the selection takes all or none.

        What they differ in besides is everything that `Case.missing_evidence`, `contribution_of` and
        `AuditSelection.takes` look at in a plain transaction.
        """
        if not len(self.halves):
            return
        half, end = self.halves.column, self.ends.column
        about = facts.half(half("partition")[0].as_py())
        born, stamp = half("born").to_numpy(), end("stamp").to_numpy()
        groups, group = _codes(half("group"))
        since = facts.checks_since or {}
        edges = np.array([since.get(name, 0) for name in groups], np.int64)
        twins = [identity for there, identity in facts.unexplained if there == about.partition]
        key = np.zeros(len(born), np.int64)
        for feature in (
            *(end("decision").to_numpy(), group, _codes(half("real_topic"))[1], _codes(end("source"))[1]),
            *(born <= about.ends_since, born <= about.outcomes_since, born <= about.discards_since),
            *(born <= about.parked_since, stamp > edges[group], stamp <= facts.checks_kept_since),
            *(born < (selection.since or 0), born < (selection.until or 0)),
            pc.is_in(half("id"), pa.array(twins, pa.string())).to_numpy(zero_copy_only=False),
        ):
            key = key * (int(feature.max()) + 1) + feature
        order = np.argsort(key, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


class MentionBlock:
    """All mentions at the half coordinates of one block: as columns, or as mentions where they have another shape."""

    def __init__(
        self, number: int, columns: Mapping[type[Mention], Sequence[Any]], mentions: Sequence[Mention]
    ) -> None:
        self._first = number * BLOCK
        self._columns = {kind: _joined(kind, columns.get(kind, ())) for kind in SCHEMAS}
        self._mentions = mentions

    def _places(self, kind: type[Mention]) -> Any:
        """The place in the block of each line."""
        return self._columns[kind].column("half").to_numpy() - self._first

    def _only(self, kind: type[Mention], chosen: Any) -> Any:
        """The line of each place, of those that are chosen; -1 without one, -2 if there are several."""
        lines = np.flatnonzero(chosen)
        places = self._places(kind)[lines]
        found = np.full(BLOCK, -1)
        found[places] = lines
        found[np.bincount(places, minlength=BLOCK) > 1] = -2
        return found

    def _take_lines(self, kind: type[Mention], lines: Any) -> Any:
        """These lines; null where a number is below 0."""
        return self._columns[kind].take(pa.array(np.maximum(lines, 0), mask=lines < 0))

    @lazy
    def _is_ours(self) -> Any:
        """By line of copies: whether it is ours, as far as the half message at its coordinates is known.

        Another namespace may deliver to the same real topic. No rule looks at its copies beside a half message.
        """
        halves, copies = self._columns[HalfMention], self._columns[CopyMention]
        half = self._only(HalfMention, np.ones(len(halves), bool))[self._places(CopyMention)]
        if not len(halves):
            return np.ones(len(copies), bool)
        return (half < 0) | _are_same(self._take_lines(HalfMention, half).column("id"), copies.column("id"))

    @lazy
    def plain(self) -> PlainOnes:
        """The plain transactions."""
        half, end, outcome = (
            self._only(kind, np.ones(len(self._columns[kind]), bool))
            for kind in (HalfMention, EndMention, OutcomeMention)
        )
        copy = self._only(CopyMention, self._is_ours)
        alone = (half >= 0) & (end >= 0) & (outcome >= 0) & (copy >= -1)
        odd = [mention.half for mention in self._mentions if mention.half is not None]
        alone &= ~np.isin(self._first + np.arange(BLOCK), np.array(odd, np.int64))
        lines = ((HalfMention, half), (EndMention, end), (OutcomeMention, outcome), (CopyMention, copy))
        some = PlainOnes(*(self._take_lines(kind, line[alone]) for kind, line in lines))
        return some.keep_marked(some.are_plain())

    @lazy
    def _is_plain(self) -> Any:
        """By place, whether the transaction is plain."""
        found = np.zeros(BLOCK, bool)
        found[self.plain.halves.column("half").to_numpy() - self._first] = True
        return found

    @lazy
    def _is_stray(self) -> Any:
        """By place, whether there are visible records alone. No rule but that of strays looks at them."""
        found = np.zeros(BLOCK, bool)
        found[self._places(CopyMention)] = True
        for kind in (HalfMention, EndMention, OutcomeMention):
            found[self._places(kind)] = False
        odd = np.array([mention.half for mention in self._mentions if mention.half is not None], np.int64)
        return found & ~np.isin(self._first + np.arange(BLOCK), odd)

    def other_transactions(self) -> Iterator[AuditedTransaction]:
        """All other transactions, in the order of their half offsets. Places with nothing but strays are left out."""
        return self._transactions(~(self._is_plain | self._is_stray))

    def all_transactions(self) -> Iterator[AuditedTransaction]:
        """All transactions, in the order of their half offsets."""
        return self._transactions(np.ones(BLOCK, bool))

    def _transactions(self, chosen: Any) -> Iterator[AuditedTransaction]:
        by_half: dict[int | None, list[Mention]] = {}
        columns = (self._mentions_of(kind, chosen[self._places(kind)]) for kind in SCHEMAS)
        for mention in (*self._mentions, *chain.from_iterable(columns)):
            by_half.setdefault(mention.half, []).append(mention)
        return (
            transaction_of(by_half[half]) for half in sorted(by_half, key=lambda half: -1 if half is None else half)
        )

    def find_strays(self, facts: Facts) -> Iterator[CopyMention]:
        """The strays at the coordinates of plain transactions, and of none. Those at others belong to these."""
        places = self._places(CopyMention)
        chosen = (~self._is_ours & self._is_plain[places]) | self._is_stray[places]
        for copy in self._mentions_of(CopyMention, chosen):
            yield from Case(transaction_of([copy]), facts).strays

    def _mentions_of(self, kind: type[Mention], chosen: Any) -> Iterator[Any]:
        return (kind(**line) for line in self._columns[kind].filter(pa.array(chosen)).to_pylist())
