"""Frames of several messages: what is written can be read, and any other value is at worst malformed."""

from __future__ import annotations

import contextlib
import string

from hypothesis import given
from hypothesis import strategies as st

from tests.support.message_frames import delivered_id
from txbridge.core import names
from txbridge.core.half_message import delivered_copies, half_headers, parse_half
from txbridge.core.headers import MalformedRecordError
from txbridge.core.message_frames import FramedMessage, common_time, encode_frames, parse_frames
from txbridge.core.names import Names

TOPICS = st.text(string.ascii_letters + "._-", min_size=1, max_size=20).filter(
    lambda name: names.is_topic(name) and not Names().is_forbidden(name)
)
DATA = st.none() | st.binary(max_size=20)
HEADER_NAMES = st.text(max_size=12).filter(lambda name: not names.is_reserved_header(name) and "\0" not in name)


def _without_a_common_time(messages: list[FramedMessage]) -> list[FramedMessage]:
    """One time for all is not in the frames."""
    return [one._replace(deliver_at=None) for one in messages] if common_time(messages)[0] else messages


MESSAGES = st.lists(
    st.builds(
        FramedMessage,
        TOPICS,
        DATA,
        DATA,
        st.lists(st.tuples(HEADER_NAMES, DATA), max_size=3),
        st.none() | st.integers(0, 2**31 - 1),
        st.none() | st.integers(1, 2**63 - 1),
        st.none() | st.integers(1, 9),
    ),
    min_size=1,
    max_size=6,
).map(_without_a_common_time)


@given(MESSAGES)
def test_what_is_written_is_read(messages):
    assert parse_frames(encode_frames(messages), len(messages)) == messages


@given(MESSAGES, st.integers(0, 1_000))
def test_another_number_of_frames_is_never_read(messages, count):
    if count != len(messages):
        with contextlib.suppress(MalformedRecordError):
            raise AssertionError(parse_frames(encode_frames(messages), count))


@given(MESSAGES, st.data())
def test_what_is_cut_off_is_never_read(messages, data):
    value = encode_frames(messages)
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    with contextlib.suppress(MalformedRecordError):
        raise AssertionError(parse_frames(cut, len(messages)))


@given(
    st.none()
    | st.binary(max_size=80)
    | st.binary(max_size=80).map(lambda rest: rest[:1] and bytes([1 + rest[0] % 2]) + rest),
    st.integers(-1, 3),
)
def test_any_bytes_are_messages_or_malformed(value, count):
    with contextlib.suppress(MalformedRecordError):
        messages = parse_frames(value, count)
        # Messages that were read can be written and read again. (A timestamp of 0 stands for none.)
        assert parse_frames(encode_frames(messages), count) == messages


@given(MESSAGES, st.data())
def test_frames_in_which_a_byte_is_another_are_messages_or_malformed(messages, data):
    value = bytearray(encode_frames(messages))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedRecordError):
        parse_frames(bytes(value), len(messages))


@given(MESSAGES)
def test_all_messages_are_delivered_in_their_order(messages):
    first = messages[0]
    ours = half_headers([], transaction_id="A" * 32, group="g", real_topic=first.topic, messages=len(messages))
    half = parse_half(3, 77, first.key, encode_frames(messages), ours, Names())
    identity = delivered_id("A" * 32, [one.deliver_at or -1 for one in messages])
    ours = [("UNIQ_KEY", identity.encode()), ("TXB_HALF", b"1:3")]
    assert list(delivered_copies(half, 1)) == [
        (
            *(3, one.topic, one.value, one.key, -1 if one.partition is None else one.partition),
            77 if one.timestamp is None else one.timestamp,
            [*one.headers, *ours, ("TXB_MESSAGE", f"{number}/{len(messages)}".encode())],
        )
        for number, one in enumerate(messages, 1)
    ]
