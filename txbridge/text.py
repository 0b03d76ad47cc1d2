"""Text for people: time spans, numbers with their nouns, and text of users without control characters."""

from __future__ import annotations

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000


def duration(ms: int) -> str:
    """Return a time span in its two largest units, as `3d 4h`. Below a second it is `0s`."""
    parts = [
        f"{ms // unit % size}{name}"
        for unit, size, name in ((_DAY, 10**9, "d"), (_HOUR, 24, "h"), (_MINUTE, 60, "m"), (_SECOND, 60, "s"))
    ]
    while len(parts) > 1 and parts[0].startswith("0"):
        parts.pop(0)
    return " ".join(part for number, part in enumerate(parts[:2]) if number == 0 or not part.startswith("0"))


def plain(text: str, limit: int) -> str:
    """Return text of users on one line of at most `limit` characters, with terminal control characters escaped."""
    clean = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun in the right form, as `1 message` or `1,200 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
