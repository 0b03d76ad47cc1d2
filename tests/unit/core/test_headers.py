"""Reading of headers from any writer."""

from __future__ import annotations

import pytest

from txbridge.core.headers import MalformedRecordError, OurHeaders, whole_number


def refused(function, *arguments) -> str:
    with pytest.raises(MalformedRecordError) as caught:
        function(*arguments)
    return str(caught.value)


def test_values_are_text():
    ours = OurHeaders([("PGROUP", "größe".encode()), ("trace", b"\xff"), ("empty", b"")])
    assert ours.require_text("PGROUP") == "größe"
    assert ours.find_text("empty") == ""
    assert ours.find_text("REAL_QID") is None
    assert ours.optional_number("REAL_QID") is None


@pytest.mark.parametrize("headers", [None, (), []])
def test_a_record_without_headers(headers):
    assert refused(OurHeaders(headers).require_version, "half message") == (
        "not a record of txbridge: no header TXB_V, so it is no half message"
    )


def test_versions():
    OurHeaders([("TXB_V", b"1")]).require_version("END record")
    assert refused(OurHeaders([("TXB_V", b"2")]).require_version, "END record") == (
        "TXB_V='2' is not a version that this worker knows"
    )
    assert refused(OurHeaders([("TXB_V", b"x" * 10_000)]).require_version, "END record") == (
        "TXB_V='xxxxxxxxxxxxxxxxxxxx' is not a version that this worker knows"
    )
    assert refused(OurHeaders([("TXB_V", b"")]).require_version, "END record") == (
        "TXB_V='' is not a version that this worker knows"
    )


def test_values_that_are_refused():
    ours = OurHeaders(
        [("null", None), ("latin", b"\xe9"), ("twice", b"1"), ("twice", b"1"), ("users", b"1"), ("once", b"1")]
    )
    assert refused(ours.require_text, "absent") == "header absent is missing"
    assert refused(ours.require_text, "null") == "header null is null"
    assert refused(OurHeaders([("TXB_V", None)]).require_version, "END record") == "header TXB_V is null"
    assert refused(ours.find_text, "latin") == "header latin is not UTF-8"
    assert refused(ours.find_text, "twice") == "header twice is there 2 times"
    assert ours.find_text("once") == "1"


def test_an_optional_header_without_a_value_counts_as_absent():
    """A client in another language may write it without a value. No decision is lost because of it."""
    ours = OurHeaders([("null", None), ("other", b"1")])
    assert ours.find_text("null") is None
    assert ours.optional_bytes("null") is None
    assert ours.optional_number("null") is None


def test_a_repetition_does_not_hide_behind_null():
    assert refused(OurHeaders([("a", b"1"), ("a", None)]).find_text, "a") == "header a is there 2 times"


def test_names_beside_the_known_ones_are_listed_once():
    ours = OurHeaders([("a", b"1"), ("k", b"1"), ("b", None), ("a", b"2")])
    assert ours.names_beside({"k", "l"}) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("8", 8), ("007", 7), ("9223372036854775807", 2**63 - 1)],
)
def test_whole_numbers(text, number):
    assert whole_number(text, "it") == number
    assert OurHeaders([("n", text.encode())]).optional_number("n") == number


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", " 1", "1 ", "1_000", "0x10", "1.0", "1e3", "٣", "²", "9223372036854775808", "0" * 20, "9" * 5_000],
)
def test_what_is_not_a_whole_number(text):
    assert refused(whole_number, text, "it") == f"it is not a whole number: {text[:40]!r}"


def test_a_header_that_is_not_a_whole_number():
    assert refused(OurHeaders([("n", b"-1")]).optional_number, "n") == "header n is not a whole number: '-1'"
