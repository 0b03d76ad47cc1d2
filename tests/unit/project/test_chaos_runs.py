"""`make chaos`: the cells that are run again after an interruption, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.whole_run import Found, is_clean, run_cells

CELLS = ["worker kill -9", "kafka kill -9", "full disk"]


class Runs:
    """Stands in for the processes of the cells."""

    def __init__(self, **dying: BaseException | Found) -> None:
        self.ran: list[str] = []
        self._dying = dying

    def __call__(self, cell: str, transactions: int, report: Path) -> Found:
        self.ran.append(cell)
        fate = self._dying.get(cell.partition(" ")[0], {})
        if isinstance(fate, BaseException):
            raise fate
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


def run(folder: Path, one: Runs, transactions: int = 1_000, *, fresh: bool = False) -> dict[str, Found]:
    return run_cells(CELLS, transactions, folder, lambda _: None, fresh=fresh, run_one=one)


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Runs(kafka=KeyboardInterrupt()))
    return tmp_path


def test_a_run_that_was_interrupted_goes_on(interrupted: Path) -> None:
    again = Runs()
    assert [*run(interrupted, again)] == CELLS
    assert again.ran == ["kafka kill -9", "full disk"]
    assert json.loads((interrupted / "report.json").read_text())["finished"]


@pytest.mark.parametrize("other", [{"transactions": 2_000}, {"fresh": True}], ids=["other size", "fresh"])
def test_another_run_begins_anew(interrupted: Path, other: dict[str, int]) -> None:
    again = Runs()
    run(interrupted, again, **other)  # type: ignore[arg-type]
    assert again.ran == CELLS


def test_a_run_that_was_finished_is_not_continued(tmp_path: Path) -> None:
    run(tmp_path, Runs())
    again = Runs()
    run(tmp_path, again)
    assert again.ran == CELLS


def test_a_cell_that_dies_takes_none_along_and_is_run_again_after_an_interruption(tmp_path: Path) -> None:
    found = run(tmp_path, first := Runs(kafka={"error": "it ended with exit code 1, see above"}))
    assert first.ran == CELLS
    assert not is_clean(found)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Runs(kafka={"error": "it ended"}, full=KeyboardInterrupt()))
    again = Runs()
    run(tmp_path, again)
    assert again.ran == ["kafka kill -9", "full disk"]


def test_the_table_has_the_pauses_and_the_violations(tmp_path: Path) -> None:
    found = run(tmp_path, Runs(full={"violations": ["lost: A"], "violated": 1}, worker={"error": "it ended"}))
    assert not is_clean(found)
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[2] == "| worker kill -9 | no verdict: it ended | | | | | | | |"
    assert lines[3].startswith("| kafka kill -9 | 1,000 | 93 | 1,234 | 30.0 | 12.2 | 2.0 | 0 | ")
    assert lines[-2:] == ["full disk:", "- lost: A"]
