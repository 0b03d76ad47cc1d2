"""Identifiers from a door without state. Each answer carries everything that the next request needs."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from json.encoder import encode_basestring_ascii as quoted

from txbridge.murmur2 import hash_key
from txbridge_rocketmq.codes import RequestError, ResponseCode
from txbridge_rocketmq.message import Address

#: Bits of the half offset in the number that a client takes for an offset of the commit log. The partition is above
#: them. A partition of Kafka exceeds them after nine years of a million messages a second.
_OFFSET_BITS = 48
_LARGEST_OFFSET = 2**_OFFSET_BITS - 1
#: Limited, because the number is a Java long, which has a sign.
LARGEST_PARTITION = 2**15 - 1
#: Digits of the id that are HMAC; its fingerprint follows. END has room for 48 bits of it, beside the half offset.
SIGNED_DIGITS = 20
#: A bit that every fingerprint has, and no offset.
_IS_FINGERPRINT = 2 ** (_OFFSET_BITS - 1)
#: Properties of distributed tracing: clients may change them for each attempt.
_is_tracing = re.compile(
    r"traceparent|tracestate|b3|x-b3-.*|uber-trace-id|ot-tracer-.*|sw8.*|x-datadog-.*|__trace_context", re.IGNORECASE
).fullmatch
_keyed = cache(partial(hmac.new, digestmod=hashlib.sha256))


def _sign(secret: bytes, text: bytes) -> bytes:
    """HMAC-SHA256. `hmac.digest` would prepare the key for each text: 3.8 instead of 1.7 µs."""
    signing = _keyed(secret).copy()
    signing.update(text)
    return signing.digest()


def fingerprint_of(
    secret: bytes, client: str, topic: str, body: bytes, flag: int, properties: Mapping[str, str]
) -> str:
    """Fingerprint of a message: the same for all attempts of one client to send it, through any door.

    It tells messages apart to which clients have given the same UNIQ_KEY. `body` is as the application sent it.
    """
    given = [f"[{quoted(name)}, {quoted(properties[name])}]" for name in sorted(properties) if not _is_tracing(name)]
    # JSON has no zero byte, so two messages never give the same bytes. Written by hand: json.dumps takes twice as long.
    parts = f"[{quoted(client)}, {quoted(topic)}, {flag:d}, [{', '.join(given)}]]\0".encode() + body
    return f"{int.from_bytes(_sign(secret, parts)[:6]) | _IS_FINGERPRINT:012X}"


def fingerprint_in(offset: int) -> str:
    """The fingerprint that END carries in place of an offset; empty if it is an offset."""
    return f"{offset:012X}" if offset & _IS_FINGERPRINT else ""


def table_offset(fingerprint: str, half_offset: int) -> int:
    """The number that a client takes for an offset of RocketMQ's table of half messages. END returns it."""
    return int(fingerprint, 16) if fingerprint else half_offset


def transaction_id(secret: bytes, group: str, uniq_key: str, fingerprint: str) -> str:
    """HMAC-SHA256 of group, UNIQ_KEY and fingerprint, and the fingerprint itself: 32 digits.

    It is the same for a client's repeated SEND, through any door. Without the secret it cannot be guessed from
    UNIQ_KEY, which holds an address, a time and a counter.
    """
    return _signed_id(secret, f"{group}\0{uniq_key}", fingerprint)


def delayed_id(secret: bytes, group: str, uniq_key: str, fingerprint: str) -> str:
    """Transaction id of a delayed message without a local transaction. No END and no check of a client names it."""
    # A group has no zero byte, so no UNIQ_KEY leads to the id of a transaction.
    return _signed_id(secret, f"\0delayed\0{group}\0{uniq_key}", fingerprint)


def _signed_id(secret: bytes, text: str, fingerprint: str) -> str:
    digest = _sign(secret, f"{text}\0{fingerprint}".encode()).hex().upper()
    return digest[:SIGNED_DIGITS] + fingerprint


def own_fingerprint(
    make: Callable[[bytes, str, str, str], str], secret: bytes, group: str, uniq_key: str, transaction: str
) -> str | None:
    """The fingerprint in an id that `make`, one of the two above, has made: None if it has not made this id."""
    fingerprint = transaction[SIGNED_DIGITS:]
    is_own = hmac.compare_digest(make(secret, group, uniq_key, fingerprint), transaction)
    return fingerprint if is_own else None


def half_partition(transaction: str, key: bytes | None, partitions: int) -> int:
    """Half partition of a message. All its copies must be in the same one.

    With a key it is the one that every client of txbridge uses. librdkafka could choose it, but the outlet has to know
    it in advance.
    """
    number = int(transaction[:16], 16) if key is None else hash_key(key)
    return number % partitions


def packed(partition: int, offset: int) -> int:
    """Pack partition and offset into the number that a client takes for an offset of the commit log. END returns it."""
    if not (0 <= partition <= LARGEST_PARTITION and 0 <= offset <= _LARGEST_OFFSET):
        raise ValueError(f"partition {partition} and offset {offset} do not fit into one number")
    return partition << _OFFSET_BITS | offset


def unpacked(number: int) -> tuple[int, int]:
    """Return partition (or number of a check) and offset. Raises RequestError."""
    if not 0 <= number < 2**63:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed: no such offset")
    return number >> _OFFSET_BITS, number & _LARGEST_OFFSET


def message_id(store_host: Address, offset: int) -> str:
    """RocketMQ's id of a stored message: where it is stored, and its offset in the commit log."""
    ip, port = store_host
    return f"{ip.packed.hex()}{port:08x}{offset:016x}".upper()
