"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from txbridge.text import counted, one_line, printable


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe …", "größe …"),
        ("\x1b[31mred", "\\x1b[31mred"),
        # C1: one character that begins a sequence, as ESC [ does.
        ("\x9b31m", "\\x9b31m"),
        # It reverses the order of what follows.
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("a\r\nb", "a\\r\nb"),
        ("a\u2028b", "a\\u2028b"),
    ],
)
def test_printable_text_controls_no_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n")
