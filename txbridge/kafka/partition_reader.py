"""A reader of one partition with its own consumer: no group, explicit offsets, and reads to the true end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from txbridge.core.names import READER_GROUP
from txbridge.deadline import Deadline
from txbridge.kafka import errors
from txbridge.kafka.config import reader_config
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import HangingTransactionError, LogGoneError, ReadStoppedError, UnansweredError
from txbridge.kafka.headers import offset_of
from txbridge.kafka.log_ends import LogEnds, cut_agreement

#: One metadata or offset request to a healthy broker takes milliseconds; five seconds spans a leader election.
_REQUEST_TIMEOUT_S = 5.0
#: Pause (s) before the next attempt, when a broker does not have a position yet.
_FETCH_AGAIN_S = 0.5
#: Most records that a read to the end takes at a time.
_READ_AT_ONCE = 5_000
#: Time (s) for which the last stable offset may stay behind. The coordinator aborts the transaction of a dead owner
#: after its transaction.timeout.ms (10 s by default for ours), and looks every 10 s.
STABLE_TIMEOUT_S = 30.0
#: KiB that a consumer fetches ahead. A partition has several readers, and 64 MiB for each, the default, would be too
#: much for a worker with many partitions.
_FETCH_AHEAD_KIB = 16_384
#: Pause before librdkafka fetches more, when that much is fetched. The default of 1,000 ms is so long that a reader
#: takes all fetched records and runs out of them.
_FETCH_ON_MS = 10
#: Most bytes of one fetch of a reader on demand: thousands of messages, as many as a large Kafka transaction has. The
#: default is 1 MiB.
_FETCH_ON_DEMAND_BYTES = 4 * 1024 * 1024
#: Time (ms) for which a broker delays an empty answer, in case records come; the default is 500. A reader that reads to
#: the end once learns by an empty answer that the end is reached. Any other request of the reader waits for the answer.
_END_WAIT_MS = 10
#: The same for a reader that waits at the end for new records, which end the delay. Each empty answer costs Kafka and
#: this process about a millisecond, and a worker has such a reader for each partition.
_FOLLOW_WAIT_MS = 5_000
#: librdkafka's default of socket.timeout.ms. It wants this to be at least a second longer than the delay.
_SOCKET_TIMEOUT_MS = 60_000


class PartitionReader:
    """A consumer of one partition; `committed` hides records of open and aborted transactions. Not thread-safe.

    It connects when it is started, and again after `close`.

    `on_demand` is for a caller that takes many records at a time, now and then: they are not fetched one by one as they
    come. One fetch for every message would cost Kafka about as much as storing the messages. It is the interval (ms) at
    which librdkafka looks whether all fetched records are taken, to fetch more, and the longest that a message waits
    for that. An idle reader does not look; it waits for Kafka's answer. `follows` is for a reader
    that waits at the end of the log for new records. `ends` says where logs end; without it, the reader asks by its own
    connection.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        topic: str,
        partition: int,
        *,
        committed: bool,
        on_demand: int = 0,
        follows: bool = False,
        ends: LogEnds | None = None,
        outside: Outside = OUTSIDE,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._outside = outside
        config = reader_config(kafka, group=READER_GROUP, read_committed=committed)
        config.setdefault("queued.max.messages.kbytes", _FETCH_AHEAD_KIB)
        if on_demand:
            config["queued.min.messages"] = 1
            config["fetch.queue.backoff.ms"] = on_demand
            config.setdefault("max.partition.fetch.bytes", _FETCH_ON_DEMAND_BYTES)
        else:
            config.setdefault("fetch.queue.backoff.ms", _FETCH_ON_MS)
        if follows:
            longest = int(config.get("socket.timeout.ms", _SOCKET_TIMEOUT_MS)) // 2
            config.setdefault("fetch.wait.max.ms", min(_FOLLOW_WAIT_MS, longest))
        else:
            config["fetch.wait.max.ms"] = _END_WAIT_MS
        self._config = config
        self._client: Consumer | None = None
        self._ends = ends
        #: Offset of the next record to read.
        self.position = -1
        #: Monotonic time (s) of the last stop; None while it is started or not connected.
        self._stopped_at: float | None = None
        # Answers to fetches that the log ends below the position.
        self._fetch_short = cut_agreement()

    def _connect(self) -> Consumer:
        if self._client is None:
            self._client = self._outside.consumer(self._config)
        return self._client

    def start(self, offset: int) -> None:
        """Read from this offset on."""
        self._connect().assign([TopicPartition(self.topic, self.partition, offset)])
        self.position = offset
        self._stopped_at = None

    def stop(self) -> None:
        """Fetch nothing more until the next start."""
        if self._client is not None:
            self._client.unassign()
            self._stopped_at = self._outside.monotonic()

    def close(self) -> None:
        """Give up the connection, and read no more until the next start."""
        if self._client is not None:
            self._client.close()
            self._client = self._stopped_at = None

    def close_if_unused(self, seconds: float) -> None:
        """Give up the connection if the reader was stopped this long ago: it takes threads and file descriptors."""
        if self._stopped_at is not None and self._outside.monotonic() - self._stopped_at >= seconds:
            self.close()

    def watermarks(self, topic: str | None = None) -> tuple[int, int]:
        """Log start and end of this partition, or of the one with its number in another topic.

        Without `ends`, only a reader of uncommitted records sees the true end. Raises TimeoutError, KafkaException.
        """
        topic = topic or self.topic
        try:
            if self._ends is not None:
                return self._ends.bounds(topic, self.partition)
            place = TopicPartition(topic, self.partition)
            return self._connect().get_watermark_offsets(place, timeout=_REQUEST_TIMEOUT_S)
        except UnansweredError as error:
            # What is being read is not read. The caller may be in the middle of a draft, and cannot just ask again.
            raise TimeoutError(str(error)) from error
        except KafkaException as error:
            raise KafkaException(_reading_right_named(error.args[0], topic)) from error

    def wait_for_end(self, reached: int) -> None:
        """Wait until the log ends at this offset or above. Raises LogGoneError when it does not for CUT_AFTER_S.

        Raises TimeoutError, KafkaException.
        """
        is_short = cut_agreement()
        while (end := self.watermarks()[1]) < reached:
            if is_short.note(self._outside.monotonic()):
                raise LogGoneError(f"{self.topic}[{self.partition}] ends at offset {end}, below {reached}")
            self._outside.wait(threading.Event(), _FETCH_AGAIN_S)

    def ask_who_leads(self) -> None:
        """Have librdkafka refresh the metadata, to learn who leads, without waiting for it.

        A broker answers the requests of a connection in order, and delays the answer to a fetch until records come. Any
        other request of this reader waits for that.
        """
        # A time-out is expected here. If no broker answers at all, the requests that wait will report it.
        with suppress(KafkaException):
            self._connect().list_topics(self.topic, timeout=0)

    def fetched_end(self) -> int:
        """Log end as of the last fetch, without a request. Negative when nothing was fetched yet."""
        place = TopicPartition(self.topic, self.partition)
        return self._connect().get_watermark_offsets(place, cached=True)[1]

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Up to `limit` records; waits at most `timeout` seconds for the first.

        Raises LogGoneError, TakeOverRefusedError for a batch that nobody can read, KafkaException.
        """
        # consume(n, timeout) would wait for n records or the whole time-out: so wait for one, and take those fetched.
        client = self._client
        assert client is not None
        first = client.poll(timeout)
        if first is None:
            return []
        found = [first, *client.consume(limit - 1, 0)] if limit > 1 else [first]
        if not any([message.error() is not None for message in found]):  # noqa: C419 - a list is made in half the time
            # The usual case.
            self.position = offset_of(found[-1]) + 1
            self._fetch_short.note_contradiction()
            return found
        records: list[Message] = []
        for message in found:
            error = message.error()
            if error is None:
                self.position = offset_of(message) + 1
                self._fetch_short.note_contradiction()
                records.append(message)
            elif error.code() == errors.PARTITION_EOF:
                self.position = max(self.position, offset_of(message))
                self._fetch_short.note_contradiction()
            elif error.code() in errors.OUT_OF_RANGE:
                self._fetch_again(error)
                break
            elif error.code() == errors.LOG_TRUNCATION:
                raise LogGoneError(f"{self.topic}[{self.partition}] was cut below {self.position}: {error.str()}")
            elif error.code() in errors.UNREADABLE:
                raise errors.unreadable_batch(error, self.topic, self.partition)
            elif not error.retriable() and error.code() not in _PASSING:
                raise KafkaException(_reading_right_named(error, self.topic))
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
        # Of this client, which has to fetch from the leader.
        self._connect().list_topics(self.topic, timeout=_REQUEST_TIMEOUT_S)
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
                    f"find-hanging --topic {self.topic} --partition {self.partition}"
                )

    def read_below(self, end: int, stopping: Callable[[], bool]) -> Iterator[Message]:
        """Yield every record below `end` and no other; the position may be behind `end` then. Raises as `read_to`."""
        for message in self.read_to(end, stopping):
            if offset_of(message) < end:
                yield message


#: Errors that librdkafka reports and then recovers from by itself.
_PASSING = frozenset(
    {errors.TRANSPORT, errors.ALL_BROKERS_DOWN, errors.RESOLVE, errors.TIMED_OUT, errors.MAX_POLL_EXCEEDED}
)


def _reading_right_named(error: KafkaError, topic: str) -> KafkaError:
    """The error with the missing right. librdkafka looks up the coordinator of its group, though it never joins."""
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return errors.named(error, "DESCRIBE", f"group {READER_GROUP}")
    return errors.named(error, "READ", f"topic {topic}")
