"""The linter of prose: what it reports, and what is no prose."""

from __future__ import annotations

import pytest

from tools.prose import LONGEST_SENTENCE, in_code, problems

WORDS = [f"w{number}" for number in range(LONGEST_SENTENCE + 1)]
HALF = " ".join(WORDS[: LONGEST_SENTENCE // 2 + 1])
TABLE = "| a | b |\n| --- | --- |\n| x | {} |\n"
REFERENCE, READ_FIRST = "docs/limits.md", "docs/quickstart.md"


@pytest.mark.parametrize(
    ("page", "text", "lines"),
    [
        *((REFERENCE, f"Good.\n{text}\n", [4]) for text in ("It can not work.", "It waits in vain.", "Whoever asks.")),
        *(
            (REFERENCE, text, [])
            for text in ("`can not`", "```text\ncan not\n```", "  ```text\n  can not\n  ```", "[page](can%20not.md)")
        ),
        (REFERENCE, "<can not>", []),
        (REFERENCE, "::: can not", []),
        (REFERENCE, TABLE.format("y" * 299), []),
        (REFERENCE, TABLE.format("y" * 300), [5]),
        # Sentences are short on the pages that people read first.
        (READ_FIRST, f"Short.\n\n- Short. W{' '.join(WORDS)}.\n- Short.\n", [5]),
        (REFERENCE, f"Short.\n\n- Short. W{' '.join(WORDS)}.\n- Short.\n", []),
        ("README.md", f"- {HALF}\n- {HALF}\n\n{HALF}\n\n{HALF}. The {HALF}.\n", []),
    ],
)
def test_a_problem_of_a_page_has_its_line(page: str, text: str, lines: list[int]) -> None:
    assert [problem.line for problem in problems(page, f"# Title\n\n{text}")] == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""It can not work."""', [1]),
        ('"""It can\n    not work."""', [1]),
        ("    # It can\n    # not work.", [1]),
        ("    #: It can\n    #: not work.", [1]),
        ("pause()  # It waits in vain.", [1]),
        # A few words are reported in messages, too.
        ('MESSAGE = "It can not work."', [1]),
        ('MESSAGE = "It waits in vain."', []),
        ("# A name like can_not_be_read and `in vain` in quotes are right.", []),
        (f'"""W {" ".join(WORDS)}."""', [1]),
        (f"def f():\n    # Short.\n    # W {' '.join(WORDS)}.\n    pass", [3]),
        (f'def f():\n    """Short.\n\n    W {" ".join(WORDS)}.\n    """', [4]),
        # Comments apart are no long sentence.
        (f"# {HALF}\n\n# {HALF}\npause()  # {HALF}\n# {HALF}", []),
        # A module says what is in it.
        ('"""What a door is told."""', [1]),
        ('"""Whether brokers answer."""', [1]),
        ('"""Whatever."""\n\n\ndef f():\n    """Whether it works."""', []),
    ],
)
def test_a_problem_of_code_has_its_line(text: str, lines: list[int]) -> None:
    assert [problem.line for problem in in_code(text + "\n")] == lines
