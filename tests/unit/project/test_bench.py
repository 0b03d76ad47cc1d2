"""The pure parts of the benches: goals of ratios, pauses, and a bench that fails."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from types import SimpleNamespace

import pytest

import tests.bench.__main__ as program
from tests.bench import whole_run
from tests.bench.measure import PER_SECOND, Ratio, Rounds, by_turns
from tests.bench.outbox import faults, goals
from tests.bench.outbox.visit import DRAINED
from tests.bench.outbox.ways import OUTBOX, POLLED
from tests.bench.rolling import longest_pause

RATIO = {"value": 5.2, "least": 5.0, "most": 5.5, "goal": "at least 5", "met": True}
ABOUT = {"environment": {"python": "3.11.2"}, "versions": {"commit": "abc"}}


@pytest.mark.parametrize(
    ("ratio", "goal", "met"),
    [
        (Ratio(5.0, 5), "at least 5", True),
        (Ratio(4.999, 5), "at least 5", False),
        (Ratio(1.3, 1.3, at_most=True), "at most 1.3", True),
        (Ratio(1.301, 1.3, at_most=True), "at most 1.3", False),
        (Ratio(0.0, 0, at_most=True), "at most 0", True),
        (Ratio(7.0), None, None),
    ],
)
def test_a_ratio_is_met_by_what_was_measured_not_by_what_is_shown(ratio, goal, met):
    found = ratio.report()
    assert (found["value"], found["goal"], found["met"]) == (round(ratio.value, 2), goal, met)


def test_measures_take_turns_and_a_ratio_is_of_the_medians_with_the_spread_of_the_rounds():
    calls: list[str] = []
    #: The first round of each does not count.
    figures = {"ours": iter((99.0, 10.0, 30.0, 20.0)), "bare": iter((1.0, 5.0, 10.0, 20.0))}

    def measure(name: str) -> dict[str, float]:
        calls.append(name)
        return {PER_SECOND: next(figures[name])}

    found = by_turns(3, {"ours": lambda: measure("ours"), "bare": lambda: measure("bare")})
    assert calls == ["ours", "bare"] * 4
    assert found.report(", 100 B")["ours, 100 B"] == {PER_SECOND: {"median": 20.0, "least": 10.0, "most": 30.0}}
    ratio = found.ratio(lambda of: of("ours", PER_SECOND) / of("bare", PER_SECOND), 2)
    assert ratio.report() == {"value": 2.0, "least": 1.0, "most": 3.0, "goal": "at least 2", "met": True}


def test_goals_are_of_the_figures_that_were_measured():
    rounds = Rounds()
    for way, drained in ((OUTBOX, 60.0), (POLLED, 120.0)):
        rounds.add(way + goals.RELAY, {DRAINED: drained})
    assert {name: ratio.value for name, ratio in goals.ratios(rounds).items()} == {f"{OUTBOX}: drain to polled": 0.5}


def test_kills_are_judged_by_the_orders_of_the_database_and_what_the_topic_shows_of_them():
    found = faults.compare({1, 2, 3, 4}, Counter({1: 1, 2: 3, 4: 2, 5: 1}))
    assert found == {"orders": 4, "lost": 1, "visible more than once": 2, "visible without an order": 1}


@pytest.mark.parametrize(
    ("arrivals", "sightings", "expected"),
    [
        # Decisions all along, nothing visible from 2 to 5: the first waiting one came at 2.5.
        ([1, 2, 2.5, 3, 4, 5], [1.1, 2.1, 5.1], 2.6),
        # No decisions between 2 and 5. The one at 5 was visible at once, so there is no pause.
        ([1, 2, 5], [1.1, 2.1, 5.1], 0.1),
        # Nothing becomes visible any more: the pause lasts until the end, 10.
        ([1, 2, 3], [1.1], 8.0),
        # Decisions and sightings before the beginning, 0, or after the end do not count.
        ([-5, 1, 11], [-1, 1.1, 30], 0.1),
        ([], [], 0.0),
    ],
)
def test_a_pause_of_a_rolling_restart_is_the_time_in_which_decisions_wait_and_nothing_becomes_visible(
    arrivals: list[float], sightings: list[float], expected: float
) -> None:
    assert longest_pause(arrivals, sightings, 0, 10) == pytest.approx(expected)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The commands of a whole run. In place of the processes: one bench works, one raises, one dies without a word."""
    found = {"raises": {"error": "ValueError: no"}, "works": {"ratios": {"quick": RATIO}}}
    started = []

    def run(command, **_):
        name = command[-1]
        started.append(command[3:])
        if name in found:
            (tmp_path / f"{name}.json").write_text(json.dumps({"benches": {name: found[name]}}))
        return SimpleNamespace(returncode=-9)

    monkeypatch.setattr(program, "_FOLDER", tmp_path)
    monkeypatch.setattr(program, "BENCHES", ("works", "raises", "dies"))
    monkeypatch.setattr(whole_run, "environment", lambda: ABOUT)
    monkeypatch.setattr(whole_run.subprocess, "run", run)
    return started


def test_a_bench_that_fails_loses_no_other_and_the_report_keeps_the_run_before(tmp_path, started, monkeypatch, capsys):
    monkeypatch.setattr(program.sys, "argv", ["tests.bench"])
    (tmp_path / "dies.json").write_text("of an earlier run")
    for before in (None, {"quick": RATIO}):
        assert program.main() == 1
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["failed"] == ["raises", "dies"]
        assert report["benches"]["dies"] == {"error": "it ended with exit code -9"}
        assert report["ratios"] == {"quick": RATIO}
        assert (report["before"] and report["before"]["ratios"]) == before
    assert report["before"]["commit"] == "abc"
    shown = capsys.readouterr().out
    assert "quick  5.2    5      5.5   at least 5  yes  5.2     no" in shown
    assert "\nraises failed: ValueError: no\n" in shown


def test_a_quick_run_takes_every_bench_with_ratios_and_each_knows_its_options(tmp_path, started, monkeypatch):
    monkeypatch.setattr(program.sys, "argv", ["tests.bench", "--quick"])
    program.main()
    assert started == [["--quick", name] for name in program.QUICK]
    # A whole run is compared with a whole run.
    assert (tmp_path / "report-quick.json").exists()
    assert not (tmp_path / "report.json").exists()
    monkeypatch.undo()
    for name, quick in program.QUICK.items():
        assert quick.keys() <= importlib.import_module(f"tests.bench.{name}").OPTIONS.keys(), name
