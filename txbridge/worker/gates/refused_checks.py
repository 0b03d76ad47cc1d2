"""Check requests that a check topic refuses one by one: too large for it, or without the key that compaction wants.

Each attempt aborts a Kafka transaction. So a check that was refused by itself is seldom offered again: per topic one
message at a time, after a pause that doubles up to a minute. While it is not known which of its checks a topic refuses,
it is in quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass

from txbridge.backoff import Backoff
from txbridge.core.half_entry import HalfEntry
from txbridge.core.names import Names
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import InTurn
from txbridge.kafka.environment import OUTSIDE, Outside

#: Pause between the first two attempts at a topic, and the longest pause. An operator who has raised the topic's limit
#: sees the effect within a minute.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0


@dataclass(slots=True)
class _Refusing:
    """A check topic that has refused a record."""

    reason: str
    #: Size of the smallest message that was too large for it, if one was.
    size: int | None
    next_probe: float
    backoff: Backoff


class RefusedChecks:
    """Answers from memory whether a check can be offered to its topic. Not thread-safe."""

    def __init__(self, outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._topics: dict[str, _Refusing] = {}
        #: Reasons by half offset, for checks that were refused in an aborted transaction and are not yet recorded in
        #: OFFSET.
        self._refused: dict[int, str] = {}
        #: Half offsets of the messages whose check was refused.
        self._proven: set[int] = set()

    def obstacle_of_check(self, entry: HalfEntry, topic: str) -> str | None:
        """Reason why this message cannot be checked now, or None."""
        if not self._topics:
            # Nearly always.
            return None
        why = self._refused.get(entry.offset)
        if why is not None:
            if entry.error is not None:
                # OFFSET has a refusal already, and only memory keeps the repetition. Otherwise `on_committed` follows.
                del self._refused[entry.offset]
            return why
        refusing = self._topics.get(topic)
        if refusing is None:
            return None
        now = self._outside.monotonic()
        if not self._is_hopeless(entry, refusing):
            return None
        if now < refusing.next_probe:
            return InTurn(refusing.reason)
        refusing.next_probe = now + refusing.backoff.next()
        return None

    def note_refusal(self, entry: HalfEntry, topic: str, reason: str, *, too_large: bool) -> None:
        """Note that the topic refuses this check; `too_large`: for its size."""
        self._refused[entry.offset] = reason
        known, now = self._topics.get(topic), self._outside.monotonic()
        if known is None:
            known = self._topics[topic] = _Refusing(
                reason, None, now + _FIRST_PAUSE_S, Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            )
        known.reason = reason
        self._proven.add(entry.offset)
        if too_large:
            known.size = entry.size if known.size is None else min(known.size, entry.size)

    def on_committed(self, draft: Draft, names: Names) -> None:
        """Note what is committed: OFFSET has the refusals, checks were taken, messages are finished."""
        for entry in draft.unchecked:
            self._refused.pop(entry.offset, None)
        if self._refused or self._proven:
            for _, offsets in draft.ops():
                for offset in offsets:
                    self._refused.pop(offset, None)
                    self._proven.discard(offset)
        for entry in draft.checks if self._topics or self._proven else ():
            topic = names.check(entry.group)
            refusing = self._topics.get(topic)
            if refusing is not None and self._is_hopeless(entry, refusing):
                # A refusal was expected: the topic takes such checks again.
                del self._topics[topic]
            self._proven.discard(entry.offset)

    def _is_hopeless(self, entry: HalfEntry, refusing: _Refusing) -> bool:
        """Whether the topic would refuse this check again, as far as is known."""
        return entry.offset in self._proven or (refusing.size is not None and entry.size >= refusing.size)
