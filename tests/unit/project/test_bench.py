"""The pure parts of the benches: goals of ratios, the table, and the handling of a failed bench."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

import tests.bench.__main__ as program
from tests.bench import whole_run
from tests.bench.measure import PER_SECOND, Ratio, Rounds, by_turns, summary
from tests.bench.report import merged, table
from tests.bench.stages import Times, stages

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


def test_a_ratio_is_of_the_medians_and_its_spread_is_that_of_the_rounds():
    rounds = Rounds()
    for ours, bare in ((10.0, 5.0), (30.0, 10.0), (20.0, 20.0)):
        rounds.add("ours", {PER_SECOND: ours})
        rounds.add("bare", {PER_SECOND: bare})
    ratio = rounds.ratio(lambda of: of("ours", PER_SECOND) / of("bare", PER_SECOND), 2)
    assert ratio.report() == {"value": 2.0, "least": 1.0, "most": 3.0, "goal": "at least 2", "met": True}


def test_measures_take_turns_and_the_first_round_does_not_count(capsys):
    calls: list[str] = []

    def measure(name: str) -> dict[str, float]:
        calls.append(name)
        return {PER_SECOND: float(len(calls))}

    found = by_turns(2, {"one": lambda: measure("one"), "two": lambda: measure("two")})
    assert calls == ["one", "two"] * 3
    assert found.median("one", PER_SECOND) == 4.0  # of 3 and 5
    assert found.report(", 100 B") == {
        "one, 100 B": {PER_SECOND: {"median": 4.0, "least": 3.0, "most": 5.0}},
        "two, 100 B": {PER_SECOND: {"median": 5.0, "least": 4.0, "most": 6.0}},
    }
    assert "round 2 of 2" in capsys.readouterr().err


def test_the_stages_of_a_decision_add_up_and_tell_the_wait_for_the_transaction_before():
    first = Times(decided=0.0, end_stored=0.002, op_stored=0.005, seen=0.010)
    # Stored while the first one was being committed, and so in the second Kafka transaction.
    second = Times(decided=0.005, end_stored=0.006, op_stored=0.012, seen=0.020)
    found = stages([first, second])
    assert found == pytest.approx(
        {
            "ms, mean": (10 + 15) / 2,
            "ms, decision to END stored": (2 + 1) / 2,
            "ms, wait for the transaction before": (0 + 4) / 2,
            "ms, worker until OP is stored": (3 + 2) / 2,
            "ms, OP stored to visible": (5 + 8) / 2,
        }
    )


def test_reports_are_merged_with_all_ratios_together_and_the_failed_ones_named():
    reports = {
        "good": {"figures": {"work": {PER_SECOND: summary([2.0])}}, "ratios": {"quick": RATIO}},
        "bad": {"error": "AssertionError: no luck\nand its log"},
    }
    report = merged({"versions": {"kafka": "4"}}, reports)
    assert report == {
        "versions": {"kafka": "4"},
        "benches": reports,
        "ratios": {"quick": RATIO},
        "failed": ["bad"],
        "before": None,
        "changed": [],
    }
    assert json.loads(json.dumps(report)) == report


def test_the_table_has_figures_then_ratios_then_what_failed():
    rounds = Rounds()
    rounds.add("work", {PER_SECOND: 12_345.6, "cpu us, client": 40.0, "cpu us, Kafka": 50.5})
    reports = {
        "good": {
            "figures": rounds.report(),
            "ratios": {
                "quick": RATIO,
                "slow": {"value": 3.0, "least": 2.5, "most": 3.5, "goal": "at most 1", "met": False},
                "told": {"value": 1.25, "least": None, "most": None, "goal": None, "met": None},
            },
        },
        "bad": {"error": "AssertionError: no luck\nand its log"},
    }
    before = {"ratios": {"quick": RATIO | {"value": 4.1, "least": 4.0, "most": 4.99}, "slow": {"value": 3.5}}}
    before["ratios"]["slow"] |= {"least": 3.4, "most": 3.6}
    assert table(merged({}, reports, before)) == (
        "workload    what                    median     least   most\n"
        "good: work  per second              12,346     12,346  12,346\n"
        "good: work  cpu us, client + Kafka  40 + 50.5\n"
        "\n"
        "ratio  value  least  most  goal        met  before  changed\n"
        "quick  5.2    5      5.5   at least 5  yes  4.1     yes\n"
        "slow   3      2.5    3.5   at most 1   no   3.5     no\n"
        "told   1.25   -      -     -           -    -       -\n"
        "\n"
        "bad failed: AssertionError: no luck"
    )


class _Done:
    returncode = -9


class _Benches:
    """Stands in for the processes: the report that each writes, if any, and the started ones with their options."""

    def __init__(self, folder, found):
        self.folder, self.found, self.started = folder, found, []

    def run(self, command, **_):
        name = command[-1]
        self.started.append(command[3:])
        found = self.found.get(name)
        if found is not None:
            (self.folder / f"{name}.json").write_text(json.dumps({"benches": {name: found}}))
        return _Done


@pytest.fixture
def benches(tmp_path, monkeypatch):
    made = _Benches(tmp_path, {"raises": {"error": "ValueError: no"}, "works": {"ratios": {"quick": RATIO}}})
    monkeypatch.setattr(program, "_FOLDER", tmp_path)
    monkeypatch.setattr(program, "BENCHES", ("works", "raises", "dies"))
    monkeypatch.setattr(whole_run, "environment", lambda: ABOUT)
    monkeypatch.setattr(whole_run.subprocess, "run", made.run)
    monkeypatch.setattr(program.sys, "argv", ["tests.bench"])
    return made


def _report(folder):
    return json.loads((folder / "report.json").read_text())


def test_a_bench_that_fails_loses_no_other(tmp_path, benches, capsys):
    """One bench reports its error, one dies without a word. The third is in the report all the same."""
    (tmp_path / "dies.json").write_text("of an earlier run")
    assert program.main() == 1
    report = _report(tmp_path)
    assert report["failed"] == ["raises", "dies"]
    assert report["benches"]["dies"] == {"error": "it ended with exit code -9"}
    assert report["ratios"] == {"quick": RATIO}
    assert "quick  5.2    5      5.5   at least 5  yes  -       -" in capsys.readouterr().out


def test_a_report_keeps_the_figures_of_the_run_before_and_says_what_changed_beyond_noise(tmp_path, benches, capsys):
    benches.found |= {"raises": {"ratios": {}}, "dies": {"ratios": {}}}
    program.main()
    assert (_report(tmp_path)["before"], _report(tmp_path)["changed"]) == (None, [])
    benches.found["works"] = {"ratios": {"quick": RATIO | {"value": 6.0, "least": 5.4, "most": 6.5}}}
    program.main()
    report = _report(tmp_path)
    assert (report["before"]["commit"], report["before"]["python"]) == ("abc", "3.11.2")
    assert report["before"]["ratios"] == {"quick": RATIO}
    # Some rounds of the two runs overlap.
    assert report["changed"] == []
    benches.found["works"] = {"ratios": {"quick": RATIO | {"value": 4.0, "least": 3.9, "most": 4.2}}}
    program.main()
    assert _report(tmp_path)["changed"] == ["quick"]
    assert "yes  6       yes" in capsys.readouterr().out


def test_a_quick_run_takes_every_bench_with_ratios_and_each_knows_its_options(tmp_path, benches, monkeypatch):
    monkeypatch.setattr(program.sys, "argv", ["tests.bench", "--quick"])
    program.main()
    assert benches.started == [["--quick", name] for name in program.QUICK]
    # A whole run is compared with a whole run.
    assert (tmp_path / "report-quick.json").exists()
    assert not (tmp_path / "report.json").exists()
    monkeypatch.undo()
    for name, quick in program.QUICK.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(f"tests.bench.{name}").add_options(parser)
        assert quick.keys() <= vars(parser.parse_args([])).keys(), name


def test_the_page_lists_every_bench():
    page = (Path(__file__).parents[3] / "docs/performance.md").read_text()
    section = page.partition("## Measure it\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(program.BENCHES)


def test_one_bench_writes_its_error_and_ends_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "_FOLDER", tmp_path)
    monkeypatch.setattr(program, "environment", lambda: ABOUT)

    def run(_):
        raise RuntimeError("no luck")

    monkeypatch.setattr("tests.bench.prepare.run", run)
    monkeypatch.setattr(program.sys, "argv", ["tests.bench", "prepare", "--rounds", "2"])
    assert program.main() == 1
    found = json.loads((tmp_path / "prepare.json").read_text())["benches"]["prepare"]
    assert found["error"] == "RuntimeError: no luck"
    assert found["options"]["rounds"] == 2
    assert "prepare failed: RuntimeError: no luck" in capsys.readouterr().out
