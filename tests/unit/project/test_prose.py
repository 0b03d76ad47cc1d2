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
    ],
)
def test_a_few_words_are_reported_in_code_too(text: str) -> None:
    found = in_code(
        f'import sys\n{text}\n# In vain: "cannot" is right, and a name like can_not_be_read is none of it.\n'
    )
    assert [problem.line for problem in found] == [2]


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
