"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from txbridge.text import counted


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 undecided messages"),
        (1, "1 undecided message"),
        (2, "2 undecided messages"),
        (1_200, "1,200 undecided messages"),
    ],
)
def test_one_is_singular(number, words):
    assert counted(number, "undecided message") == words


def test_a_plural_of_its_own():
    assert (counted(1, "entry", "entries"), counted(3, "entry", "entries")) == ("1 entry", "3 entries")
