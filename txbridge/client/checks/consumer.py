"""Consumer of check requests, in a thread of its own. Requests finish in any order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Record

from txbridge.client.base import process
from txbridge.client.base.log import report
from txbridge.client.base.process import join
from txbridge.client.checks.calls import CheckRequest, parse_check
from txbridge.client.kafka.connection import KafkaConnection, create_client
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.core.half_message import is_reply
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names
from txbridge.errors import TxBridgeError
from txbridge.kafka.errors import named
from txbridge.kafka.headers import headers_of
from txbridge.proof import PROOF_EVERY_S

#: Longest wait (s) for a request. A request wakes the thread at once, so this only bounds the delay of a stop.
_POLL_S = 0.2
#: Most requests read at a time. If requests were read one by one, this thread and those of the application would take
#: the interpreter's lock from each other for each request.
_BATCH = 500
#: Seconds between commits of offsets. After a crash, at most the checks of this time are answered again, which the
#: worker refuses.
_COMMIT_S = 1.0
#: Time-out (s) of requests that find out whether Kafka answers, while no partition is assigned. librdkafka connects by
#: itself, but never reports success. Also, its group membership was seen to wait for a connection that nobody opened,
#: after no broker had been alive for a moment. During a request it tries to connect every 50 ms, so a short time-out is
#: enough.
_PROBE_S = 0.25
#: Time-out (s) of a request while partitions are assigned. It takes milliseconds. But a broker answers the requests of
#: a connection one after the other, and a fetch for new checks takes a second when there are none.
_LOOK_S = 2.0
#: How often (s) HALF and the check topic are looked up. It costs two small requests. It bounds the time for which a
#: group whose topic was deleted gets no checks. librdkafka itself learns of new partitions within 5 minutes.
_LOOK_EVERY_S = 30.0
#: Pause (s) after an unexpected error of this thread. It prevents a busy loop, and is short compared with
#: transaction_check_interval.
_RECOVERY_S = 1.0
#: Most bytes of messages in unanswered requests. An application with large messages and slow checks must not run out of
#: memory. RocketMQ bounds only the number.
_HOLD_BYTES = 64 * 1024 * 1024

#: Answers a request. Its second argument is called when the request is settled, from any thread.
Answer = Callable[[CheckRequest, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class CheckGroup:
    """Producer group of the checks, and the number of partitions of HALF."""

    name: str
    names: Names
    partitions: int


class CheckConsumer:
    """Reads check requests and hands each to `answer`, while fewer than `hold_max` are unanswered.

    Two threads must not use confluent-kafka's Consumer at once, because a call starves while another thread polls. So
    only this thread uses it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        connection: KafkaConnection,
        group: CheckGroup,
        answer: Answer,
        hold_max: int,
        watch: TopicWatch,
        make_topic: Callable[[], object],
    ) -> None:
        """`make_topic` creates the check topic, and raises TxBridgeError if it cannot."""
        self._connection = connection
        self._group = group
        self._answer = answer
        self._hold_max = hold_max
        self._watch = watch
        self._make_topic = make_topic
        self._topic = group.names.check(group.name)
        self._offsets = CheckOffsets()
        self._settled: deque[tuple[object, int, int, int]] = deque()
        self._held = self._held_bytes = 0
        self._paused = self._assigned = False
        #: Errors of the connection when Kafka was last asked with success.
        self._errors_seen = 0
        self._next_commit = self._next_probe = 0.0
        self._next_look = time.monotonic() + _LOOK_EVERY_S
        self._stopping = threading.Event()
        self._consumer = create_client(Consumer, config, connection)
        process.owns_handle(self)
        self.thread = threading.Thread(target=self._run, name="txbridge-check", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Read no more requests; returns at once."""
        self._stopping.set()

    def close(self, timeout: float | None = None) -> None:
        """Stop and leave the group. `timeout` is in seconds; None waits as long as librdkafka tries."""
        self._stopping.set()
        join(self.thread, timeout)

    def _run(self) -> None:
        self._subscribe_to_checks()
        while not self._stopping.is_set():
            try:
                self._poll_once()
            except BaseException as error:  # noqa: BLE001  nothing may end this thread: the group would die with it
                report(logging.ERROR, "check_thread_error", exception=error)
                self._stopping.wait(_RECOVERY_S)
        if not self._connection.is_lost:
            self._watch.look_at_new_topics()
        self._take_settled()
        self._commit_offsets()
        self._consumer.close()

    def _poll_once(self) -> None:
        record = self._consumer.poll(_POLL_S)
        if record is not None:
            self._take_record(record)
            # Read the other requests that are there. consume() alone would wait for a full batch.
            like_it = (_HOLD_BYTES - self._held_bytes) // max(len(record.value() or b""), 1)
            more = min(_BATCH, self._hold_max - self._held, like_it)
            for another in self._consumer.consume(more, 0) if more > 0 else ():
                self._take_record(another)
        self._take_settled()
        self._pause_or_resume()
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + _COMMIT_S
            self._commit_offsets()
        link = self._connection
        is_quiet = link.answered.age < PROOF_EVERY_S and link.errors == self._errors_seen and self._assigned
        if link.is_unsure or (not is_quiet and now >= self._next_probe):
            self._probe_kafka()
            # Counted from the question, so that an answer that is late, or lost, has a successor within FRESH_S.
            self._next_probe = now + PROOF_EVERY_S
        self._connection.check_answers()
        if not self._connection.is_lost:
            # This thread has a connection and time. Threads that send have neither.
            self._watch.look_at_new_topics()
            if now >= self._next_look:
                self._probe_kafka()
                self._keep_topic()
                self._next_look = time.monotonic() + _LOOK_EVERY_S

    def _subscribe_to_checks(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _keep_topic(self) -> None:
        """Create the check topic again if somebody has deleted it. Otherwise no check would come until a restart."""
        try:
            found = self._count_partitions(self._topic)
        except KafkaException:
            return
        if self._connection.refusal or isinstance(found, int) or found.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            return
        try:
            self._make_topic()
        except TxBridgeError as error:
            report(logging.ERROR, "check_topic_missing", topic=self._topic, error=str(error), next="trying again")
            return
        report(logging.WARNING, "check_topic_created_again", topic=self._topic, reason="somebody had deleted it")
        # librdkafka does not always notice that a topic of its subscription is there again.
        self._consumer.unsubscribe()
        self._subscribe_to_checks()

    def _take_record(self, record: Record) -> None:
        error = record.error()
        if error is not None:
            what = "group" if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else "topic"
            self._connection.note_trouble(named(error, "READ", f"{what} {self._topic}"), "checks_can_not_be_read")
            return
        self._connection.note_answer()
        partition, offset = record.partition(), record.offset()
        assert partition is not None
        assert offset is not None
        assigned = self._offsets.take_request(partition, offset)
        try:
            if is_reply(headers_of(record)):
                # Another process of the group, or a thread of this one, waits for it.
                self._offsets.finish_request(assigned, partition, offset)
                return
            request = parse_check(record, self._group.name, self._group.names, self._group.partitions)
        except MalformedRecordError as reason:
            report(
                logging.WARNING,
                "check_request_malformed",
                source=f"{self._topic}:{partition}:{offset}",
                reason=reason,
                next="skipped",
            )
            self._offsets.finish_request(assigned, partition, offset)
            return
        self._held += 1
        self._held_bytes += request.size
        self._answer(request, partial(self._settled.append, (assigned, partition, offset, request.size)))

    def _take_settled(self) -> None:
        while self._settled:
            assigned, partition, offset, size = self._settled.popleft()
            self._held -= 1
            self._held_bytes -= size
            self._offsets.finish_request(assigned, partition, offset)

    def _pause_or_resume(self) -> None:
        """Fetch nothing while too much is unanswered. Polling goes on, because group membership needs it."""
        if self._held >= self._hold_max or self._held_bytes >= _HOLD_BYTES:
            # Also when paused already, because a rebalance may have assigned partitions that are not paused.
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
        elif self._paused and self._held <= self._hold_max // 2 and self._held_bytes <= _HOLD_BYTES // 2:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _commit_offsets(self) -> None:
        positions = self._offsets.to_commit()
        if not positions:
            return
        try:
            self._consumer.commit(
                offsets=[TopicPartition(self._topic, partition, position) for partition, position in positions.items()],
                asynchronous=True,
            )
        except KafkaException as failure:
            # The partition is not assigned any more, or there is no coordinator. Repeated checks do no harm.
            report(logging.DEBUG, "check_commit_failed", error=failure.args[0].name())
        else:
            self._offsets.note_commit(positions)

    def _probe_kafka(self) -> None:
        with suppress(KafkaException):
            found = self._count_partitions(self._group.names.half, _LOOK_S if self._assigned else _PROBE_S)
            if isinstance(found, int):
                self._watch.note_partitions(found)

    def _count_partitions(self, topic: str, timeout: float = _LOOK_S) -> int | KafkaError:
        errors = self._connection.errors
        seen = self._consumer.list_topics(topic, timeout=timeout)
        self._connection.note_answer()
        self._connection.note_cluster(str(seen.cluster_id), errors)
        self._errors_seen = errors
        found = seen.topics[topic]
        return len(found.partitions) if found.error is None else found.error

    def _on_assign(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        # In a group with more members than partitions some have none. They need no request for a broker either.
        self._assigned = True

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._take_settled()
        self._commit_offsets()
        self._on_lost(_consumer, partitions)

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = False
        for assigned in partitions:
            self._offsets.drop_partition(assigned.partition)


class CheckOffsets:
    """Offsets taken and finished, per partition. All requests below a committed position are finished."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def take_request(self, partition: int, offset: int) -> object:
        """Take a request that was read. Returns a token for `finish_request`, void once the partition is given away."""
        assigned = self._partitions.setdefault(partition, _Partition(offset, offset))
        assigned.taken.append(offset)
        return assigned

    def finish_request(self, assigned: object, partition: int, offset: int) -> None:
        """Finish a request that is answered."""
        current = self._partitions.get(partition)
        if current is not assigned or current is None:
            # The partition went to another member meanwhile (and perhaps came back): its requests are read again.
            return
        current.finished.add(offset)
        while current.taken and current.taken[0] in current.finished:
            offset = current.taken.popleft()
            current.finished.remove(offset)
            current.position = offset + 1

    def drop_partition(self, partition: int) -> None:
        """Forget a partition that another member has now."""
        self._partitions.pop(partition, None)

    def to_commit(self) -> dict[int, int]:
        """Return the positions that moved since their last commit."""
        return {
            partition: state.position
            for partition, state in self._partitions.items()
            if state.position > state.committed
        }

    def note_commit(self, positions: dict[int, int]) -> None:
        for partition, position in positions.items():
            if partition in self._partitions:
                self._partitions[partition].committed = position


@dataclass(slots=True, eq=False)
class _Partition:
    position: int
    committed: int
    taken: deque[int] = field(default_factory=deque)
    finished: set[int] = field(default_factory=set)
