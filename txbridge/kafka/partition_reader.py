"""A reader of one partition with its own consumer: no group, explicit offsets, and reads to the true end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
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
from txbridge.kafka.failures import HangingTransactionError, LogGoneError, ReadStoppedError
from txbridge.kafka.log import librdkafka_logger

#: One metadata or offset request to a healthy broker takes milliseconds; five seconds spans a leader election.
_REQUEST_TIMEOUT_S = 5.0
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
#: Most records that a read to the end takes at a time.
_READ_AT_ONCE = 5_000
#: Pause (s) before the next attempt, when a broker does not have a position yet.
_FETCH_AGAIN_S = 0.5
#: Time (s) for which the last stable offset may stay behind. The coordinator aborts the transaction of a dead owner
#: after its transaction.timeout.ms (10 s by default for ours), and looks every 10 s.
STABLE_TIMEOUT_S = 30.0
#: KiB that a consumer fetches ahead. A partition has several readers, and 64 MiB for each, the default, would be too
#: much for a worker with many partitions.
_FETCH_AHEAD_KIB = 16_384
#: Pause before librdkafka fetches more, when that much is fetched. The default of 1,000 ms is so long that a reader
#: takes all fetched records and runs out of them.
_FETCH_ON_MS = 10
#: Interval (ms) at which a reader on demand looks whether all fetched records are taken, to fetch more. A message waits
#: for it at most this long. An idle reader does not look; it waits for Kafka's answer.
_FETCH_ON_DEMAND_MS = 1
#: Most bytes of one fetch of a reader on demand: thousands of messages, as many as a large Kafka transaction has. The
#: default is 1 MiB.
_FETCH_ON_DEMAND_BYTES = 4 * 1024 * 1024
#: Time (ms) for which a broker delays an empty answer, in case records come; the default is 500. A reader that reads to
#: the end once learns by an empty answer that the end is reached. Any other request of the reader waits for the answer.
_END_WAIT_MS = 10


class PartitionReader:
    """A consumer of one partition; `committed` hides records of open and aborted transactions. Not thread-safe.

    `on_demand` is for a caller that takes many records at a time, now and then: they are not fetched one by one as they
    come. One fetch for every message would cost Kafka about as much as storing the messages. `follows` is for a reader
    that waits at the end of the log for new records.
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
        if not follows:
            config["fetch.wait.max.ms"] = _END_WAIT_MS
        self._consumer = outside.consumer(config)
        #: Offset of the next record to read.
        self.position = -1
        #: When the metadata was last refreshed, by topic.
        self._refreshed_at: dict[str, float] = {}
        # Answers that the log ends below a reached offset: of `end_from`, by topic, and of fetches.
        self._short: dict[str, Agreement] = {}
        self._fetch_short = cut_agreement()

    def on_same_connection(self, topic: str) -> PartitionReader:
        """A reader of another topic. Only one of the two may be started at a time; `close` this one."""
        other = copy(self)
        other.topic, other.position = topic, -1
        other._fetch_short = cut_agreement()  # noqa: SLF001 - of this class
        return other

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

        Only a reader of uncommitted records sees the true end. The answer comes from a broker that took itself for the
        leader a moment ago; the log may be longer. Raises KafkaException.
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
                self._refresh_metadata(topic)
        except KafkaException as error:
            raise KafkaException(_named(error.args[0], topic)) from error
        late = f"{_MOST_ASKED} answers about the end of {topic}[{self.partition}] came late, and may be out of date"
        raise KafkaException(KafkaError(TIMED_OUT, late))

    def _refresh_metadata(self, topic: str) -> None:
        """Refresh the metadata, to learn who leads. Raises KafkaException."""
        self._consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S)
        self._refreshed_at[topic] = self._outside.monotonic()

    def ask_who_leads(self) -> None:
        """Have librdkafka refresh the metadata, to learn who leads, without waiting for it.

        A broker answers the requests of a connection in order, and delays the answer to a fetch until records come,
        mostly for half a second. Any other request of this reader waits for that.
        """
        # A time-out is expected here. If no broker answers at all, the requests that wait will report it.
        with suppress(KafkaException):
            self._consumer.list_topics(self.topic, timeout=0)

    def end_from(self, reached: int, topic: str | None = None) -> int | None:
        """Log end, from the leader as the brokers know it now; None when it is below `reached`.

        None means that a former leader has answered, or that the log was cut. Raises LogGoneError when all answers of
        CUT_AFTER_S say so, without a gap. Raises KafkaException.
        """
        topic = topic or self.topic
        if self._outside.monotonic() - self._refreshed_at.get(topic, float("-inf")) > _METADATA_S:
            try:
                self._refresh_metadata(topic)
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
            f"deleted and created again",
        )

    def wait_for_end(self, reached: int) -> None:
        """Wait until the log ends at this offset or above. Raises LogGoneError after CUT_AFTER_S, KafkaException."""
        while self.end_from(reached) is None:
            self._outside.wait(threading.Event(), _FETCH_AGAIN_S)

    def fetched_end(self) -> int:
        """Log end as of the last fetch, without a request. Negative when nothing was fetched yet."""
        return self._consumer.get_watermark_offsets(TopicPartition(self.topic, self.partition), cached=True)[1]

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Up to `limit` records; waits at most `timeout` seconds for the first. Raises LogGoneError, KafkaException."""
        # consume(n, timeout) would wait for n records or the whole time-out: so wait for one, and take those fetched.
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        found = [first, *self._consumer.consume(limit - 1, 0)] if limit > 1 else [first]
        if not any([message.error() is not None for message in found]):  # noqa: C419 - a list is made in half the time
            # The usual case.
            last = found[-1].offset()
            assert last is not None
            self.position = last + 1
            self._fetch_short.note_contradiction()
            return found
        records: list[Message] = []
        for message in found:
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None
                self.position = offset + 1
                self._fetch_short.note_contradiction()
                records.append(message)
            elif error.code() == PARTITION_EOF:
                assert offset is not None
                self.position = max(self.position, offset)
                self._fetch_short.note_contradiction()
            elif error.code() in {AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                self._fetch_again(error)
                break
            elif error.code() == LOG_TRUNCATION:
                raise LogGoneError(f"{self.topic}[{self.partition}] was cut below {self.position}: {error.str()}")
            elif not error.retriable() and error.code() not in _PASSING:
                raise KafkaException(_named(error, self.topic))
        return records

    def _fetch_again(self, error: KafkaError) -> None:
        """Fetch again after a broker did not have the position: it is below the log, or above a former leader's end.

        Raises LogGoneError, KafkaException.
        """
        is_short = self._fetch_short.note(self._outside.monotonic())
        low, _ = self.watermarks()
        if self.position < low or is_short:
            raise LogGoneError(f"{self.topic}[{self.partition}] has no offset {self.position} any more: {error.str()}")
        self._outside.wait(threading.Event(), _FETCH_AGAIN_S)
        self._refresh_metadata(self.topic)
        self.start(self.position)

    def read_to(self, end: int, stopping: Callable[[], bool]) -> Iterator[Message]:
        """Yield every record below `end`, perhaps some behind it, until the position is at `end` or behind it.

        For a reader of committed records the EOF event may set this position: the last record may be a marker.
        Raises HangingTransactionError when the last stable offset stays below `end`, ReadStoppedError, KafkaException.
        """
        deadline = Deadline(STABLE_TIMEOUT_S, self._outside.monotonic)
        while self.position < end:
            before = self.position
            yield from self.poll(_READ_AT_ONCE, 0.2)
            if stopping():
                raise ReadStoppedError("asked to stop while reading")
            if self.position > before:
                deadline = Deadline(STABLE_TIMEOUT_S, self._outside.monotonic)
            elif deadline.is_over:
                # This raises the better error if Kafka does not answer.
                self.watermarks()
                raise HangingTransactionError(
                    f"{self.topic}[{self.partition}] can be read up to {self.position} only, not to its end {end}: "
                    f"a Kafka transaction hangs there. Find it: kafka-transactions.sh --bootstrap-server ... "
                    f"find-hanging --topic {self.topic} --partition {self.partition}",
                )

    def read_below(self, end: int, stopping: Callable[[], bool]) -> Iterator[Message]:
        """Yield every record below `end` and no other; the position may be behind `end` then. Raises as `read_to`."""
        for message in self.read_to(end, stopping):
            offset = message.offset()
            assert offset is not None
            if offset < end:
                yield message


def cut_agreement() -> Agreement:
    """The agreement of answers that a log ends below an offset that was reached: it was cut."""
    return Agreement(CUT_AFTER_S, _CUT_ANSWERS, _CUT_MOST_APART_S)


def _named(error: KafkaError, topic: str) -> KafkaError:
    """The error with the missing right. librdkafka looks up the coordinator of its group, though it never joins."""
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return named(error, "DESCRIBE", f"group {READER_GROUP}")
    return named(error, "READ", f"topic {topic}")


#: Errors that librdkafka reports and then recovers from by itself.
_PASSING = frozenset(
    {
        TRANSPORT,
        ALL_BROKERS_DOWN,
        RESOLVE,
        TIMED_OUT,
        MAX_POLL_EXCEEDED,
    },
)
