"""Rules of the differential test, without either side: what counts as a difference, and which ones may be listed."""

from __future__ import annotations

import re

import pytest

from tests.differential.compare import Verdict, judge
from tests.differential.run import compare
from tests.differential.scenario import Expected, Fate, Scenario
from tests.differential.scenarios import SCENARIOS
from tests.unit.project.test_parity_table import ALL, PAGE

ONE, TWO, NONE = Fate(1, 0), Fate(2, 0), Fate(0, 0)
DIFFERS = Expected(ONE, (TWO,), "D.11")
SOMETIMES = Expected(ONE, (ONE, TWO), "E.3.5", "a matter of time")

EXPECTED = [
    pytest.param(expected, id=f"{scenario.name}: {name}")
    for scenario in SCENARIOS
    for name, expected in scenario.expected.items()
]


@pytest.mark.parametrize(
    ("rocketmq", "txbridge", "expected", "verdict"),
    [
        (ONE, ONE, Expected(ONE), Verdict.SAME),
        (TWO, ONE, Expected(ONE), Verdict.UNEXPECTED),
        (TWO, TWO, Expected(ONE), Verdict.OURS_IS_WRONG),
        (TWO, ONE, DIFFERS, Verdict.BETTER),
        (ONE, ONE, DIFFERS, Verdict.MISSING),
        (NONE, ONE, DIFFERS, Verdict.UNEXPECTED),
        (TWO, TWO, DIFFERS, Verdict.OURS_IS_WRONG),
        (ONE, ONE, SOMETIMES, Verdict.SAME),
        (TWO, ONE, SOMETIMES, Verdict.BETTER),
        (NONE, ONE, SOMETIMES, Verdict.UNEXPECTED),
    ],
)
def test_a_fate_is_the_same_or_differs_as_it_is_written(rocketmq, txbridge, expected, verdict):
    assert judge(rocketmq, txbridge, expected) is verdict


def test_what_could_not_be_played_on_either_side_is_no_success_and_tells_why():
    scenario = Scenario("one", [], {"a": Expected(ONE), "b": Expected(ONE)})
    results = compare(scenario, "txbridge", AssertionError("never checked"), {"a": ONE, "b": ONE})
    assert [(one.transaction, one.verdict, one.good) for one in results] == [
        ("a", Verdict.FAILED, False),
        ("b", Verdict.FAILED, False),
    ]
    assert ("never checked" in results[0].error, results[0].ours) == (True, ONE)
    result, _ = compare(scenario, "door", {"a": ONE, "b": ONE}, RuntimeError("broken"))
    assert (result.verdict, result.rocketmq, result.ours) == (Verdict.FAILED, ONE, None)
    assert "door: RuntimeError('broken')" in result.error


@pytest.mark.parametrize("expected", EXPECTED)
def test_every_difference_names_a_row_that_says_we_are_better_and_only_timing_allows_several_fates(expected):
    different = [fate for fate in expected.rocketmq if fate != expected.txbridge]
    assert bool(different) == bool(expected.row)
    if different:
        assert [row["verdict"] for row in ALL if row["key"] == expected.row] == ["better"]
    assert (len(expected.rocketmq) > 1) == bool(expected.tolerance)


def test_the_parity_page_names_the_rows_that_are_played_through_the_front_door():
    [told] = re.findall(r"hold as they stand: (.*?)\.\n", PAGE.read_text(), re.DOTALL)
    played = {expected.row for scenario in SCENARIOS for expected in scenario.expected.values()}
    assert set(re.split(r",\s+|\s+and\s+", told)) == played - {""}
