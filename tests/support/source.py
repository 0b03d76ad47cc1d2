"""The project's own Python files as syntax trees, for the tests of what the code may contain."""

from __future__ import annotations

import ast
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
