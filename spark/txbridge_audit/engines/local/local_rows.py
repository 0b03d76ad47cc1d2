"""The rows of an audit in this process, without Java: in memory, and above its limit in a file."""

from __future__ import annotations

import marshal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, TypeVar

from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.cluster.reader import read
from txbridge_audit.engines import tasks
from txbridge_audit.engines.gather import AuditedTopics, Spans, Task
from txbridge_audit.engines.run import audit
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditSelection, Facts
from txbridge_audit.ledger.place import claim_folder, write_summary
from txbridge_audit.ledger.rows import LedgerRow, batches_of, write_batches
from txbridge_audit.report.model import AuditReport

#: MiB of rows that are kept in memory, unless the user says otherwise.
MEMORY = 256
#: Bytes that Python takes for a row besides its packed values.
_OF_A_ROW = 180
#: Half partition and number of the block.
_Place = tuple[int, int]
_A = TypeVar("_A")


class LocalReader(ABC):
    """See RowReader: the tasks run in this process."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def take_rows(
        self, spans: Spans, task: Task, *, at_once: bool, committed: bool = True, may_vanish: bool = False
    ) -> list[tuple[str, bytes]]:
        """See RowReader."""
        found = []
        for row in task(read(self._settings, spans, committed=committed, may_vanish=may_vanish)):
            if at_once and row[0] in tasks.LOOKS:
                found.append((row[0], row[-1]))
            if row[0] not in tasks.FOR_CUTS:
                self._keep_row(*row)
        return found

    @abstractmethod
    def _keep_row(self, what: str, partition: int, block: int, packed: bytes) -> None: ...


class LocalRows(LocalReader):
    """See AuditRows. Where the shuffle of a cluster would be, there is a dict."""

    engine = "local"

    def __init__(self, settings: KafkaSettings, ledger: Path | None = None, memory: int = MEMORY) -> None:
        super().__init__(settings)
        self._ledger, self._most = ledger, memory * 2**20
        self._rows: dict[_Place, list[tuple[str, bytes]]] = {}
        self._size = 0
        self._file: IO[bytes] | None = None
        #: Where the rows of a block lie in the file: beginnings and lengths.
        self._written: dict[_Place, list[tuple[int, int]]] = {}

    def _keep_row(self, what: str, partition: int, block: int, packed: bytes) -> None:
        self._rows.setdefault((partition, block), []).append((what, packed))
        self._size += len(packed) + _OF_A_ROW
        if self._size > self._most:
            self._spill()

    def _spill(self) -> None:
        """Write all rows to the file, which is gone with this object."""
        self._file = self._file or tempfile.TemporaryFile(prefix="txbridge-audit-")  # noqa: SIM115
        for place, rows in self._rows.items():
            packed = marshal.dumps(rows)
            self._written.setdefault(place, []).append((self._file.tell(), len(packed)))
            self._file.write(packed)
        self._rows.clear()
        self._size = 0

    def ask_tasks(self, ask: Callable[[tasks.Blocks], _A]) -> Iterable[_A]:
        """See AuditRows."""
        return [ask(tasks.blocks_of(self._rows_by_block()))]

    def _rows_by_block(self) -> Iterator[tasks.Told]:
        for place in sorted(self._rows.keys() | self._written.keys()):
            for what, packed in chain(self._read_back(place), self._rows.get(place, ())):
                yield (what, *place, packed)

    def _read_back(self, place: _Place) -> Iterator[tuple[str, bytes]]:
        for at, length in self._written.get(place, ()):
            assert self._file is not None  # Something was written.
            self._file.seek(at)
            yield from marshal.loads(self._file.read(length))

    def write_ledger(self, facts: Facts, selection: AuditSelection, phantoms: Collection[LedgerRow]) -> None:
        """See AuditRows."""
        assert self._ledger is not None  # Its folder was claimed.
        rows = tasks.ledger_rows(facts, selection, tasks.blocks_of(self._rows_by_block()))
        write_batches(chain(rows, batches_of(phantoms)), self._ledger)


def local_audit(
    source: AuditedTopics, plan: Plan, *, ledger: Path | None, with_overview: bool, memory: int = MEMORY
) -> AuditReport:
    """One audit by this engine. Raises CouldNotAuditError."""
    try:
        rows = LocalRows(source.settings, ledger, memory)
        make = partial(audit, source, plan, rows, with_overview=with_overview)
        if ledger is None:
            return make(with_ledger=False)
        with claim_folder(ledger):
            report = make(with_ledger=True)
            write_summary(report.to_json(), ledger)
            return report
    except OSError as error:
        where = "" if ledger is None else f" of the ledger in {ledger}, or"
        raise CouldNotAuditError(f"files{where} of the audit cannot be written ({error}): check the disk") from error
