"""Text for people: times and time spans, numbers with their nouns, and foreign text without control characters."""

from __future__ import annotations

import datetime as dt
import re

from txbridge.errors import UsageError
from txbridge.masking import masked

#: The last millisecond of the year 9999, after which there is no date. Kafka takes any number as a timestamp.
LAST_TIME = 253_402_300_799_999
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS = {"s": _SECOND, "m": _MINUTE, "h": _HOUR, "d": _DAY}
_AGE = re.compile(r"(\d{1,9})([smhd])\Z")


def parse_age(text: str, option: str) -> int:
    """Return the milliseconds of an age such as 90s, 10m, 2h, 3d. Raises UsageError, which names the option."""
    found = _AGE.match(text)
    if found is None:
        raise UsageError(f"{option} takes a number and a unit, as in 90s, 10m, 2h or 3d, not {text[:40]!r}")
    return int(found[1]) * _UNITS[found[2]]


def duration(ms: int) -> str:
    """Return a time span in its two largest units, as `3d 4h`. Below a second it is `0s`."""
    parts = [
        f"{ms // unit % size}{name}"
        for unit, size, name in ((_DAY, 10**9, "d"), (_HOUR, 24, "h"), (_MINUTE, 60, "m"), (_SECOND, 60, "s"))
    ]
    while len(parts) > 1 and parts[0].startswith("0"):
        parts.pop(0)
    return " ".join(part for number, part in enumerate(parts[:2]) if number == 0 or not part.startswith("0"))


def iso_time(ms: int) -> str:
    """Return a time in UTC, as `2026-11-26T10:45:26.656Z`; as `99999999999999999 ms` if it is no date."""
    if not 0 <= ms <= LAST_TIME:
        return f"{ms} ms"
    return f"{dt.datetime.fromtimestamp(ms // 1000, tz=dt.UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"


def printable(text: str) -> str:
    """Return text without secrets, its characters escaped that control a terminal or cannot be seen. Line ends stay."""
    text = masked(text)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def one_line(text: str) -> str:
    """Return printable text without line ends: for a place where a second line would be taken for another message."""
    return printable(text).replace("\n", "\\n")


def plain(text: str, limit: int) -> str:
    """Return text of users on one line of at most `limit` characters, with terminal control characters escaped."""
    clean = one_line(text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun in the right form, as `1 message` or `1,200 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
