"""Distribution of test files over pytest's processes, and their order."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

#: The sessions of these tests share one Spark and its compiled code. In processes of their own each would be twice as
#: slow. In one process they would run longest of all, so two processes share the work.
SPARK = {
    "tests/integration/test_audit.py": "Spark, with Kafka",
    "tests/integration/test_audit_corruption.py": "Spark, with Kafka",
    "tests/integration/test_audit_elections.py": "Spark, with Kafka",
    "tests/unit/audit/test_audit_rules.py": "Spark, without",
}
#: The tests of these files share little, and a file of them in one process would be the end of a run. Each test is
#: handed out by itself.
_ONE_BY_ONE = frozenset(
    {
        "tests/simulation/test_simulator.py",
        "tests/integration/test_commands_as_processes.py",
        "tests/integration/test_readiness.py",
        "tests/integration/test_rocketmq_clients.py",
        "tests/integration/test_worker_standby.py",
    }
)
#: The longest tests come first. Unit tests come last: their many small files fill the remaining time of all processes.
_FOLDERS = ("tests/chaos", "tests/simulation", "tests/integration", "tests/property", "tests/unit")


class Schedule(LoadScopeScheduling):  # type: ignore[misc]  # its module is not typed
    """Hands out whole files, so that the fixtures of a file are made once.

    The tests of a few files are handed out one by one.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        # Keep the order of `arrange` instead of sorting by the number of tests.
        config.option.loadscopereorder = False

    @property
    def tests_finished(self) -> bool:
        """False while a test runs: if its process dies, another process gets the remaining tests of its file.

        Xdist counts a run as finished before its last tests are. It has no work for a process that comes then, and
        would wait for that process forever.
        """
        return self.collection_is_completed and not self.has_pending

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process that has ended and return the test at which it died.

        Xdist would run that test again, and the next process would die, too.
        """
        units = self.assigned_work[node]
        left = [(unit, test) for unit in units.values() for test, is_done in unit.items() if not is_done]
        if left:
            unit, test = left[0]
            unit[test] = True
        # A file without tests is no work to hand out.
        self.assigned_work[node] = {name: unit for name, unit in units.items() if not all(unit.values())}
        super().remove_node(node)
        return left[0][1] if left else None

    def schedule(self) -> None:
        """Hand out work, also to a process that replaces one that died."""
        super().schedule()
        if not self.workqueue:
            # A process runs its last test only when it knows that there will be no more.
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
