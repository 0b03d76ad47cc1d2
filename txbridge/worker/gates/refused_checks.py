"""Check requests that a check topic refuses one by one: too large for it, or without the key that compaction wants.

Each attempt aborts a Kafka transaction with the messages of others in it. So what was refused by itself is offered
again seldom: per topic one message at a time, after a pause that doubles up to a minute. What was only in the same
batch goes alone the next time, and soon.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txbridge.backoff import Backoff
from txbridge.core.effects import InTurn
from txbridge.core.half_entry import HalfEntry
from txbridge.kafka.environment import OUTSIDE, Outside

#: From the first to the second attempt of a topic, and between later ones: an operator who has raised its limit sees
#: the effect within a minute, and each attempt costs the others about 20 ms.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0
#: After one that went alone was refused, those that are to follow leave the others this time.
_REST_S = 0.5


@dataclass(slots=True)
class _Refusing:
    """A check topic that has refused a record."""

    reason: str
    #: Size of the smallest message that was too large for it, if one was.
    size: int | None
    next_probe: float
    backoff: Backoff
    rests_until: float = 0.0


class RefusedChecks:
    """Answers from memory whether a check can be offered to its topic. Not thread-safe."""

    def __init__(self, outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._topics: dict[str, _Refusing] = {}
        #: Messages whose check was refused in a transaction that was aborted, until the next one says so.
        self._refused: dict[int, str] = {}
        #: Those that were refused when they went alone.
        self._proven: set[int] = set()

    def obstacle(self, entry: HalfEntry, topic: str) -> str | None:
        """Why this message cannot be checked now."""
        if not self._topics:
            # Nearly always.
            return None
        why = self._refused.get(entry.offset)
        if why is not None:
            if entry.error is not None:
                # Only memory keeps that it was refused again; else `noted` follows.
                del self._refused[entry.offset]
            return why
        refusing = self._topics.get(topic)
        if refusing is None:
            return None
        now = self._outside.monotonic()
        if not self._is_hopeless(entry, refusing):
            return None if entry.error is None or now >= refusing.rests_until else InTurn(refusing.reason)
        if now < refusing.next_probe:
            return InTurn(refusing.reason)
        refusing.next_probe = now + refusing.backoff.next()
        return None

    def refuse(self, entry: HalfEntry, topic: str, reason: str, *, too_large: bool | None) -> None:
        """The topic has refused this check: for its size or another reason, or (None) perhaps for one of its batch."""
        self._refused[entry.offset] = reason
        known, now = self._topics.get(topic), self._outside.monotonic()
        if known is None:
            known = self._topics[topic] = _Refusing(
                reason, None, now + _FIRST_PAUSE_S, Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            )
        known.reason, known.rests_until = reason, now + _REST_S
        if too_large is not None:
            self._proven.add(entry.offset)
        if too_large:
            known.size = entry.size if known.size is None else min(known.size, entry.size)

    def noted(self, entries: Iterable[HalfEntry]) -> None:
        """OFFSET tells of these that their check was refused."""
        for entry in entries:
            self._refused.pop(entry.offset, None)

    def sent(self, entry: HalfEntry, topic: str) -> None:
        """Its check was committed: the topic takes what it refused before, or it was none of that kind."""
        refusing = self._topics.get(topic)
        if refusing is not None and self._is_hopeless(entry, refusing):
            del self._topics[topic]
        self._proven.discard(entry.offset)

    def finished(self, offsets: Iterable[int]) -> None:
        """These are not checked any more."""
        if self._refused or self._proven:
            for offset in offsets:
                self._refused.pop(offset, None)
                self._proven.discard(offset)

    def _is_hopeless(self, entry: HalfEntry, refusing: _Refusing) -> bool:
        """Whether it would be refused again, as far as is known."""
        return entry.offset in self._proven or (refusing.size is not None and entry.size >= refusing.size)
