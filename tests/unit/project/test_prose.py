"""The linter of the pages: what it reports, and what is no prose."""

from __future__ import annotations

import pytest

from tools.prose import LONGEST_SENTENCE, in_code, problems

WORDS = [f"w{number}" for number in range(LONGEST_SENTENCE + 1)]


def lines(name: str, markdown: str) -> list[int]:
    return [problem.line for problem in problems(name, markdown)]


@pytest.mark.parametrize("text", ["It can not work.", "It waits in vain.", "Whoever asks.", "It is very unique."])
def test_words_of_the_vocabulary_and_cliches_are_reported_with_their_line(text: str) -> None:
    assert lines("docs/limits.md", f"# Title\n\nGood.\n{text}\n") == [4]


@pytest.mark.parametrize(
    "text",
    [
        "`can not`",
        "```text\ncan not\n```",
        "  ```text\n  can not\n  ```",
        "[page](can%20not.md)",
        "<can not>",
        "::: can not",
    ],
)
def test_code_and_links_are_no_prose(text: str) -> None:
    assert lines("docs/limits.md", f"# Title\n\n{text}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        '"""It can not work."""',
        "# It can not work.",
        '"""It can\n    not work."""',
        "    # It can\n    # not work.",
        "    #: It can\n    #: not work.",
        'MESSAGE = "It can not work."',
        "# It waits in vain.",
        "# It waits in\n# vain.",
        "pause()  # It waits in vain.",
    ],
)
def test_words_are_reported_in_code_too(text: str) -> None:
    found = in_code(f"import sys\n{text}\n# A name like can_not_be_read and `in vain` in quotes are right.\n")
    assert [problem.line for problem in found] == [2]


def test_only_a_few_words_are_reported_in_messages() -> None:
    assert in_code('MESSAGE = "It waits in vain."\n') == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""{}."""', 1),
        ("# {}.", 1),
        ("def f():\n    # Short.\n    # {}.\n    pass", 3),
        ("pause()  # {}.", 1),
        ('def f():\n    """Short.\n\n    {}.\n    """', 4),
    ],
)
def test_sentences_are_short_in_code(text: str, line: int) -> None:
    assert [problem.line for problem in in_code(text.format(f"W {' '.join(WORDS)}") + "\n")] == [line]


def test_comments_apart_are_no_long_sentence() -> None:
    half = " ".join(WORDS[: LONGEST_SENTENCE // 2 + 1])
    assert in_code(f"# {half}\n\n# {half}\npause()  # {half}\n# {half}\n") == []


@pytest.mark.parametrize(
    ("title", "count"),
    [("What a door is told.", 1), ("Whether brokers answer.", 1), ("The options of a door.", 0), ("Whatever.", 0)],
)
def test_a_module_says_what_is_in_it(title: str, count: int) -> None:
    assert len(in_code(f'"""{title}"""\n\n\ndef f():\n    """Whether it works."""\n')) == count


def test_a_cell_has_less_than_300_characters() -> None:
    page = "| a | b |\n| --- | --- |\n| x | {} |\n"
    assert lines("docs/limits.md", page.format("y" * 299)) == []
    assert lines("docs/limits.md", page.format("y" * 300)) == [3]


def test_sentences_are_short_on_the_pages_that_people_read_first() -> None:
    page = f"# Title\n\nShort.\n\n- Short. W{' '.join(WORDS)}.\n- Short.\n"
    assert len(problems("docs/quickstart.md", page)) == 1
    assert "36 words" in problems("docs/quickstart.md", page)[0].text
    assert problems("docs/limits.md", page) == []


def test_short_sentences_below_each_other_are_no_long_one() -> None:
    half = " ".join(WORDS[: LONGEST_SENTENCE // 2 + 1])
    assert problems("README.md", f"# Title\n\n- {half}\n- {half}\n\n{half}\n\n{half}. The {half}.\n") == []
