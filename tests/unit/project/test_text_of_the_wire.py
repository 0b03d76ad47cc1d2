"""Text that others have written is split by named characters, not by the 25 that count as spaces in Unicode."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
WITHOUT_ARGUMENTS = {"split", "rsplit", "strip", "lstrip", "rstrip", "splitlines", "isspace", "isdecimal", "isnumeric"}
#: A person writes these: a file with the secret, and options of the command.
OF_PERSONS = {"connectors/txbridge_rocketmq/door_options.py"}


def follows_unicode(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and not node.args and node.func.attr in WITHOUT_ARGUMENTS


def test_no_text_of_the_wire_is_read_as_unicode_likes() -> None:
    files = [
        file for folder in ("txbridge/core", "connectors/txbridge_rocketmq") for file in (ROOT / folder).rglob("*.py")
    ]
    found = [
        f"{file.relative_to(ROOT).as_posix()}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if follows_unicode(node) and file.relative_to(ROOT).as_posix() not in OF_PERSONS
    ]
    assert found == []
