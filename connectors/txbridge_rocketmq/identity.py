"""Names that a door without a memory gives: each answer carries what the next request needs."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from txbridge_rocketmq.codes import RequestError, Response
from txbridge_rocketmq.message import Address

#: Where the half offset ends and the partition begins, in the number that a client takes for an offset of the commit
#: log. A partition of Kafka would have to be filled with a million messages a second for nine years to pass it.
_OFFSET_BITS = 48
_LARGEST_OFFSET = 2**_OFFSET_BITS - 1
#: A Java long has a sign.
LARGEST_PARTITION = 2**15 - 1


def transaction_id(secret: bytes, group: str, uniq_key: str) -> str:
    """Half of the HMAC-SHA256 of group and UNIQ_KEY.

    It is the same for a client's repeated SEND, whichever door it reaches. Without the secret nobody guesses it from
    UNIQ_KEY, which holds an address, a time and a counter.
    """
    return hmac.digest(secret, f"{group}\0{uniq_key}".encode(), hashlib.sha256)[:16].hex().upper()


def new_uniq_key() -> str:
    """For a client that gives its message none, as a broker of RocketMQ does it."""
    return secrets.token_hex(16).upper()


def half_partition(transaction: str, partitions: int) -> int:
    """For a message without a key: copies of it must meet in one half partition."""
    return int(transaction[:16], 16) % partitions


def packed(partition: int, offset: int) -> int:
    """What stands for an offset of the commit log. It comes back with END."""
    if not (0 <= partition <= LARGEST_PARTITION and 0 <= offset <= _LARGEST_OFFSET):
        raise ValueError(f"partition {partition} and offset {offset} do not fit into one number")
    return partition << _OFFSET_BITS | offset


def unpacked(number: int) -> tuple[int, int]:
    """Partition (or number of a check) and offset. Raises RequestError."""
    if not 0 <= number < 2**63:
        raise RequestError(Response.SYSTEM_ERROR, "Find prepared transaction message failed: no such offset")
    return number >> _OFFSET_BITS, number & _LARGEST_OFFSET


def message_id(store_host: Address, offset: int) -> str:
    """RocketMQ's id of a stored message: where it is stored, and its offset in the commit log."""
    ip, port = store_host
    return f"{ip.packed.hex()}{port:08x}{offset:016x}".upper()
