"""Figures of the code that should not get worse: `python -m tools.house` prints them, and fails above the limits.

Names are read from the syntax tree: the product's classes, methods and files, without tests.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("txbridge", "connectors", "spark")
#: A method is a command or a question: `note_answer()`, `is_known()`. These are neither.
_PARTICIPLE = re.compile(
    r"\w+(ed|ing)|done|given|gone|heard|held|kept|known|left|lost|made|seen|sent|taken|told|written"
)
#: Names of classes and files by which Django finds them.
_DJANGO = {"Command", "Meta", "Migration", "admin"}
#: Most of each figure. A change may lower a limit, and must not raise it.
LIMITS = {
    "lines of the product": 57_012,
    "lines of the tests": 78_968,
    "words of the pages": 54_743,
    "class names that stand for two things": 2,
    "methods of one word, %": 19,
    "methods named by a participle": 0,
    "file names used three times or more": 2,
}


def main() -> int:
    """Print each figure beside its limit, and what stands behind it with `--names`."""
    found = figures()
    for name, (figure, examples) in found.items():
        mark = "" if figure <= LIMITS[name] else "  ABOVE THE LIMIT"
        print(f"{name:40} {figure:>7,}  at most {LIMITS[name]:>7,}{mark}")
        if "--names" in sys.argv:
            print(f"    {examples}")
    return int(any(figure > LIMITS[name] for name, (figure, _) in found.items()))


def figures() -> dict[str, tuple[int, str]]:
    """Each figure, with the names behind it."""
    files = [file for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py"))]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    classes = [
        node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)
    ]
    names = Counter(name for node in classes if (name := node.name.lstrip("_")) not in _DJANGO)
    twice = {name: count for name, count in names.items() if count > 1}
    methods = [name for node in classes for name in _methods(node)]
    bare = [name for name in methods if "_" not in name.strip("_")]
    participles = [name for name in bare if _PARTICIPLE.fullmatch(name.strip("_"))]
    stems = Counter(file.stem for file in files if file.stem not in {"__init__", *_DJANGO})
    often = {stem: count for stem, count in stems.items() if count > 2}
    return {
        "lines of the product": (_lines(files), ""),
        "lines of the tests": (_lines((ROOT / "tests").rglob("*.py")), ""),
        "words of the pages": (sum(len(page.read_text().split()) for page in pages), ""),
        "class names that stand for two things": (len(twice), _as_text(twice)),
        "methods of one word, %": (round(100 * len(bare) / len(methods)), _as_text(Counter(bare))),
        "methods named by a participle": (len(participles), _as_text(Counter(participles))),
        "file names used three times or more": (len(often), _as_text(often)),
    }


def _methods(node: ast.ClassDef) -> Iterator[str]:
    """Names of methods, without those of Python's own protocols. A property is no command."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.name.startswith("__"):
            decorators = {ast.unparse(decorator) for decorator in one.decorator_list}
            if not decorators & {"property", "cached_property", "functools.cached_property", "override"}:
                yield one.name


def _lines(files: Iterator[Path] | list[Path]) -> int:
    return sum(file.read_text().count("\n") for file in files)


def _as_text(names: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(names.items(), key=lambda item: (-item[1], item[0])))


if __name__ == "__main__":
    sys.exit(main())
