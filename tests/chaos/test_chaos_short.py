"""A short `make chaos`: one cell for each kind of process, with fewer transactions."""

from __future__ import annotations

import pytest

from tests.chaos.cells import CELLS, run_cell
from tests.chaos.door_cells import DOOR_CELLS

LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("cell", "transactions"),
    [
        ("worker kill -9", 3_000),
        pytest.param("client kill -9", 5_000, marks=LONG),
        pytest.param("kafka kill -9", 5_000, marks=LONG),
    ],
)
def test_p3_p10_nothing_is_lost_doubled_or_leaked_under(cell: str, transactions: int) -> None:
    report = run_cell(cell, CELLS[cell], transactions)
    print(report)
    assert report.violations == []
    # 90 of 100 commit at once and 3 by a check. Open transactions of a dead client are rolled back.
    assert report.committed > 0.8 * transactions
    assert report.rolled_back > 0.04 * transactions
    # Two of eleven are of this kind, and 93 of 100 commit.
    assert report.several > 0.12 * transactions
    assert report.delayed > 0.12 * transactions


@pytest.mark.long
@pytest.mark.parametrize(("cell", "visits"), [("doors kill -9 in turns", 4), ("worker and kafka die behind doors", 3)])
def test_p3_p10_doors_serve_clients_that_come_and_go_while(cell: str, visits: int) -> None:
    """Every client starts and sends after a death. What it was told agrees with what readers see."""
    report = run_cell(cell, DOOR_CELLS[cell], 600)
    print(report)
    assert report.violations == []
    # Those that stay send 600 or more, and the two of each visit 100 each. 93 of 100 commit.
    assert report.committed > 0.8 * (600 + visits * 200)
