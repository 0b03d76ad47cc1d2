"""Reading one partition with a consumer of its own: no group, explicit offsets, and "to the end" that means it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from txbridge.core.names import READER_GROUP
from txbridge.deadline import Deadline
from txbridge.kafka.agreement import Agreement
from txbridge.kafka.config import reader_config
from txbridge.kafka.denied import named
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import (
    ALL_BROKERS_DOWN,
    AUTO_OFFSET_RESET,
    LOG_TRUNCATION,
    MAX_POLL_EXCEEDED,
    PARTITION_EOF,
    RESOLVE,
    TIMED_OUT,
    TRANSPORT,
)
from txbridge.kafka.failures import HangingTransactionError, LogGoneError, StoppedError
from txbridge.kafka.log import librdkafka_logger

#: One metadata or offset request to a healthy broker takes milliseconds; five seconds spans a leader election.
_REQUEST_TIMEOUT_S = 5.0
#: A broker that was stopped and goes on first answers what has waited for it as if it still led the partition: with
#: the end of long ago. It loses its leadership after broker.session.timeout.ms (9 s by default). An answer as late as
#: this is not believed; a healthy broker needs milliseconds, a first connection up to a second.
_PROMPT_S = 2.0
#: After a late answer: time for the broker to learn who leads, a fetch of the metadata log, before it is asked again.
_AGAIN_S = 1.0
#: Late answers until asking is given up, as when nobody answers.
_MOST_ASKED = 3
#: Metadata may be this old when it decides who is asked for the end of a log. librdkafka's own refresh is every five
#: minutes, in which a former leader that is cut off from the others would be asked.
_METADATA_S = 1.0
#: A log that ends below what was read from it: a former leader may say so, for the moments until all know the new one.
#: When every answer of so long says so, the log was cut.
CUT_AFTER_S = 10.0
#: At least so many answers: who asks seldom asks every five seconds.
_CUT_ANSWERS = 3
#: Two of them with more time between than that, and one late answer: this process or Kafka stood still.
_CUT_MOST_APART_S = 8.0
#: Between two fetches of a position that the broker asked does not have.
_FETCH_AGAIN_S = 0.5
#: How long the last stable offset may lag behind: the coordinator aborts a transaction whose owner is gone after its
#: transaction.timeout.ms (10 s by default for ours), and looks every 10 s.
STABLE_TIMEOUT_S = 30.0
#: Bytes a consumer fetches ahead. Two readers a partition; the default of 64 MiB each would not fit many partitions.
_FETCH_AHEAD_KIB = 16_384
#: With so much fetched, librdkafka waits before it fetches on: 1,000 ms by default, in which a reader that takes what
#: is there has long run dry.
_FETCH_ON_MS = 10
#: A reader on demand fetches on when all that it fetched is taken, and looks so often whether it is: the longest that a
#: message can wait for it. Only while something fetched waits; an idle reader waits for Kafka's answer.
_FETCH_ON_DEMAND_MS = 1
#: What one fetch of it may bring: thousands of messages, as many as a large Kafka transaction has. 1 MiB by default.
_FETCH_ON_DEMAND_BYTES = 4 * 1024 * 1024
#: Readers of committed records read to the end, once. Only an empty answer tells that the end is reached, and a broker
#: keeps that back for so long, in case that records come (500 ms by default).
_END_WAIT_MS = 10


class PartitionReader:
    """A consumer of one partition; `committed` hides records of open and aborted transactions. Not thread-safe.

    `on_demand` is for whoever takes records now and then, many at a time: Kafka is not asked for each of them as it
    comes. A fetch that is answered with the first of many is a request for every message; it costs Kafka about as much
    as storing the message did. `follows` is for one that waits at the end of the log for what comes.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        topic: str,
        partition: int,
        *,
        committed: bool,
        on_demand: bool = False,
        follows: bool = False,
        outside: Outside = OUTSIDE,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._outside = outside
        config = reader_config(kafka, group=READER_GROUP, read_committed=committed)
        config.setdefault("queued.max.messages.kbytes", _FETCH_AHEAD_KIB)
        if on_demand:
            config["queued.min.messages"] = 1
            config["fetch.queue.backoff.ms"] = _FETCH_ON_DEMAND_MS
            config.setdefault("max.partition.fetch.bytes", _FETCH_ON_DEMAND_BYTES)
        else:
            config.setdefault("fetch.queue.backoff.ms", _FETCH_ON_MS)
        config.setdefault("logger", librdkafka_logger())
        if committed and not follows:
            config["fetch.wait.max.ms"] = _END_WAIT_MS
        self._consumer = outside.consumer(config)
        #: Offset of the next record, as far as this reader has come.
        self.position = -1
        #: When it was learnt who leads, by topic.
        self._refreshed_at: dict[str, float] = {}
        # That the log ends below what was reached, by topic for `end_from`, and by what a fetch said.
        self._short: dict[str, Agreement] = {}
        self._fetch_short = cut_agreement()

    def start(self, offset: int) -> None:
        """Read from this offset on."""
        self._consumer.assign([TopicPartition(self.topic, self.partition, offset)])
        self.position = offset

    def stop(self) -> None:
        """Fetch nothing more until the next start."""
        self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()

    def watermarks(self, topic: str | None = None) -> tuple[int, int]:
        """Log start and end of this partition, or of the one with its number in another topic.

        Only a reader of uncommitted records sees the true end. It is what a broker said that took itself for the leader
        a moment ago: a log may be longer than that. Raises KafkaException.
        """
        topic = topic or self.topic
        monotonic = self._outside.monotonic
        try:
            for _ in range(_MOST_ASKED):
                started = monotonic()
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(topic, self.partition), timeout=_REQUEST_TIMEOUT_S
                )
                if monotonic() - started <= _PROMPT_S:
                    return low, high
                self._outside.wait(threading.Event(), _AGAIN_S)
                self._refresh(topic)
        except KafkaException as error:
            raise KafkaException(_named(error.args[0], topic)) from error
        late = f"{_MOST_ASKED} answers about the end of {topic}[{self.partition}] came late, and may be out of date"
        raise KafkaException(KafkaError(TIMED_OUT, late))

    def _refresh(self, topic: str) -> None:
        """Learn anew who leads. Raises KafkaException."""
        self._consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S)
        self._refreshed_at[topic] = self._outside.monotonic()

    def ask_who_leads(self) -> None:
        """Have librdkafka learn anew who leads, without waiting for it.

        A broker answers the requests of a connection one after the other, and keeps the answer to a fetch back until
        records come: for half a second mostly. Whoever asks this reader for anything else waits for that.
        """
        # Not answered at once is what is expected here; when nobody answers at all, those that wait will say so.
        with suppress(KafkaException):
            self._consumer.list_topics(self.topic, timeout=0)

    def end_from(self, reached: int, topic: str | None = None) -> int | None:
        """Log end, from the leader as the brokers know it now; None when it is below what was reached already.

        Then somebody answered who does not lead any more, or the log was cut: raises LogGoneError when all answers of
        CUT_AFTER_S say so, without a gap. Raises KafkaException.
        """
        topic = topic or self.topic
        if self._outside.monotonic() - self._refreshed_at.get(topic, float("-inf")) > _METADATA_S:
            try:
                self._refresh(topic)
            except KafkaException as error:
                raise KafkaException(_named(error.args[0], topic)) from error
        end = self.watermarks(topic)[1]
        if end >= reached:
            self._short.pop(topic, None)
            return end
        if not self._short.setdefault(topic, cut_agreement()).note(self._outside.monotonic()):
            return None
        raise LogGoneError(
            f"{topic}[{self.partition}] ends at offset {end}, below {reached} that was reached already: it was cut, or "
            f"deleted and created anew",
        )

    def wait_for_end(self, reached: int) -> None:
        """Wait until the log ends at this offset or above. Raises LogGoneError after CUT_AFTER_S, KafkaException."""
        while self.end_from(reached) is None:
            self._outside.wait(threading.Event(), _FETCH_AGAIN_S)

    def fetched_end(self) -> int:
        """Log end as the last fetched records told it; asks nobody. Negative when nothing was fetched yet."""
        return self._consumer.get_watermark_offsets(TopicPartition(self.topic, self.partition), cached=True)[1]

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Up to `limit` records; waits at most `timeout` seconds for the first. Raises LogGoneError, KafkaException."""
        # consume(n, timeout) would wait for n records or the whole time-out: so wait for one and take what is there.
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        found = [first, *self._consumer.consume(limit - 1, 0)] if limit > 1 else [first]
        if not any([message.error() is not None for message in found]):  # noqa: C419 - a list is made in half the time
            # Nearly always.
            last = found[-1].offset()
            assert last is not None
            self.position = last + 1
            self._fetch_short.contradict()
            return found
        records: list[Message] = []
        for message in found:
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None
                self.position = offset + 1
                self._fetch_short.contradict()
                records.append(message)
            elif error.code() == PARTITION_EOF:
                assert offset is not None
                self.position = max(self.position, offset)
                self._fetch_short.contradict()
            elif error.code() in {AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                self._fetch_again(error)
                break
            elif error.code() == LOG_TRUNCATION:
                raise LogGoneError(f"{self.topic}[{self.partition}] was cut below {self.position}: {error.str()}")
            elif not error.retriable() and error.code() not in _PASSING:
                raise KafkaException(_named(error, self.topic))
        return records

    def _fetch_again(self, error: KafkaError) -> None:
        """Whoever was asked does not have this position: below the log, or above its end as a former leader knows it.

        Raises LogGoneError, KafkaException.
        """
        is_short = self._fetch_short.note(self._outside.monotonic())
        low, _ = self.watermarks()
        if self.position < low or is_short:
            raise LogGoneError(f"{self.topic}[{self.partition}] has no offset {self.position} any more: {error.str()}")
        self._outside.wait(threading.Event(), _FETCH_AGAIN_S)
        self._refresh(self.topic)
        self.start(self.position)

    def read_to(self, end: int, stopping: Callable[[], bool], batch: int = 5_000) -> Iterator[Message]:
        """Every record below `end`, until the reader stands there.

        For a reader of committed records "there" is the EOF event at or past `end`: the last record may be a marker.
        Raises HangingTransactionError when the last stable offset stays below `end`, StoppedError, KafkaException.
        """
        deadline = Deadline(STABLE_TIMEOUT_S, self._outside.monotonic)
        while self.position < end:
            before = self.position
            yield from self.poll(batch, 0.2)
            if stopping():
                raise StoppedError("told to stop while reading")
            if self.position > before:
                deadline = Deadline(STABLE_TIMEOUT_S, self._outside.monotonic)
            elif deadline.is_over:
                # Is it Kafka that does not answer? Then this says so.
                self.watermarks()
                raise HangingTransactionError(
                    f"{self.topic}[{self.partition}] can be read up to {self.position} only, not to its end {end}: "
                    f"a Kafka transaction hangs there. Find it: kafka-transactions.sh --bootstrap-server ... "
                    f"find-hanging --topic {self.topic} --partition {self.partition}",
                )


def cut_agreement() -> Agreement:
    """Of answers which say that a log ends below what was reached: enough of them, and it was cut."""
    return Agreement(CUT_AFTER_S, _CUT_ANSWERS, _CUT_MOST_APART_S)


def _named(error: KafkaError, topic: str) -> KafkaError:
    """Which right is missing: librdkafka looks the coordinator of its group up, though nothing is ever joined."""
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return named(error, "DESCRIBE", f"group {READER_GROUP}")
    return named(error, "READ", f"topic {topic}")


#: Errors that librdkafka reports and then mends by itself.
_PASSING = frozenset(
    {
        TRANSPORT,
        ALL_BROKERS_DOWN,
        RESOLVE,
        TIMED_OUT,
        MAX_POLL_EXCEEDED,
    },
)
