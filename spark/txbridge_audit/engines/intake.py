"""The intake of an audit: engines read records, have tasks make rows of them, and bring those of a block together."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.engines import tasks
from txbridge_audit.engines.records import refuse_unknown_version
from txbridge_audit.engines.tasks import Answer, Blocks, Told
from txbridge_audit.judge.facts import AuditSelection, Facts, TopicPartition
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.ledger.rows import LedgerRow
from txbridge_audit.protocol.mentions import AsideMention, from_row
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered
from txbridge_audit.protocol.worker_records import AuditCheckpoint

Spans = Mapping[TopicPartition, Range]
#: Records as Arrow batches to rows.
Task = Callable[[Iterable[Any]], Iterable[Told]]


class RowReader(Protocol):
    """Reads the records of spans, and keeps the rows that a task makes of them."""

    def take_rows(
        self, spans: Spans, task: Task, looks: Collection[str] = (), *, committed: bool = True, may_vanish: bool = False
    ) -> list[tuple[str, bytes]]:
        """Read everything once. Returns the rows of the sorts in `looks`; without any, it may be read later.

        With `may_vanish` retention may remove records meanwhile.
        """


class AuditRows(RowReader, Protocol):
    """An engine: its rows come together by blocks."""

    #: Its name in a report.
    engine: str

    def ask_tasks(self, ask: Callable[[Blocks], Iterable[Answer]]) -> Iterable[Answer]:
        """The answers to everything that was read. May be called more than once."""

    def write_ledger(self, facts: Facts, selection: AuditSelection, phantoms: Collection[LedgerRow]) -> None:
        """Write the ledger, where this engine was told to."""


#: What the driver looks at of a topic that is read, by its task: the next cuts depend on it. So it is read at once.
_LOOKS: Mapping[Callable[..., Iterable[Told]], Collection[str]] = {
    tasks.halves: {tasks.NAMED},
    tasks.offsets: {tasks.CHECKPOINT, tasks.ODD},
    tasks.progress: {tasks.NAMED, tasks.PROGRESS},
    tasks.discards: {tasks.ODD},
}


class AuditIntake:
    """Reads topic by topic (see gather.py): everything once, the discard topic before END."""

    def __init__(self, names: Names, rows: RowReader) -> None:
        self._names, self._rows = names, rows
        #: Real topics that well-formed half messages, and relays, name.
        self.named: set[str] = set()
        #: The last checkpoint of each partition.
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        #: See Facts.
        self.relays: dict[int, Numbering] = {}
        self.asides = SetAside(names)

    def take_topic(self, task: Callable[..., Iterable[Told]], spans: Spans, *about: Any, **how: bool) -> None:
        """Read these spans with one of the tasks, which takes `about` them. `how` is that of `RowReader.take_rows`.

        Raises CouldNotAuditError when a worker's record has a version that is not known.
        """
        looks = _LOOKS.get(task, ())
        steps: list[ProgressStep] = []
        for what, packed in self._rows.take_rows(spans, partial(task, self._names, *about), looks, **how):
            told = marshal.loads(packed)
            if what == tasks.NAMED:
                self.named.add(told)
            elif what == tasks.CHECKPOINT:
                partition, seen = told[0], AuditCheckpoint(*told[1:])
                # Of several tasks the last record of a partition: checkpoints move on.
                known = self.checkpoints.get(partition, seen)
                last = max(known, seen, key=lambda one: (one.stamp or 0, one.applied_to or 0))
                self.checkpoints[partition] = replace(last, follows=last.follows or known != seen)
            elif what == tasks.PROGRESS:
                steps.append(ProgressStep(*told))
            else:
                mention = from_row(told)
                refuse_unknown_version(mention)
                if isinstance(mention, AsideMention):
                    self.asides.add_record(mention)
        # Several tasks may have read a partition.
        for step in sorted(steps):
            self.relays |= numbered(self.relays, step)
