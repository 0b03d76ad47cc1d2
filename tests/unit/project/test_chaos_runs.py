"""`make chaos`: a cell that dies, and the table."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.whole_run import Found, is_clean, run_cells

CELLS = ["worker kill -9", "kafka kill -9", "full disk"]


class Runs:
    """Stands in for the processes of the cells."""

    def __init__(self, **dying: Found) -> None:
        self.ran: list[str] = []
        self._dying = dying

    def __call__(self, cell: str, transactions: int, report: Path) -> Found:
        self.ran.append(cell)
        fate = self._dying.get(cell.partition(" ")[0], {})
        verdict = {
            "transactions": transactions,
            "committed": 93,
            "per_second": 1_234,
            "fault_s": 30.0,
            "longest_pause_s": 12.25,
            "settled_s": 2.0,
            "violations": [],
            "violated": 0,
        }
        return fate if "error" in fate else {**verdict, **fate}


def test_a_cell_that_dies_takes_none_along(tmp_path: Path) -> None:
    runs = Runs(kafka={"error": "it ended with exit code 1, see above"})
    found = run_cells(CELLS, 1_000, tmp_path, lambda _: None, runs)
    assert (runs.ran, [*found]) == (CELLS, CELLS)
    assert not is_clean(found)


def test_the_table_has_the_pauses_and_the_violations(tmp_path: Path) -> None:
    dying = Runs(full={"violations": ["lost: A"], "violated": 1}, worker={"error": "it ended"})
    found = run_cells(CELLS, 1_000, tmp_path, lambda _: None, dying)
    assert not is_clean(found)
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[2] == "| worker kill -9 | no verdict: it ended | | | | | | | |"
    assert lines[3].startswith("| kafka kill -9 | 1,000 | 93 | 1,234 | 30.0 | 12.2 | 2.0 | 0 | ")
    assert lines[-2:] == ["full disk:", "- lost: A"]
