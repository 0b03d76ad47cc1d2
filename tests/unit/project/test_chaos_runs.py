"""`make chaos`: a cell that dies."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.whole_run import Found, is_clean, run_cells

CELLS = ["worker kill -9", "kafka kill -9", "full disk"]


class Runs:
    """Stands in for the processes of the cells; the one for Kafka dies."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, cell: str, transactions: int, report: Path) -> Found:
        self.ran.append(cell)
        if cell.startswith("kafka"):
            return {"error": "it ended with exit code 1, see above"}
        numbers = ("transactions", "committed", "per_second", "fault_s", "longest_pause_s", "settled_s", "violated")
        return {**dict.fromkeys(numbers, 0), "violations": []}


def test_a_cell_that_dies_takes_none_along(tmp_path: Path) -> None:
    runs = Runs()
    found = run_cells(CELLS, 1_000, tmp_path, lambda _: None, runs)
    assert (runs.ran, [*found]) == (CELLS, CELLS)
    assert not is_clean(found)
