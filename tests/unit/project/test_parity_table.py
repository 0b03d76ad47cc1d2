"""Checks of tests/parity.csv: every behaviour has its row, every verdict is legal, every named test exists."""

from __future__ import annotations

import ast
import csv
import itertools
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tools.tables import PARITY

TESTS = Path(__file__).parents[2]
#: docs/parity.md leads here, and has a heading for each letter.
PAGE = TESTS.parent / "docs" / "parity.md"

#: All behaviours of RocketMQ that need a row, in this order.
KEYS = {
    "C": "1a 1b 1c 2 3 4 5 6 7 8 9 10 11 12 13",
    "D": "1 2 3 4a 4b 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23",
    "E": "1a 1b 1c 2 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9 3.10 3.11 3.12 3.13 3.14 4 5a 5b 5c 6a 6b 6c 6d "
    "7a 7b 7c 7d 7e 7f 8",
    "F": "1a 1b 2 3 4 5 6 7",
    "G": "1 2 3 4 5 6 7 8",
    "H": "1 2 3 4 5 6 7 8",
    "I": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
    "M": "399 7415 8313 9791 253",
}
#: Issues of apache/rocketmq that one of these rows answers.
ISSUES = (
    "386 388 477 481 544 546 548 598 615 1390 1517 1519 1540 1543 1544 1565 1568 1694 2133 2360 2694 2971 3617 3620 "
    "3885 4343 4435 5574 6401 7240 7567 7709 8003 8158 8311 9320 9430 9500 9523 9640 9786 9787 9923 10199 10797 10966"
)
#: Verdicts that need a test, and those that need a reason instead.
SHOWN = ("same", "better", "different")
EXPLAINED = ("not on Kafka", "not yet")


with PARITY.open(encoding="utf-8", newline="") as table:
    ALL = list(csv.DictReader(table))


@cache
def known_tests(path: Path) -> frozenset[str]:
    """Names of all tests in a file, with parameters where pytest's ids can be derived from the source."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
            ids = [made for decorator in node.decorator_list if (made := ids_of(decorator)) is not None]
            # pytest puts the decorator next to the function first.
            found |= {f"{node.name}[{'-'.join(chosen)}]" for chosen in itertools.product(*reversed(ids)) if chosen}
    return frozenset(found)


def ids_of(decorator: ast.expr) -> list[str] | None:
    """The ids that pytest gives to the values of a parametrize decorator. None for others, and for computed values."""
    if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize"):
        return None
    if any(keyword.arg == "ids" for keyword in decorator.keywords):
        return None
    try:
        values = [value if isinstance(value, tuple) else (value,) for value in ast.literal_eval(decorator.args[1])]
    except ValueError:
        return None
    if not all(isinstance(one, str | int | float | None) for value in values for one in value):
        return None
    return ["-".join(map(str, value)) for value in values]


def test_every_behaviour_has_its_row_and_only_one():
    keys = [f"{letter}.{number}" for letter, numbers in KEYS.items() for number in numbers.split()]
    assert [row["key"] for row in ALL] == keys
    assert re.findall(r"^<!-- table: parity-(.) -->$", PAGE.read_text(), re.MULTILINE) == list(KEYS)


def test_every_issue_is_answered_by_a_row():
    assert {issue for row in ALL for issue in row["issues"].split()} == set(ISSUES.split())


@pytest.mark.parametrize("row", ALL, ids=lambda row: row["key"])
def test_every_row_says_something_and_its_verdict_is_legal(row):
    verdict, _, reason = row["verdict"].partition(": ")
    assert row["rocketmq"]
    if verdict in EXPLAINED:
        assert len(reason) > 10, "a reason is needed"
    else:
        assert verdict in SHOWN
        assert not reason, "the reason of a difference stands in the column of txbridge"
        assert row["txbridge"]
        assert row["tests"], "a test has to show it"


@pytest.mark.parametrize("row", [row for row in ALL if row["tests"]], ids=lambda row: row["key"])
def test_every_test_that_is_named_exists(row):
    for named in row["tests"].split():
        shape = re.fullmatch(r"((?:unit|integration|property)/[a-z_/]+\.py)::(test_\w+(?:\[.+\])?)", named)
        assert shape, f"{named} is not `path::test`"
        path = TESTS / shape[1]
        assert path.is_file(), f"there is no tests/{shape[1]}"
        assert shape[2] in known_tests(path), f"there is no {shape[2]} in tests/{shape[1]}"


def test_every_test_against_rocketmqs_defects_is_named():
    """Each of these tests must be named in a row: otherwise its purpose is unknown."""
    of_rows = [Counter(row["tests"].split()) for row in ALL]
    assert all(count == 1 for row in of_rows for count in row.values()), "a test is named twice in a row"
    file = "integration/test_better_than_rocketmq.py"
    assert {f"{file}::{test}" for test in known_tests(TESTS / file) if "[" not in test} <= set().union(*of_rows)
