"""Text for people: numbers with their nouns, time spans, and foreign text."""

from __future__ import annotations

import pytest

from txbridge.text import counted, duration, iso_time, one_line, plain, printable


def test_a_number_has_its_noun_in_the_right_form():
    assert [counted(number, "message") for number in (0, 1, 2, 1_200)] == [
        *("0 messages", "1 message", "2 messages", "1,200 messages"),
    ]
    assert (counted(1, "entry", "entries"), counted(3, "entry", "entries")) == ("1 entry", "3 entries")


def test_a_time_that_is_no_date_is_shown_as_a_number():
    # Where a topic takes the producer's time, it takes any number.
    assert [iso_time(ms) for ms in (1_700_000_000_456, 253_402_300_799_999, 253_402_300_800_000, -1)] == [
        *("2023-11-14T22:13:20.456Z", "9999-12-31T23:59:59.999Z", "253402300800000 ms", "-1 ms"),
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (999, "0s"),
        (1_000, "1s"),
        (61_000, "1m 1s"),
        (120_000, "2m"),
        (3_600_000, "1h"),
        (3_661_000, "1h 1m"),
        (90_000_000, "1d 1h"),
        (8_640_000_000, "100d"),
    ],
)
def test_a_duration_in_its_two_largest_units(ms, text):
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("plain", 10, "plain"),
        ("a\x1b[31mb\nc", 40, "a\\x1b[31mb\\nc"),
        ("x" * 11, 10, "x" * 9 + "…"),
        ("日本", 10, "日本"),
    ],
)
def test_text_of_users_can_not_steer_the_terminal(text, limit, shown):
    assert plain(text, limit) == shown


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
