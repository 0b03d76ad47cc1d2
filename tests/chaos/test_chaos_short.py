"""`make chaos` in short: one cell for each kind of process, with fewer transactions."""

from __future__ import annotations

import pytest

from tests.chaos.cells import run_cell

LONG = pytest.mark.long


@pytest.mark.parametrize(
    "cell",
    ["worker kill -9", pytest.param("client kill -9", marks=LONG), pytest.param("kafka kill -9", marks=LONG)],
)
def test_p3_p10_nothing_is_lost_doubled_or_leaked_under(cell: str) -> None:
    report = run_cell(cell, 3_000)
    print(report)
    assert report.violations == []
    # 90 of 100 commit at once and 3 by a check; what a dead client left behind is rolled back.
    assert report.committed > 2_400
    assert report.rolled_back > 120
    # Two of eleven each, and 93 of 100 commit.
    assert report.several > 360
    assert report.delayed > 360
