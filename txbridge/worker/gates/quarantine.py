"""Quarantine: topics that have refused records get Kafka transactions of their own, with rests between them.

One refused record aborts a Kafka transaction with everything in it. So after a refusal new commits for the topic are
held, which costs the others nothing. The held ones are tried in *probes*: Kafka transactions with messages of this
topic alone. A probe that is refused names its culprits, or is tried again with a quarter of its messages, until a
single one is the culprit. Between refused probes the others have most of the time, however many records are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import NamedTuple

from txbridge.backoff import Backoff
from txbridge.core.plan.effects import InTurn
from txbridge.kafka.environment import OUTSIDE, Outside

#: New commits are held this long (s) after a refusal, twice as long after each further one. With less, a topic that
#: refuses something all the time would abort the transactions of others often. With more, every message of a busy topic
#: would be held because of one.
_FIRST_CLOSED_S = 1.0
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
#: Messages of a topic that wait for a probe. Others are held with their back-off, and come later.
_MOST_WAITING = 10_000
#: A topic is forgotten when it was not used for this long (s). Held messages are tried again within a minute.
_UNUSED_S = 120.0


class Probe(NamedTuple):
    """Held messages of one topic for a Kafka transaction of their own."""

    topic: str
    #: Half offsets.
    offsets: list[int]


@dataclass(slots=True)
class _RefusingTopic:
    """A topic in quarantine."""

    reason: str = ""
    #: Monotonic times (s): new commits are held until the first, nothing is tried before the second, and nothing that
    #: was refused by itself before the third.
    closed_until: float = 0.0
    paused_until: float = 0.0
    retry_at: float = 0.0
    used: float = 0.0
    #: Whether it took nothing at all. It stays closed until it has taken what waits.
    is_blocked: bool = False
    #: Whether it was only among others when something was refused. It is tried before all others.
    is_suspected: bool = False
    #: Number of messages that may go together.
    together: int = _MOST_TOGETHER
    retried_together: int = 1
    closing: Backoff = field(default_factory=lambda: Backoff(_FIRST_CLOSED_S, _LONGEST_CLOSED_S))
    blocking: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    retrying: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    #: Half offsets that wait for a probe, in their order: never refused by themselves, and refused before.
    waiting: dict[int, None] = field(default_factory=dict)
    again: dict[int, None] = field(default_factory=dict)
    #: Reasons, by half offset, of the messages that were refused by themselves.
    refused: dict[int, str] = field(default_factory=dict)

    def is_closed(self, now: float) -> bool:
        return now < self.closed_until or self.is_blocked

    def close_anew(self, now: float) -> None:
        self.is_suspected = self.is_blocked = False
        self.closed_until = now + self.closing.next()

    def forget_message(self, offset: int) -> None:
        self.waiting.pop(offset, None)
        self.again.pop(offset, None)
        self.refused.pop(offset, None)


class Quarantine:
    """The topics that refuse records, and the messages that wait for them. Not thread-safe."""

    def __init__(self, outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._refusing: dict[str, _RefusingTopic] = {}
        self._rests_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._refusing)

    def __contains__(self, topic: str) -> bool:
        """Whether messages for this topic have to be looked at one by one."""
        return topic in self._refusing

    def reason_to_hold(self, topics: Iterable[str]) -> str | None:
        """Reason to hold a new commit for these topics, or None."""
        now = self._outside.monotonic()
        for topic in topics:
            refusing = self._refusing.get(topic)
            if refusing is not None and refusing.is_closed(now):
                return refusing.reason
        return None

    def let_wait(self, offset: int, topics: Iterable[str]) -> str | None:
        """Let a held message wait for a probe. Returns why it may not go with others; None if it may."""
        found = [self._refusing[topic] for topic in topics if topic in self._refusing]
        if not found:
            return None
        # Of several topics, it waits for one that has refused something.
        refusing = min(found, key=lambda one: (offset not in one.refused, one.is_suspected))
        now = refusing.used = self._outside.monotonic()
        if (reason := refusing.refused.get(offset)) is not None:
            refusing.again[offset] = None
            return reason
        if len(refusing.waiting) < _MOST_WAITING:
            refusing.waiting[offset] = None
        return refusing.reason if now < refusing.paused_until else InTurn(refusing.reason)

    def next_probe(self) -> Probe | None:
        """The messages to try now, or None. Topics take turns."""
        if not self._refusing:
            return None
        now = self._outside.monotonic()
        for topic, refusing in sorted(self._refusing.items(), key=lambda item: not item[1].is_suspected):
            if now < self._next_try_of(refusing):
                continue
            waiting, together = (
                (refusing.waiting, refusing.together)
                if refusing.waiting
                else (refusing.again, refusing.retried_together)
            )
            self._refusing[topic] = self._refusing.pop(topic)
            return Probe(topic, list(islice(waiting, together)))
        return None

    @property
    def next_try(self) -> float:
        """Monotonic time (s) of the next probe; infinite while no message waits for one."""
        return min(map(self._next_try_of, self._refusing.values()), default=inf)

    def _next_try_of(self, refusing: _RefusingTopic) -> float:
        if not (refusing.waiting or refusing.again):
            return inf
        return max(
            refusing.paused_until,
            -inf if refusing.waiting else refusing.retry_at,
            -inf if refusing.is_suspected else self._rests_until,
        )

    def next_checks(self, topics: AbstractSet[str]) -> tuple[str, int] | None:
        """One of these check topics that is closed and may be tried now, and the number of checks to try. Or None."""
        now = self._outside.monotonic()
        if not self._refusing or now < self._rests_until:
            return None
        for topic, refusing in self._refusing.items():
            if topic in topics and refusing.is_closed(now) and now >= refusing.paused_until:
                self._refusing[topic] = self._refusing.pop(topic)
                return topic, refusing.together
        return None

    def block_topic(self, topic: str, reason: str) -> float:
        """Try nothing with a topic that takes no record. Returns the monotonic time (s) until which."""
        now, refusing = self._outside.monotonic(), self._refusing_topic(topic, reason)
        # A random factor: if several topics were blocked because one of them is at fault, they must not return
        # together.
        refusing.paused_until = now + refusing.blocking.next() * self._outside.uniform(0.5, 1.5)
        refusing.is_blocked, refusing.together = True, 1
        return refusing.paused_until

    def close_topic(self, topic: str, reason: str, culprits: Mapping[int, str]) -> None:
        """Hold new commits for a topic that has refused a record among those of others.

        `culprits`: reasons by half offset, as far as it is known which messages were refused.
        """
        self._refusing_topic(topic, reason).close_anew(self._outside.monotonic())
        for offset, why in culprits.items():
            self.set_apart(topic, offset, why)

    def suspect_topic(self, topic: str, reason: str) -> None:
        """Hold new commits for a topic until it has taken something: it may be the one that refuses records."""
        if topic not in self._refusing:
            refusing = self._refusing_topic(topic, reason)
            refusing.is_suspected = refusing.is_blocked = True

    def set_apart(self, topic: str, offset: int, reason: str) -> None:
        """Let a message be tried only after those that its topic may take."""
        refusing = self._refusing_topic(topic, reason)
        refusing.waiting.pop(offset, None)
        if len(refusing.refused) < _MOST_WAITING:
            refusing.refused[offset] = reason

    def note_probe_refused(
        self, topic: str, reason: str, offsets: list[int], culprits: Mapping[int, str], seconds: float
    ) -> None:
        """Note that a topic has refused a probe, its own or another's, with these messages for it.

        The probe took so many seconds. A single message is the culprit.
        """
        now, refusing = self._outside.monotonic(), self._refusing_topic(topic, reason)
        for other in self._refusing.values():
            for offset in offsets if other is not refusing else ():
                if offset in other.waiting:
                    del other.waiting[offset]
                    refusing.waiting[offset] = None
                elif offset in other.again:
                    # Both have refused it before. It comes again when it is due.
                    del other.again[offset]
                    other.retry_at = now + other.retrying.next()
        suspects = 0 if culprits else len(offsets)
        if len(offsets) == 1:
            culprits = {offsets[0]: reason}
        if refusing.refused.keys().isdisjoint(offsets):
            self.probe_refused(topic, reason, suspects, seconds)
        else:
            # They were refused before. Others have their turn, after a pause.
            self._rest(seconds)
            refusing.retry_at, refusing.retried_together = now + refusing.retrying.next(), 1
            for offset in offsets:
                refusing.again.pop(offset, None)
        for offset, why in culprits.items():
            self.set_apart(topic, offset, why)

    def probe_refused(self, topic: str, reason: str, suspects: int, seconds: float) -> None:
        """Note that a topic has refused a probe with so many records that may be the culprit, or none."""
        refusing = self._refusing_topic(topic, reason)
        refusing.close_anew(self._outside.monotonic())
        # Culprits are named only if a batch has several. So larger probes find more of them at once.
        refusing.together = max(1, min(refusing.together, suspects) // _STEP) if suspects else _MOST_TOGETHER
        self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        # At most so long: this process or its machine may have stood still meanwhile.
        rest = min(max(_LEAST_REST_S, (_SHARE - 1) * seconds), _LONGEST_PAUSE_S)
        self._rests_until = self._outside.monotonic() + rest

    def note_taken(self, topic: str, offsets: Iterable[int]) -> None:
        """Note that a topic in quarantine has taken a probe with these messages."""
        refusing = self._refusing.get(topic)
        if refusing is None:
            return
        refusing.used = self._outside.monotonic()
        refusing.blocking.reset()
        refusing.together = min(_MOST_TOGETHER, refusing.together * _STEP)
        if any(offset in refusing.refused for offset in offsets):
            refusing.retrying.reset()
            refusing.retried_together = min(_MOST_TOGETHER, refusing.retried_together * _STEP)
        for offset in offsets:
            refusing.forget_message(offset)
        if not refusing.waiting or refusing.together == _MOST_TOGETHER:
            refusing.is_blocked = False
        if refusing.is_suspected and not refusing.waiting:
            del self._refusing[topic]

    def leave_waiting(self, offsets: Iterable[int]) -> None:
        """Let these messages wait no longer: they cannot be tried now, or are finished."""
        for refusing in self._refusing.values():
            for offset in offsets:
                refusing.forget_message(offset)

    def drop_unused(self) -> None:
        """Forget topics that were not used for a while: clients can name any number of topics."""
        now = self._outside.monotonic()
        self._refusing = {
            topic: refusing
            for topic, refusing in self._refusing.items()
            if max(refusing.used, refusing.closed_until, refusing.paused_until) + _UNUSED_S > now
        }

    def _refusing_topic(self, topic: str, reason: str) -> _RefusingTopic:
        refusing = self._refusing.get(topic)
        if refusing is None:
            refusing = self._refusing[topic] = _RefusingTopic()
        refusing.reason, refusing.used = reason, self._outside.monotonic()
        return refusing
