"""LogEnds: where logs begin and end, as the brokers say that lead them."""

from __future__ import annotations

import threading
from typing import NamedTuple

from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import LogGoneError, UnansweredError
from txbridge.kafka.proven_end import EARLIEST, LATEST, EachBroker

#: Time (s) in which a leader must answer. A healthy one needs milliseconds; this spans the election of another one.
_LEADER_S = 5.0
#: Pause (s) before a leader is looked for again.
_AGAIN_S = 0.25
#: Largest age (s) of the answer that names the leader.
_LED_S = 1.0
#: Time (s) over which every answer must say that a log ends below a record that was read from it: then it was cut. A
#: former leader may say that for a moment, until all brokers know the new one.
CUT_AFTER_S = 10.0
#: Least number of such answers; a caller that asks seldom asks every five seconds.
_CUT_ANSWERS = 3
#: Longest gap between two of them (s): five seconds, and one late answer. Otherwise this process or Kafka stood still.
_CUT_MOST_APART_S = 8.0
#: Partitions that were asked about with a `max_age` in the last so many seconds are asked about together.
_TOGETHER_S = 10.0


class _End(NamedTuple):
    """A log end, and when it was asked for (s, monotonic)."""

    end: int
    asked: float


class LogEnds:
    """Asks for all partitions of a process. Thread-safe; a question waits for the leader of its own partition alone."""

    def __init__(self, brokers: EachBroker, outside: Outside = OUTSIDE) -> None:
        self._brokers = brokers
        self._outside = outside
        #: Node id of the leader, and when it was named, by topic and partition.
        self._leaders: dict[tuple[str, int], tuple[int, float]] = {}
        # By topic and partition, about which one thread at a time asks. Answers that a log ends below a reached offset.
        self._short: dict[tuple[str, int], Agreement] = {}
        # The last answers, and the last questions that were content with an older answer.
        self._ends: dict[tuple[str, int], _End] = {}
        self._looked_at: dict[tuple[str, int], float] = {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Log start and end.

        The answer comes from a broker that took itself for the leader a moment ago; the log may be longer. Raises
        UnansweredError, KafkaException.
        """
        return self._ask_leader(topic, partition, EARLIEST), self._ask_end(topic, partition)

    def end_from(self, topic: str, partition: int, reached: int, max_age: float = 0.0) -> int | None:
        """Log end, from the leader as a broker knows it now; None when it is below `reached`.

        None means that a former leader has answered, or that the log was cut. Raises LogGoneError when all answers of
        CUT_AFTER_S say so, without a gap. Raises UnansweredError, KafkaException.

        With `max_age` (s), an end of that age will do if it is not below `reached`. The answer about another partition
        may have brought it: one request asks about all that have the same leader.
        """
        place, now = (topic, partition), self._outside.monotonic()
        if max_age:
            self._looked_at[place] = now
            known = self._ends.get(place)
            if known is not None and known.asked >= now - max_age and known.end >= reached:
                return known.end
        end = self._ask_end(topic, partition)
        if end >= reached:
            self._short.pop(place, None)
            return end
        if not self._short.setdefault(place, cut_agreement()).note(self._outside.monotonic()):
            return None
        raise LogGoneError(
            f"{topic}[{partition}] ends at offset {end}, below {reached} that was reached already: it was cut, or "
            f"deleted and created again"
        )

    def _ask_end(self, topic: str, partition: int) -> int:
        """The log end, as of after the call. Asks about others as well."""
        return self._ask_leader(topic, partition, LATEST)

    def _ask_leader(self, topic: str, partition: int, at: int) -> int:
        """Ask until a leader answers. Raises UnansweredError, KafkaException."""
        place, monotonic = (topic, partition), self._outside.monotonic
        until = monotonic() + _LEADER_S
        while True:
            leader, named_at = self._leaders.get(place, (-1, float("-inf")))
            if named_at < monotonic() - _LED_S:
                _, view = next(self._brokers.views_of(topic, partition), (-1, None))
                leader = -1 if view is None else view.leader
                self._leaders[place] = leader, monotonic()
            now, together = monotonic(), {partition} | self._other_partitions(topic, leader)
            found = self._brokers.offsets_of(leader, topic, sorted(together), at) or {}
            if at == LATEST:
                self._ends.update({(topic, number): _End(end, now) for number, end in found.items()})
            if partition in found:
                return found[partition]
            self._leaders.pop(place, None)
            if monotonic() >= until:
                raise UnansweredError(f"no leader of {topic}[{partition}] says where it begins and ends")
            self._outside.wait(threading.Event(), _AGAIN_S)

    def _other_partitions(self, topic: str, leader: int) -> set[int]:
        """Partitions with this leader that are looked at again and again."""
        since = self._outside.monotonic() - _TOGETHER_S
        looked_at = [number for (name, number), at in list(self._looked_at.items()) if name == topic and at > since]
        return {number for number in looked_at if self._leaders.get((topic, number), (-1, 0.0))[0] == leader}


def cut_agreement() -> Agreement:
    """The agreement of answers that a log ends below an offset that was reached: it was cut."""
    return Agreement(CUT_AFTER_S, _CUT_ANSWERS, _CUT_MOST_APART_S)


class Agreement:
    """A test whether enough answers, over `seconds`, have said the same thing, and none the contrary.

    The time between the first and the last answer alone proves nothing: a process that stood still received none in
    between. So at least `answers` answers are needed. When more than `most_apart` seconds lie between two of them, this
    process or Kafka stood still, and the count starts again.
    """

    def __init__(self, seconds: float, answers: int, most_apart: float) -> None:
        self._seconds, self._answers, self._most_apart = seconds, answers, most_apart
        self._count = 0
        self._since = self._last = float("-inf")

    def note(self, now: float) -> bool:
        """Count one more answer that says it. Returns whether the answers are enough now."""
        if self._count == 0 or now - self._last > self._most_apart:
            self._count, self._since = 0, now
        self._count += 1
        self._last = now
        return self._count >= self._answers and now - self._since >= self._seconds

    def note_contradiction(self) -> None:
        """Note an answer that says something else: the count starts again."""
        self._count = 0
