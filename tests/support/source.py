"""The project's own Python files as syntax trees, and the listings of its pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file. Several tests look at each."""
    return ast.parse(file.read_text("utf-8"))


def nodes_of(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    """Each node of the syntax trees below these folders, with the path of its file."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            yield from ((path, node) for node in ast.walk(tree_of(file)))


def calls_in(*folders: str) -> Iterator[tuple[str, ast.Call]]:
    """Each call below these folders, with the path of its file."""
    for path, node in nodes_of(*folders):
        if isinstance(node, ast.Call):
            yield path, node


def listings(page: str, language: str) -> list[str]:
    """The listings of a page of docs/ in this language."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def programs_of(page: str) -> dict[str, str]:
    """Its listings whose first line is the name of a file, by that."""
    named = (re.match(r"# ([\w./]+)\n(.*)", one, re.DOTALL) for one in listings(page, "python"))
    return {one[1]: one[2] for one in named if one}
