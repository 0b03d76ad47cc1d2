"""Records of a relay's progress as docs/protocol.md states them, byte for byte, and the ids of its messages."""

from __future__ import annotations

from decimal import Decimal
from hashlib import blake2b
from uuid import UUID

import pytest

from txbridge.core.headers import MalformedRecordError
from txbridge.core.outbox_progress import BatchProgress, Ownership, decode_progress, encode_batch, hash_of, message_id

FIRST, SECOND, THIRD = "0123456789ABCDEF" + "0" * 16, "B" * 32, "C" * 32
OWNER = "0f" * 16
IDENTITY = b"0123456789abcdef"


def test_the_record_of_the_page():
    value = encode_batch(42, [(17, FIRST, "orders")])
    assert value == b'{"batch":42,"topics":["orders"],"rows":[[17,"0123456789ABCDEF",0]]}'
    assert decode_progress(value) == BatchProgress(42, {17: "0123456789ABCDEF"})


def test_each_topic_is_named_once_and_ids_are_numbers_or_text():
    value = encode_batch(1, [(-(2**63), FIRST, "a"), ("7", SECOND, "b"), (7, THIRD, "a"), ("é", SECOND, "")])
    assert value == (
        b'{"batch":1,"topics":["a","b",""],"rows":[[-9223372036854775808,"0123456789ABCDEF",0],'
        b'["7","BBBBBBBBBBBBBBBB",1],[7,"CCCCCCCCCCCCCCCC",0],["\xc3\xa9","BBBBBBBBBBBBBBBB",2]]}'
    )
    hashes = {-(2**63): hash_of(FIRST), "7": hash_of(SECOND), 7: hash_of(THIRD), "é": "B" * 16}
    assert decode_progress(value) == BatchProgress(1, hashes)


def test_the_record_of_an_owner():
    owned = Ownership(OWNER, 41)
    assert owned.encode() == b'{"owner":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","batch":41}'
    assert decode_progress(owned.encode()) == owned


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"batch":1}',
        b'{"batch":"1","topics":[],"rows":[]}',
        b'{"batch":-1,"topics":[],"rows":[]}',
        b'{"batch":1,"topics":[],"rows":[1]}',
        b'{"batch":1,"topics":[],"rows":[[1,"A"]]}',
        b'{"batch":1,"topics":[],"rows":[[1,2,0]]}',
        b'{"batch":1,"topics":[],"rows":[[[1],"A",0]]}',
        b'{"batch":1,"topics":[],"rows":{"a":1}}',
        b'{"owner":7,"batch":1}',
        b'{"owner":"A"}',
    ],
)
def test_what_no_relay_writes_is_malformed(value):
    with pytest.raises(MalformedRecordError):
        decode_progress(value)


def test_an_id_is_a_hash_of_the_identity_and_what_marshal_writes_of_all_parts():
    # A tuple of four: numbers of 32 bits, bytes and text with their sizes, None.
    data = b"(\x04\x00\x00\x00" + b"i\x11\x00\x00\x00" + b"s\x02\x00\x00\x00\x00v" + b"N" + b"u\x01\x00\x00\x00k"
    expected = blake2b(IDENTITY + data, digest_size=16).hexdigest().upper()
    assert message_id(IDENTITY, (17, b"\x00v", None, "k")) == expected
    assert (len(expected), hash_of(expected)) == (32, expected[:16])
    # An object that is there twice counts as two that are equal.
    text = str(IDENTITY)
    assert message_id(IDENTITY, (text, text)) == message_id(IDENTITY, (text, str(IDENTITY)))


def test_whatever_differs_gives_another_id():
    """NULL, text and bytes that look alike, and parts of which the bytes have moved to the next one."""
    parts = [
        None,
        "None",
        "",
        b"",
        b"None",
        "b''",
        0,
        "0",
        b"0",
        False,
        -0.0,
        UUID(int=1),
        str(UUID(int=1)),
        Decimal(0),
        "é",
        "é".encode(),
    ]
    rows = [("x", one, "y") for one in parts] + [(one, "x", "y") for one in parts]
    rows += [("ab", "c"), ("a", "bc"), (b"ab", b"c"), (b"a", b"bc"), ("abc",), (b"abc",), (b"ab", b"c", None)]
    found = {message_id(identity, row) for row in rows for identity in (IDENTITY, b"another")}
    assert len(found) == 2 * len(rows)
