"""Malformed records: valid records of every internal topic, damaged in ways that a seed chooses.

Only the core is needed: the property tests and the tests of the audit use the same damage.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from txbridge.core.checkpoint import Checkpoint, encode_ops, offset_headers, op_headers
from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, check_headers, copy_headers, half_headers
from txbridge.core.names import Headers, Names
from txbridge.core.states import Outcome, TransactionState


@dataclass(frozen=True)
class Raw:
    """The arguments for a producer."""

    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True)
class Setting:
    """The place that the records name: only the damage is wrong with them."""

    names: Names = field(default_factory=Names)
    partition: int = 0
    group: str = "group"
    real_topic: str = "orders"
    #: The half offsets in the records are below this.
    half_end: int = 1_000


def _id(rng: Random) -> str:
    return f"{rng.getrandbits(128):032X}"


def _half(setting: Setting, rng: Random) -> Raw:
    headers = half_headers(
        [("user", b"\xff"), ("user", None)],
        transaction_id=_id(rng),
        group=setting.group,
        real_topic=setting.real_topic,
        real_partition=rng.choice([None, 0]),
        immunity_seconds=rng.choice([None, 5]),
        user_timestamp=rng.choice([None, 1_700_000_000_000]),
    )
    return Raw(b"key", rng.randbytes(20), headers)


def _end(setting: Setting, rng: Random) -> Raw:
    """An END with wrong transaction ids, so that it is refused even without damage."""
    entries = [
        DecisionEntry(
            rng.randrange(setting.half_end),
            _id(rng),
            rng.choice(list(Decision)),
            rng.choice([None, 3]),
            rng.choice([None, "100 % é, why"]),
        )
        for _ in range(rng.randint(1, 4))
    ]
    value, headers = encode_end(entries, setting.group, rng.choice([Source.CLIENT, Source.CHECK]), "thief")
    return Raw(None, value, headers)


def _op(setting: Setting, rng: Random) -> Raw:
    [value] = encode_ops(rng.randrange(setting.half_end) for _ in range(rng.randint(1, 5)))
    return Raw(None, value, op_headers(rng.choice(list(Outcome))))


def _checkpoint(setting: Setting, rng: Random) -> Raw:
    half, end, op = (rng.randrange(100) for _ in range(3))
    topics = dict.fromkeys(("half", "end", "op", "offset"), "AAAAAAAAAAAAAAAAAAAAAA")
    value = Checkpoint(half, end, op, topics, "thief", 7, rng.choice([None, 3])).encode()
    return Raw(setting.names.checkpoint_key(setting.partition), value, offset_headers())


def _parked(setting: Setting, rng: Random) -> Raw:
    offset = rng.randrange(setting.half_end)
    state = rng.choice([TransactionState.PENDING, TransactionState.HELD, TransactionState.DISCARDED])
    entry = HalfEntry(
        parked=True,
        offset=offset,
        state=state,
        transaction_id=_id(rng),
        group=setting.group,
        real_topic=setting.real_topic,
        born=1_700_000_000_000,
        size=20,
        checks=1,
        next_due=1_700_000_006_000,
        decided=3 if state is TransactionState.HELD else None,
        error="no topic é" if state is TransactionState.HELD else None,
        reason="EXPIRED" if state is TransactionState.DISCARDED else None,
        discarded_at=(0, 3) if state is TransactionState.DISCARDED else None,
    )
    return Raw(setting.names.parked_key(setting.partition, offset), entry.encode(4), offset_headers())


def _message(setting: Setting, rng: Random) -> HalfMessage:
    raw = _half(setting, rng)
    return HalfMessage.of(
        offset=rng.randrange(setting.half_end),
        transaction_id=_id(rng),
        group=setting.group,
        real_topic=setting.real_topic,
        born=1_700_000_000_000,
        key=raw.key,
        value=raw.value,
        headers=raw.headers,
    )


def _check(setting: Setting, rng: Random) -> Raw:
    half = _message(setting, rng)
    return Raw(half.key, half.value, check_headers(half, setting.partition, rng.randint(1, 15), rng.randrange(100)))


def _discard(setting: Setting, rng: Random) -> Raw:
    half = _message(setting, rng)
    headers = copy_headers(half, setting.partition, 15, rng.randrange(100))
    return Raw(half.key, half.value, [*headers, ("TXB_REASON", rng.choice([b"MAX_CHECKS", b"EXPIRED", b"MALFORMED"]))])


#: A function for each kind of record that makes a valid one.
VALID: dict[str, Callable[[Setting, Random], Raw]] = {
    "half": _half,
    "end": _end,
    "op": _op,
    "checkpoint": _checkpoint,
    "parked": _parked,
    "check": _check,
    "discard": _discard,
}


_HUGE = (b"9" * 19, b"9223372036854775808", b"1" + b"0" * 30, b"9" * 5_000, b"-1", b"1e400", b"0x10", b"\xd9\xa3")


def _truncated(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))] if data else data


def _flipped(data: bytes, rng: Random) -> bytes:
    if not data:
        return b"\x80"
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _huge_number(data: bytes, rng: Random) -> bytes:
    """Replace one of the numbers, or the byte at some place, by a number that is too large."""
    starts = [place for place in range(len(data)) if data[place : place + 1].isdigit()]
    start = rng.choice(starts) if starts else rng.randint(0, len(data))
    end = start
    while data[end : end + 1].isdigit():
        end += 1
    return data[:start] + rng.choice(_HUGE) + data[end:]


_BYTES = (_truncated, _flipped, _huge_number)


def _value(raw: Raw, rng: Random) -> Raw:
    return replace(raw, value=rng.choice(_BYTES)(raw.value or b"", rng))


def _key(raw: Raw, rng: Random) -> Raw:
    return replace(raw, key=rng.choice(_BYTES)(raw.key or b"", rng))


def _other_value(raw: Raw, rng: Random) -> Raw:
    others = (None, b"", b"\xff\x00", b"null", b"[]", b"{}", b"[" * 20_000, b'{"a":' * 20_000, rng.randbytes(30), b"\n")
    return replace(raw, value=rng.choice(others))


def _field(raw: Raw, rng: Random) -> Raw:
    """Remove or replace one field of a JSON value. In other values, replace one of the parts between commas."""
    try:
        data = json.loads(raw.value or b"")
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not data:
        parts = (raw.value or b"").split(b",")
        parts[rng.randrange(len(parts))] = rng.choice([b"", b" 7", b"+7", b"x", *_HUGE])
        return replace(raw, value=b",".join(parts))
    name = rng.choice(list(data))
    odd = (None, True, -1, 1.5, 10**30, "", "\ud800", "x" * 5_000, [], [[]], {}, {"half": 1}, float("inf"))
    if rng.random() < 0.3:
        del data[name]
    else:
        data[name] = rng.choice(odd)
    return replace(raw, value=json.dumps(data).encode())


def _header(raw: Raw, rng: Random) -> Raw:
    """Damage, remove, repeat or null one header, or make it invalid; or change the version; or remove all headers."""
    headers = list(raw.headers)
    if not headers:
        return replace(raw, headers=[("TXB_V", rng.choice([b"1", b"2", None]))])
    place = rng.randrange(len(headers))
    name, value = headers[place]
    what = rng.randrange(7)
    if what == 0:
        del headers[place]
    elif what == 1:
        headers.append((name, rng.choice([value, b"1", None])))
    elif what == 2:
        headers[place] = (name, rng.choice([None, b"", b"\xff\xfe", b"\x00"]))
    elif what == 3:
        headers[place] = (name, rng.choice(_BYTES)(value or b"", rng))
    elif what == 4:
        headers = [(one, b"2" if one == "TXB_V" else was) for one, was in headers]
    elif what == 5:
        headers.append((rng.choice(["TXB_HALF", "TXB_LATER", "TRANSACTION_CHECK_TIMES"]), rng.randbytes(4)))
    else:
        headers = []
    return replace(raw, headers=headers)


_DAMAGE = (_value, _key, _other_value, _field, _header, _header)


def damaged(kind: str, setting: Setting, rng: Random) -> Raw:
    """A valid record with one to three changes. Not every change makes it malformed: the user's bytes may be any."""
    raw = VALID[kind](setting, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        raw = rng.choice(_DAMAGE)(raw, rng)
    return raw
