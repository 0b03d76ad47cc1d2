"""LogEnds: where logs begin and end, as the brokers say that lead them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from txbridge.core.names import READER_GROUP
from txbridge.kafka.agreement import Agreement
from txbridge.kafka.config import reader_config
from txbridge.kafka.denied import named
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import TIMED_OUT
from txbridge.kafka.failures import LogGoneError
from txbridge.kafka.log import librdkafka_logger

#: One metadata or offset request to a healthy broker takes milliseconds; five seconds spans a leader election.
REQUEST_TIMEOUT_S = 5.0
#: Latest answer that is believed (s). A broker that was suspended and resumes first answers the requests that waited,
#: as if it still led the partition: with an old end. It loses its leadership after broker.session.timeout.ms (9 s by
#: default). A healthy broker needs milliseconds, a first connection up to a second.
_PROMPT_S = 2.0
#: Pause (s) after a late answer, before the broker is asked again: it learns who leads by a fetch of the metadata log.
_AGAIN_S = 1.0
#: This many late answers count as a time-out.
_MOST_ASKED = 3
#: Largest age (s) of metadata that names the leader to ask for a log end. By itself librdkafka refreshes it every
#: five minutes. Until then it would ask a former leader that is cut off from the others.
_METADATA_S = 1.0
#: Time (s) over which every answer must say that a log ends below a record that was read from it: then it was cut. A
#: former leader may say that for a moment, until all brokers know the new one.
CUT_AFTER_S = 10.0
#: Least number of such answers; a caller that asks seldom asks every five seconds.
_CUT_ANSWERS = 3
#: Longest gap between two of them (s): five seconds, and one late answer. Otherwise this process or Kafka stood still.
_CUT_MOST_APART_S = 8.0
#: Pause (s) before the next attempt, when a broker does not have a position yet.
FETCH_AGAIN_S = 0.5

#: Partitions that were asked about with a `max_age` in the last so many seconds are asked about together.
_TOGETHER_S = 10.0

_Answer = TypeVar("_Answer")


class _End(NamedTuple):
    """A log end, and when it was asked for (s, monotonic)."""

    end: int
    asked: float


class LogEnds:
    """Asks with one client, for all partitions of a process. Thread-safe; questions do not wait for each other.

    A consumer would not do for this while it fetches: a broker answers the requests of a connection in order, and
    delays the answer to a fetch until records come.
    """

    def __init__(self, connect: Callable[[], Consumer], outside: Outside = OUTSIDE) -> None:
        self._connect = connect
        self._outside = outside
        self._lock = threading.Lock()
        self._client: Consumer | None = None
        #: When the metadata was last refreshed, by topic.
        self._refreshed_at: dict[str, float] = {}
        #: Leaders as of then, by topic and partition.
        self._leaders: dict[str, dict[int, int]] = {}
        # By topic and partition, about which one thread at a time asks. Answers that a log ends below a reached offset.
        self._short: dict[tuple[str, int], Agreement] = {}
        # The last answers, and the last questions that were content with an older answer.
        self._ends: dict[tuple[str, int], _End] = {}
        self._looked_at: dict[tuple[str, int], float] = {}

    @classmethod
    def of_a_process(cls, kafka: Mapping[str, Any], outside: Outside = OUTSIDE) -> LogEnds:
        """With a client of its own. It sees the true ends: to a reader of committed records, open ones are none."""
        config = reader_config(kafka, group=READER_GROUP, read_committed=False)
        config.setdefault("logger", librdkafka_logger())
        return cls(lambda: outside.consumer(config), outside)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Log start and end.

        The answer comes from a broker that took itself for the leader a moment ago; the log may be longer. Raises
        KafkaException.
        """
        place = TopicPartition(topic, partition)
        return self._ask_promptly(topic, lambda client: client.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S))

    def end_from(self, topic: str, partition: int, reached: int, max_age: float = 0.0) -> int | None:
        """Log end, from the leader as the brokers know it now; None when it is below `reached`.

        None means that a former leader has answered, or that the log was cut. Raises LogGoneError when all answers of
        CUT_AFTER_S say so, without a gap. Raises KafkaException.

        With `max_age` (s), an end of that age will do if it is not below `reached`. The answer about another partition
        may have brought it: one request asks about all that have the same leader, so that none waits for the broker of
        another one.
        """
        place, now = (topic, partition), self._outside.monotonic()
        if max_age:
            self._looked_at[place] = now
            known = self._ends.get(place)
            if known is not None and known.asked >= now - max_age and known.end >= reached:
                return known.end
        if now - self._refreshed_at.get(topic, float("-inf")) > _METADATA_S:
            self._refresh_metadata(topic)
        end = self._ask_end(topic, partition)
        if end >= reached:
            self._short.pop(place, None)
            return end
        if not self._short.setdefault(place, cut_agreement()).note(self._outside.monotonic()):
            return None
        raise LogGoneError(
            f"{topic}[{partition}] ends at offset {end}, below {reached} that was reached already: it was cut, or "
            f"deleted and created again",
        )

    def wait_for_end(self, topic: str, partition: int, reached: int) -> None:
        """Wait until the log ends at this offset or above. Raises LogGoneError after CUT_AFTER_S, KafkaException."""
        while self.end_from(topic, partition, reached) is None:
            self._outside.wait(threading.Event(), FETCH_AGAIN_S)

    def _ask_end(self, topic: str, partition: int) -> int:
        """The log end, as of after the call. Asks about others as well."""
        now = self._outside.monotonic()
        leaders = self._leaders.get(topic, {})
        others = {
            other
            for (name, other), looked_at in list(self._looked_at.items())
            if name == topic and looked_at > now - _TOGETHER_S and leaders.get(other) == leaders.get(partition, -1)
        }
        places = [TopicPartition(topic, number, OFFSET_END) for number in sorted({partition} | others)]
        asked, answers = self._ask_promptly(
            topic,
            lambda client: (
                self._outside.monotonic(),
                client.offsets_for_times(places, timeout=REQUEST_TIMEOUT_S),
            ),
        )
        mine = next(answer for answer in answers if answer.partition == partition)
        if mine.error is not None:
            raise KafkaException(reading_right_named(mine.error, topic))
        self._ends.update({(topic, one.partition): _End(one.offset, asked) for one in answers if one.error is None})
        return mine.offset

    def _refresh_metadata(self, topic: str) -> None:
        """Refresh the metadata, to learn who leads. Raises KafkaException."""
        found = self._ask(topic, lambda client: client.list_topics(topic, timeout=REQUEST_TIMEOUT_S))
        self._leaders[topic] = {one.id: one.leader for one in found.topics[topic].partitions.values()}
        self._refreshed_at[topic] = self._outside.monotonic()

    def _ask_promptly(self, topic: str, question: Callable[[Consumer], _Answer]) -> _Answer:
        """Ask until an answer comes at once: a late one may be out of date. Raises KafkaException."""
        monotonic = self._outside.monotonic
        for _ in range(_MOST_ASKED):
            started = monotonic()
            answer = self._ask(topic, question)
            if monotonic() - started <= _PROMPT_S:
                return answer
            self._outside.wait(threading.Event(), _AGAIN_S)
            self._refresh_metadata(topic)
        late = f"{_MOST_ASKED} answers about the end of {topic} came late, and may be out of date"
        raise KafkaException(KafkaError(TIMED_OUT, late))

    def _ask(self, topic: str, question: Callable[[Consumer], _Answer]) -> _Answer:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
                self._refreshed_at.clear()
            client = self._client
        try:
            return question(client)
        except KafkaException as error:
            # The next attempt begins with new connections. Threads that still wait for an answer hold this client.
            self.forget_client(client)
            raise KafkaException(reading_right_named(error.args[0], topic)) from error

    def forget_client(self, client: Consumer) -> None:
        """Ask with a new client from now on, if this one is in use."""
        with self._lock:
            if self._client is client:
                self._client = None


def cut_agreement() -> Agreement:
    """The agreement of answers that a log ends below an offset that was reached: it was cut."""
    return Agreement(CUT_AFTER_S, _CUT_ANSWERS, _CUT_MOST_APART_S)


def reading_right_named(error: KafkaError, topic: str) -> KafkaError:
    """The error with the missing right. librdkafka looks up the coordinator of its group, though it never joins."""
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return named(error, "DESCRIBE", f"group {READER_GROUP}")
    return named(error, "READ", f"topic {topic}")
