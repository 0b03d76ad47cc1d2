"""Lanes: a topic that has refused records has one, in which messages wait for Kafka transactions of their own. Pure.

One refused record aborts a Kafka transaction with everything in it. So after a refusal new commits for the topic are
held, which costs the others nothing. The held ones are tried in *probes*: Kafka transactions with messages of this
topic alone. A probe that is refused names its culprits, or is tried again with a quarter of its messages, until a
single one is the culprit. Between refused probes the others have most of the time, however many records are refused.

`now` is monotonic (s).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from txbridge.backoff import Backoff
from txbridge.core.half_entry import HalfEntry
from txbridge.core.plan.effects import InTurn

#: New commits are held this long (s) after a refusal, twice as long after each further one. With less, a topic that
#: refuses something all the time would abort the transactions of others often: beside 50 such topics they wait for 4 s
#: with 2 s, and for 2 s with this. With more, every message of a busy topic would be held because of one.
_FIRST_CLOSED_S = 4.0
_LONGEST_CLOSED_S = 20.0
#: Pause (s) after a topic took nothing at all, and between attempts at messages that were refused by themselves. An
#: operator who has corrected the topic sees the effect within a minute.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0
#: A refused probe takes at most this part (1/n) of a partition's time. The rest after it is at least this long (s). An
#: abort takes about 150 ms: 60 ms for a new producer, the others for the proof that nobody else wrote.
_SHARE = 4
_LEAST_REST_S = 0.5
#: Messages that go together to a topic at most, and the factor by which the number falls and rises.
_MOST_TOGETHER = 1_000
_STEP = 4
#: Messages that a lane knows, of each kind. Others are held with their back-off, and come later. A Kafka transaction
#: has fewer (11,000), so that what is known of its messages is known until it is drafted anew.
_MOST_WAITING = 20_000
#: A lane that was not used for this long (s) is gone. Held messages are tried again within a minute.
_UNUSED_S = 120.0


class Probe(NamedTuple):
    """Held messages of one topic for a Kafka transaction of their own."""

    topic: str
    #: Half offsets.
    offsets: list[int]


@dataclass(slots=True)
class TopicLane:
    """What is known of a topic that has refused something, and the messages that wait for it."""

    reason: str = ""
    #: New commits are held until this time; if it is infinite, until the topic has taken what waits.
    closed_until: float = -inf
    #: Nothing is tried before this time, and nothing that was refused by itself before the second.
    next_try: float = -inf
    retry_at: float = -inf
    used: float = 0.0
    #: Number of messages that may go together, and of those that were refused by themselves. The latter begin with one,
    #: or the same culprits would always come with those that the topic takes now.
    together: int = _MOST_TOGETHER
    retried_together: int = 1
    #: The smallest size (bytes) that the topic has refused as too large.
    too_large: int = sys.maxsize
    closing: Backoff = field(default_factory=lambda: Backoff(_FIRST_CLOSED_S, _LONGEST_CLOSED_S))
    pausing: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    retrying: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    #: Half offsets that wait for a probe, in their order: never refused by themselves, and refused before.
    waiting: dict[int, None] = field(default_factory=dict)
    again: dict[int, None] = field(default_factory=dict)
    #: Reasons, by half offset, of the messages that were refused by themselves, or would be.
    refused: dict[int, str] = field(default_factory=dict)

    def is_hopeless(self, entry: HalfEntry) -> bool:
        """Whether the topic would refuse this message again, as far as is known."""
        return entry.offset in self.refused or entry.size >= self.too_large

    def set_apart(self, offset: int, reason: str) -> None:
        self.waiting.pop(offset, None)
        if len(self.refused) >= _MOST_WAITING:
            del self.refused[next(iter(self.refused))]
        self.refused[offset] = reason

    def forget(self, offsets: AbstractSet[int]) -> None:
        known: list[dict[int, Any]] = [self.waiting, self.again, self.refused]
        for one in filter(None, known):
            # As many steps as the smaller has: each commit beside a lane leaves out all that it has finished.
            few, many = sorted((one.keys(), offsets), key=len)
            for offset in [offset for offset in few if offset in many]:
                del one[offset]

    def pause_retries(self, now: float) -> None:
        self.retry_at = now + self.retrying.next()


class TopicLanes:
    """The lanes of a partition. Not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[str, TopicLane] = {}
        self._rests_until = -inf

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __contains__(self, topic: str) -> bool:
        """Whether messages for this topic have to be looked at one by one."""
        return topic in self._lanes

    def lane_of(self, topic: str, reason: str, now: float) -> TopicLane:
        """The lane of this topic, made if there is none; a new one is open."""
        lane = self._lanes.setdefault(topic, TopicLane())
        lane.reason, lane.used = reason, now
        return lane

    def reason_to_hold(self, topics: Iterable[str], now: float) -> str | None:
        """Reason to hold a new commit for these topics, or None."""
        closed = (lane for topic in topics if (lane := self._lanes.get(topic)) and now < lane.closed_until)
        return next((lane.reason for lane in closed), None)

    def refusal_of(self, offset: int, topics: Iterable[str]) -> str | None:
        """Reason why one of these topics refuses this very message, as far as is known."""
        lanes = (self._lanes[topic] for topic in topics if topic in self._lanes)
        return next((lane.refused[offset] for lane in lanes if offset in lane.refused), None)

    def too_large_for(self, topic: str) -> int:
        """The smallest size (bytes) that the topic has refused as too large; a very large number if none."""
        return self._lanes[topic].too_large if topic in self._lanes else sys.maxsize

    def let_wait(self, offset: int, topics: Iterable[str], now: float) -> str | None:
        """Let a held message wait for a probe. Returns why it may not go with others; None if it may."""
        lanes = [self._lanes[topic] for topic in topics if topic in self._lanes]
        if not lanes:
            return None
        # Of several topics, it waits for the one that has refused it, or for one that is closed.
        lane = min(lanes, key=lambda one: (offset not in one.refused, now >= one.closed_until))
        lane.used = now
        if (reason := lane.refused.get(offset)) is not None:
            lane.again[offset] = None
            return reason
        if len(lane.waiting) < _MOST_WAITING:
            lane.waiting[offset] = None
        return lane.reason if now < lane.next_try else InTurn(lane.reason)

    def next_probe(self, now: float) -> Probe | None:
        """The messages to try now, or None. Topics take turns."""
        for topic, lane in self._lanes.items():
            if now >= self._next_try_of(lane):
                self._lanes[topic] = self._lanes.pop(topic)
                offsets = (
                    islice(lane.waiting, lane.together) if lane.waiting else islice(lane.again, lane.retried_together)
                )
                return Probe(topic, list(offsets))
        return None

    @property
    def next_try(self) -> float:
        """Time of the next probe; infinite while no message waits for one."""
        return min(map(self._next_try_of, self._lanes.values()), default=inf)

    def _next_try_of(self, lane: TopicLane) -> float:
        if not (lane.waiting or lane.again):
            return inf
        return max(lane.next_try, -inf if lane.waiting else lane.retry_at, self._rests_until)

    def next_checks(self, topics: AbstractSet[str], now: float) -> tuple[str, int] | None:
        """One of these check topics that is closed and may be tried now, and the number of checks to try. Or None."""
        for topic, lane in self._lanes.items() if now >= self._rests_until else ():
            if topic in topics and lane.next_try <= now < lane.closed_until:
                self._lanes[topic] = self._lanes.pop(topic)
                return topic, lane.together
        return None

    def obstacle_of_check(self, entry: HalfEntry, topic: str, now: float) -> str | None:
        """Reason why this message cannot be checked now, or None.

        Of the checks that the topic has refused, one at a time is offered again, after a pause.
        """
        lane = self._lanes.get(topic)
        if lane is None or not lane.is_hopeless(entry):
            return None
        lane.used = now
        if entry.error is None or now < lane.retry_at:
            return lane.refused.get(entry.offset) or InTurn(lane.reason)
        lane.pause_retries(now)
        return None

    def block_topic(self, topic: str, reason: str, now: float, factor: float) -> float:
        """Try nothing with a topic that takes no record. Returns the time until which.

        `factor`, a random one: if several topics were blocked because one of them is at fault, they must not return
        together.
        """
        lane = self.lane_of(topic, reason, now)
        lane.closed_until, lane.together = inf, 1
        lane.next_try = now + lane.pausing.next() * factor
        return lane.next_try

    def note_refused(
        self,
        topic: str,
        reason: str,
        offsets: Sequence[int],
        culprits: Mapping[int, str],
        seconds: float,
        now: float,
        *,
        is_apart: bool,
    ) -> Mapping[int, str]:
        """Note that a topic has refused a Kafka transaction, which took so many seconds, with these messages for it.

        `culprits`: reasons by half offset, as far as it is known which messages were refused. A single one is. Returns
        what is known then. `is_apart`: whether they were as many as may go together.
        """
        lane = self.lane_of(topic, reason, now)
        for other in self._lanes.values():
            for offset in offsets if other is not lane else ():
                if offset in other.waiting:
                    del other.waiting[offset]
                    lane.waiting[offset] = None
                elif offset in other.again:
                    # Both have refused it before. It comes again when it is due.
                    del other.again[offset]
                    other.pause_retries(now)
        if lane.refused.keys().isdisjoint(offsets):
            lane.closed_until = now + lane.closing.next()
            if is_apart and len(offsets) > 1:
                # Culprits are named only if a batch has several. So larger probes find more of them at once.
                lane.together = _MOST_TOGETHER if culprits else max(1, min(lane.together, len(offsets)) // _STEP)
        else:
            # They were refused before. Others have their turn, after a pause.
            lane.pause_retries(now)
            lane.retried_together = 1
        culprits = dict.fromkeys(offsets, reason) if len(offsets) == 1 else culprits
        for offset, why in culprits.items():
            lane.set_apart(offset, why)
            lane.again.pop(offset, None)
        if is_apart:
            # Not after an abort that no probe has caused: a topic that is open now and then would delay all probes.
            # At most so long: this process or its machine may have stood still meanwhile.
            self._rests_until = now + min(max(_LEAST_REST_S, (_SHARE - 1) * seconds), _LONGEST_PAUSE_S)
        return culprits

    def note_too_large(self, topic: str, size: int) -> None:
        """Note that a topic has refused a message for its size (bytes)."""
        lane = self._lanes[topic]
        lane.too_large = min(lane.too_large, size)

    def note_taken(self, topic: str, offsets: Sequence[int], now: float) -> None:
        """Note that a topic has taken these messages, or others."""
        lane = self._lanes.get(topic)
        if lane is None:
            return
        lane.used = now
        lane.pausing.reset()
        lane.together = min(_MOST_TOGETHER, lane.together * _STEP)
        if not lane.refused.keys().isdisjoint(offsets):
            lane.retrying.reset()
            lane.retried_together = min(_MOST_TOGETHER, lane.retried_together * _STEP)
            # Its limit may have been raised. What is still too large is refused, and noted, again.
            lane.too_large = sys.maxsize
        lane.forget(frozenset(offsets))
        if lane.closed_until == inf and (not lane.waiting or lane.together == _MOST_TOGETHER):
            lane.closed_until = -inf

    def note_checked(self, entry: HalfEntry, topic: str) -> None:
        """Note that a check topic has taken a check. If a refusal was expected, it takes such checks again."""
        lane = self._lanes.get(topic)
        if lane is not None and lane.is_hopeless(entry):
            del self._lanes[topic]

    def leave_waiting(self, offsets: AbstractSet[int]) -> None:
        """Let these messages wait no longer: they cannot be tried now, or are finished."""
        for lane in self._lanes.values():
            lane.forget(offsets)

    def drop_unused(self, now: float) -> None:
        """Forget topics that were not used for a while: clients can name any number of topics."""
        for topic, lane in [*self._lanes.items()]:
            if max(lane.used, lane.next_try) + _UNUSED_S <= now:
                del self._lanes[topic]
