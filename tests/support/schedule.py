"""Which files of tests share a process, and in which order they are begun, when several processes run them."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

#: Their sessions share one Spark, and what it has compiled: in processes of their own each would be twice as slow. In
#: one process they would be what all others wait for: two share the work.
SPARK = {
    "tests/integration/test_audit.py": "Spark, with Kafka",
    "tests/integration/test_audit_corruption.py": "Spark, with Kafka",
    "tests/integration/test_audit_elections.py": "Spark, with Kafka",
    "tests/unit/audit/test_audit_rules.py": "Spark, without",
    "tests/unit/audit/test_audit_fast_path.py": "Spark, without",
}
#: Their tests share nothing, and together take as long as all others: each is handed out by itself.
_ONE_BY_ONE = frozenset({"tests/simulation/test_simulator.py"})
#: What takes longest comes first. Unit tests come last: their many small files fill what is left of the time of all.
_FOLDERS = ("tests/chaos", "tests/simulation", "tests/integration", "tests/property", "tests/unit")


class Schedule(LoadScopeScheduling):  # type: ignore[misc]  # its module is not typed
    """Hands out whole files, so that what the tests of a file share is made once; of a few files, test by test."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        # Not by the number of tests, but in the order of `arrange`.
        config.option.loadscopereorder = False

    @property
    def tests_finished(self) -> bool:
        """Not while one runs: if its process dies, what is left of its file is for another process.

        Xdist takes a run for finished before its last tests are, and has no work for a process that comes then; it
        would wait for that for ever.
        """
        return self.collection_is_completed and not self.has_pending

    def remove_node(self, node: WorkerController) -> str | None:
        """A process has ended; returns the test at which it died. Xdist would run that again, which would die again."""
        units = self.assigned_work[node]
        left = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if left:
            unit, test = left[0]
            unit[test] = True
        # A file without a test is no work to hand out.
        self.assigned_work[node] = {name: unit for name, unit in units.items() if not all(unit.values())}
        super().remove_node(node)
        return left[0][1] if left else None

    def schedule(self) -> None:
        """Hand out work; also to a process that takes the place of one that died."""
        super().schedule()
        if not self.workqueue:
            # Who is to get nothing more runs its last test only then.
            for node in self.nodes:
                if not node.shutting_down:
                    node.shutdown()

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return nodeid if file in _ONE_BY_ONE else SPARK.get(file, file)


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests; those of a file keep their order."""
    items.sort(key=lambda item: _rank(_file(item.nodeid)))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _rank(file: str) -> tuple[int, str]:
    if file in SPARK:
        return -1, SPARK[file]
    return next((rank for rank, folder in enumerate(_FOLDERS) if file.startswith(folder)), len(_FOLDERS)), file
