"""Reading one partition with a consumer of its own: no group, explicit offsets, and "to the end" that means it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from txbridge.broker.errors import HangingTransactionError, LogGoneError, StoppedError
from txbridge.broker.outside import OUTSIDE, Outside
from txbridge.core.names import READER_GROUP
from txbridge.denied import named
from txbridge.kafka_config import reader_config
from txbridge.log import librdkafka_logger

#: One metadata or offset request to a healthy broker takes milliseconds; five seconds spans a leader election.
_REQUEST_TIMEOUT_S = 5.0
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
    as storing the message did.
    """

    def __init__(
        self,
        kafka: Mapping[str, Any],
        topic: str,
        partition: int,
        *,
        committed: bool,
        on_demand: bool = False,
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
        if committed:
            config["fetch.wait.max.ms"] = _END_WAIT_MS
        self._consumer = outside.consumer(config)
        #: Offset of the next record, as far as this reader has come.
        self.position = -1

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

        Only a reader of uncommitted records sees the true end. Raises KafkaException.
        """
        topic = topic or self.topic
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(topic, self.partition), timeout=_REQUEST_TIMEOUT_S
            )
        except KafkaException as error:
            raise KafkaException(_named(error.args[0], topic)) from error
        return low, high

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
        records: list[Message] = []
        for message in found:
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None
                self.position = offset + 1
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public name for it
                assert offset is not None
                self.position = max(self.position, offset)
            elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
                raise LogGoneError(
                    f"{self.topic}[{self.partition}] has no offset {self.position} any more: {error.str()}",
                )
            elif not error.retriable() and error.code() not in _PASSING:
                raise KafkaException(_named(error, self.topic))
        return records

    def read_to(self, end: int, stopping: Callable[[], bool], batch: int = 5_000) -> Iterator[Message]:
        """Every record below `end`, until the reader stands there.

        For a reader of committed records "there" is the EOF event at or past `end`: the last record may be a marker.
        Raises HangingTransactionError when the last stable offset stays below `end`, StoppedError, KafkaException.
        """
        deadline = self._outside.monotonic() + STABLE_TIMEOUT_S
        while self.position < end:
            before = self.position
            yield from self.poll(batch, 0.2)
            if stopping():
                raise StoppedError("told to stop while reading")
            if self.position > before:
                deadline = self._outside.monotonic() + STABLE_TIMEOUT_S
            elif self._outside.monotonic() > deadline:
                # Is it Kafka that does not answer? Then this says so.
                self.watermarks()
                raise HangingTransactionError(
                    f"{self.topic}[{self.partition}] can be read up to {self.position} only, not to its end {end}: "
                    f"a Kafka transaction hangs there. Find it: kafka-transactions.sh --bootstrap-server ... "
                    f"find-hanging --topic {self.topic} --partition {self.partition}",
                )


def _named(error: KafkaError, topic: str) -> KafkaError:
    """Which right is missing: librdkafka looks the coordinator of its group up, though nothing is ever joined."""
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return named(error, "DESCRIBE", f"group {READER_GROUP}")
    return named(error, "READ", f"topic {topic}")


#: Errors that librdkafka reports and then mends by itself.
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
    },
)
