"""Identifiers from a door without state. Each answer carries everything that the next request needs."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from txbridge_rocketmq.codes import RequestError, ResponseCode
from txbridge_rocketmq.message import Address

#: Bits of the half offset in the number that a client takes for an offset of the commit log. The partition is above
#: them. A partition of Kafka exceeds them after nine years of a million messages a second.
_OFFSET_BITS = 48
_LARGEST_OFFSET = 2**_OFFSET_BITS - 1
#: Limited, because the number is a Java long, which has a sign.
LARGEST_PARTITION = 2**15 - 1


def transaction_id(secret: bytes, group: str, uniq_key: str) -> str:
    """Half of the HMAC-SHA256 of group and UNIQ_KEY.

    It is the same for a client's repeated SEND, through any door. Without the secret it cannot be guessed from
    UNIQ_KEY, which holds an address, a time and a counter.
    """
    return _half_of_digest(secret, f"{group}\0{uniq_key}")


def delayed_id(secret: bytes, group: str, uniq_key: str) -> str:
    """Transaction id of a delayed message without a local transaction. No END and no check of a client names it."""
    # A group has no zero byte, so no UNIQ_KEY leads to the id of a transaction.
    return _half_of_digest(secret, f"\0delayed\0{group}\0{uniq_key}")


def _half_of_digest(secret: bytes, text: str) -> str:
    return hmac.digest(secret, text.encode(), hashlib.sha256)[:16].hex().upper()


def new_uniq_key() -> str:
    """Make a UNIQ_KEY for a message without one, as a broker of RocketMQ does."""
    return secrets.token_hex(16).upper()


def half_partition(transaction: str, partitions: int) -> int:
    """Half partition of a message without a key. All its copies must be in the same one."""
    return int(transaction[:16], 16) % partitions


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
