"""Linter for prose, in pages and in Python files: `python -m tools.prose`, part of `make check`.

In README and docs it reports words of tools/words.toml, findings of proselint, and table cells of 300 characters or
more. Sentences that are too long are reported on the pages that people read first. Code, links and quoted output are
not prose.

In docstrings and comments it reports the same words and all sentences that are too long. The docstring of a module has
to start with a noun phrase that says what is in the module.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from proselint.checks import __register__ as checks
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).parents[1]
_TABLES = {
    # A line may end between two words.
    name: {re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE): instead for pattern, instead in words.items()}
    for name, words in tomllib.loads((Path(__file__).parent / "words.toml").read_text("utf-8")).items()
}
EVERYWHERE, INSTEAD = _TABLES["everywhere"], _TABLES["instead"]
WORDS = EVERYWHERE | INSTEAD
#: Where Python files are. The tests of this module quote what it reports.
CODE = ("compose", "connectors", "examples", "spark", "tests", "tools", "txbridge")
_QUOTES = "tests/unit/project/test_prose.py"
#: The pages that people read first. Their sentences are short.
FIRST = (
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/concepts.md",
    "docs/client.md",
    "docs/operations.md",
    "docs/runbook.md",
    "docs/testing-your-service.md",
)
LONGEST_SENTENCE = 35
LONGEST_CELL = 300
#: Straight quotes and three dots are right in technical prose. "exactly-once" is Kafka's own term.
_NOT_CHECKED = ("typography", "weasel_words", "dates_times", "misc.phrasal_adjectives.ly")
_CODE_BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
_NOT_PROSE = re.compile(r"(`+)(?:(?!\1).)+\1|<[^>\n]+>|(?<=\])\([^)\n]*\)|\{[^}\n]*\}|^:::.*$", re.MULTILINE)


_QUESTION = re.compile(r"(?:As|How|If|Since|So|That|Until|What|When|Where|Whether|Which|Who)\b")
#: Comments for tools and lines that part a module are not prose.
_NO_COMMENT = re.compile(r"noqa|type:|pragma|fmt:|!|-{3}")


class Problem(NamedTuple):
    line: int
    text: str


def prose(markdown: str) -> str:
    """The text with everything that is not prose blanked out; lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    def word(match: re.Match[str]) -> str:
        return "x" * len(match[0]) if match[0].startswith("`") else blank(match)

    return _NOT_PROSE.sub(word, _CODE_BLOCK.sub(blank, markdown))


def forbidden_words(text: str, words: Mapping[re.Pattern[str], str] = WORDS) -> Iterator[Problem]:
    """Words of the vocabulary."""
    for pattern, instead in words.items():
        for match in pattern.finditer(text):
            yield Problem(_line(text, match.start()), f'"{match[0]}": say {instead}')


def long_cells(markdown: str) -> Iterator[Problem]:
    """Cells of tables that should be a paragraph."""
    for number, line in enumerate(markdown.splitlines(), 1):
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                if len(cell.strip()) >= LONGEST_CELL:
                    yield Problem(number, f"a table cell of {len(cell.strip())} characters: {cell.strip()[:40]}...")


def long_sentences(text: str) -> Iterator[Problem]:
    """Sentences of paragraphs and lists with too many words."""
    start = 0
    # Paragraphs and items of lists; headings and tables are left out.
    for block in re.split(r"(\n[ \t]*\n|\n(?=[ \t]*(?:[-*]|\d+\.)[ \t]))", text):
        if not block.lstrip().startswith(("|", "#")):
            for sentence in re.split(r"(?<=[.!?:;])[*_)\"]*\s+(?=[A-Z(*\"x_\[])", block):
                if (count := len(re.findall(r"\w[\w'-]*", sentence))) > LONGEST_SENTENCE:
                    where = start + block.index(sentence)
                    begin = " ".join(sentence.split())[:60]
                    yield Problem(_line(text, where), f"a sentence of {count} words: {begin}...")
        start += len(block)


def of_proselint(text: str) -> Iterator[Problem]:
    """What proselint has to say."""
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(checks)
    for found in LintFile("page", text).lint(DEFAULT):
        result = found.check_result
        # A heading and the first word below it are no repetition, and neither are two pieces of code.
        is_illusion = result.check_path == "lexical_illusions" and re.search(r"\n|\bx", result.message)
        if not (is_illusion or result.check_path.startswith(_NOT_CHECKED)):
            yield Problem(found.pos[0], f"{result.check_path}: {result.message}")


def problems(name: str, markdown: str) -> list[Problem]:
    """Everything to be improved on a page."""
    text = prose(markdown)
    found = [*forbidden_words(text), *long_cells(markdown), *of_proselint(text)]
    if name in FIRST:
        found += long_sentences(text)
    return sorted(found)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node, clean=False)
        ):
            yield node.body[0].lineno, text


def comments(python: str) -> Iterator[tuple[int, str]]:
    """First line and text of each comment. Comments on lines of their own, one below the other, are one text."""
    first, block, column = 0, list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(python).readline):
        text = re.sub(r"^#:? ?", "", token.string)
        if token.type != tokenize.COMMENT or _NO_COMMENT.match(text):
            continue
        (line, at), alone = token.start, token.line.lstrip().startswith("#")
        if not (block and alone and at == column and line == first + len(block)):
            if block:
                yield first, "\n".join(block)
            first, block, column = line, [], at if alone else -1
        block.append(text)
    if block:
        yield first, "\n".join(block)


def in_code(python: str) -> list[Problem]:
    """Everything to be improved in a Python file. A few words are reported in its messages, too."""
    tree = ast.parse(python)
    found = list(forbidden_words(python, EVERYWHERE))
    for line, text in (*docstrings(tree), *comments(python)):
        plain = prose(text)
        problems_of_text = (*forbidden_words(plain, INSTEAD), *long_sentences(plain))
        found += [Problem(line + problem.line - 1, problem.text) for problem in problems_of_text]
    title = ast.get_docstring(tree) or ""
    if question := _QUESTION.match(title):
        found.append(
            Problem(1, f'"{question[0]}": a module docstring starts with a noun phrase that says what is in it')
        )
    return sorted(found)


def main() -> int:
    """Print the problems of all pages and Python files. The exit code is 1 if there are any."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    code = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")) if not path.match(_QUOTES)]
    count = 0
    for path in [*pages, *code]:
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        for problem in in_code(text) if path.suffix == ".py" else problems(name, text):
            sys.stdout.write(f"{name}:{problem.line}: {problem.text}\n")
            count += 1
    return 1 if count else 0


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


if __name__ == "__main__":
    sys.exit(main())
