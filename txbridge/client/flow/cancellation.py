"""Cancellation of a committed transaction that is not delivered yet, with the rights of a client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from txbridge.client.announcement import Announcement
from txbridge.client.answers import SendStatus
from txbridge.client.base import process
from txbridge.client.decide.decision_sender import DecisionSender
from txbridge.client.kafka.connection import KafkaConnection, create_client
from txbridge.client.options import ClientOptions
from txbridge.client.result import CANCELLABLE, AsyncTransactionSendResult, CancelResult, TransactionSendResult
from txbridge.core.decision_record import Decision, DecisionEntry, Source
from txbridge.core.half_message import Reply, is_reply, parse_reply
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import is_transaction_id
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.errors import NO_LEADER, is_denied, named
from txbridge.kafka.headers import headers_of

#: A transaction by its result, or by its id alone.
Cancellable = Announcement[Any] | TransactionSendResult | AsyncTransactionSendResult | str
DEFAULT_CANCEL_TIMEOUT_S = 10.0
#: Longest wait (s) for a reply before the next look at the time and for a leader, and for an answer of Kafka.
_POLL_S = 0.2
_REQUEST_S = 5.0
#: Shortest time (s) for an answer of Kafka, although the caller's time is over.
_LEAST_S = 0.5


class Cancellation:
    """Asks the workers about transactions, and gives transactions up.

    1. What this client has decided before is stored in END.
    2. If the half coordinates are not known, every half partition is asked where the transaction is: an END record with
       the source `find`. The first that knows it counts.
    3. One that is scheduled or held is given up: an END record with the source `cancel`. The order of END decides
       whether that comes before the delivery.
    4. The worker replies to each of these records in the Kafka transaction that applies it.
    """

    def __init__(
        self, options: ClientOptions, connection: KafkaConnection, partitions: int, ends: DecisionSender
    ) -> None:
        self._options = options
        self._connection = connection
        self._partitions = partitions
        self._ends = ends

    def cancel(self, transaction: Cancellable, reason: str, timeout: float | None) -> CancelResult:
        """See TransactionProducer.cancel."""
        transaction_id, half = parse_cancellable(transaction, reason)
        deadline = Deadline(timeout)
        self._ends.flush(deadline.timeout)
        with closing(ReplyReader(self._options, self._connection)) as replies:
            ends = replies.ends_of_half(self._partitions, deadline) if half is None else []
            replies.start(deadline)
            if half is None:
                found = self._find(transaction_id, ends, replies, deadline)
                if found is None or found[1].state not in CANCELLABLE:
                    return CancelResult.of_reply(None if found is None else found[1])
                partition, offset = found[0], found[1].half_offset
                assert offset is not None
            else:
                partition, offset = half
            entry = DecisionEntry(offset, transaction_id, Decision.UNKNOWN, None, reason)
            for _, reply in self._ask({partition: entry}, Source.CANCEL, replies, deadline):
                return CancelResult.of_reply(reply)
        raise _late(
            f"the command stands in END, and is applied when a worker serves half partition {partition}. Whether it "
            f"comes before the delivery is not known: call cancel again to learn it"
        )

    def _find(
        self, transaction_id: str, ends: list[int], replies: ReplyReader, deadline: Deadline
    ) -> tuple[int, Reply] | None:
        """Half partition and reply of the worker that knows the transaction. None if all say that they do not."""
        # The last offset so far: the worker replies when it has read HALF beyond it. In an empty one is nothing.
        entries = {
            number: DecisionEntry(end - 1, transaction_id, Decision.UNKNOWN) for number, end in enumerate(ends) if end
        }
        for partition, reply in self._ask(entries, Source.FIND, replies, deadline):
            del entries[partition]
            if reply.state is not None:
                return partition, reply
        if entries:
            raise _late(
                f"nothing was cancelled, because it is not known where the transaction is. Look whether a worker "
                f"serves half partition {', '.join(map(str, entries))}, and call cancel again"
            )
        return None

    def _ask(
        self, entries: Mapping[int, DecisionEntry], source: Source, replies: ReplyReader, deadline: Deadline
    ) -> Iterator[tuple[int, Reply]]:
        """Send an END record for each half partition. Yields partition and reply as they come, until time is over."""
        names = {secrets.token_hex(16): partition for partition in entries}
        tickets = [
            self._ends.submit_command(partition, entries[partition], source, 0, name)
            for name, partition in names.items()
        ]
        for ticket in tickets:
            ticket.leave_soon()
            try:
                ticket.as_future().result(deadline.timeout)
            except TimeoutError:
                raise _late("nor has Kafka acknowledged the command in time; call cancel again") from None
        for reply in replies.read_replies(names, deadline):
            yield names[reply.name], reply


def parse_cancellable(transaction: Cancellable, reason: str) -> tuple[str, tuple[int, int] | None]:
    """Transaction id, and half coordinates if they are known. Raises UsageError, also without a reason."""
    if not reason.strip():
        raise UsageError("a reason is needed: the copy in the discard topic and the audit show it")
    if isinstance(transaction, str):
        if not is_transaction_id(transaction):
            raise UsageError(
                "this is no transaction id: it has 32 characters of 0-9A-F, see transaction_id of `tx` or of a result. "
                "By the first 8 an operator may give it up: `txbridge resolve ... abandon`"
            )
        return transaction, None
    if transaction.send_status is SendStatus.STORED:
        raise UsageError("this message is in the outbox, and no worker knows it: delete its row there")
    return transaction.transaction_id, (transaction.half_partition, transaction.half_offset)


def _late(what: str) -> TimeoutError:
    return TimeoutError(f"no worker has answered in time: {what}")


class ReplyReader:
    """Reads all partitions of the check topic, from their ends at its start. It is in no consumer group.

    librdkafka wants the name of a group, and looks it up. That of the checks is one that every client may see.
    """

    def __init__(self, options: ClientOptions, connection: KafkaConnection) -> None:
        self._connection = connection
        self._topic, self._half = options.names.check(options.group), options.names.half
        config = kafka_config.reader_config(options.settings, group=self._topic, read_committed=True)
        self._consumer = create_client(Consumer, config, connection)
        process.owns_handle(self)

    def close(self) -> None:
        self._consumer.close()

    def ends_of_half(self, partitions: int, deadline: Deadline) -> list[int]:
        """Return the offsets at which the partitions of HALF end. Raises EnvironmentProblemError.

        To be called before `start`: a broker answers only after a fetch that waits for records.
        """
        return [self._end_of(self._half, number, deadline) for number in range(partitions)]

    def start(self, deadline: Deadline) -> None:
        """Read from now on. Raises EnvironmentProblemError when Kafka does not say where the topic ends."""
        found = self._ask_kafka(self._topic, self._consumer.list_topics, self._topic, deadline).topics[self._topic]
        if found.error is not None:
            raise self._problem(self._topic, found.error)
        ends = {number: self._end_of(self._topic, number, deadline) for number in found.partitions}
        self._consumer.assign([TopicPartition(self._topic, *place) for place in ends.items()])

    def read_replies(self, wanted: Collection[str], deadline: Deadline) -> Iterator[Reply]:
        """Yield the first reply of each of these names as it comes. Ends early when the time is over.

        Raises EnvironmentProblemError if this user may not read replies.
        """
        missing = set(wanted)
        while missing and not deadline.is_over:
            record = self._consumer.poll(min(_POLL_S, deadline.left))
            if record is None:
                continue
            if (error := record.error()) is not None:
                if is_denied(error):
                    right = named(error, "READ", f"topic {self._topic}").str()
                    raise EnvironmentProblemError(f"what has become of it cannot be read: {right}")
                continue
            self._connection.note_answer()
            try:
                headers = headers_of(record)
                reply = parse_reply(headers) if is_reply(headers) else None
            except MalformedRecordError:
                # Somebody else's. The consumer of checks says so.
                continue
            if reply is not None and reply.name in missing:
                missing.remove(reply.name)
                yield reply

    def _end_of(self, topic: str, partition: int, deadline: Deadline) -> int:
        ask = self._consumer.get_watermark_offsets
        return int(self._ask_kafka(topic, ask, TopicPartition(topic, partition), deadline)[1])

    def _ask_kafka(self, topic: str, question: Any, what: object, deadline: Deadline) -> Any:
        while True:
            try:
                return question(what, timeout=max(_LEAST_S, min(_REQUEST_S, deadline.left)))
            except KafkaException as failure:
                if failure.args[0].code() not in NO_LEADER or deadline.is_over:
                    raise self._problem(topic, failure.args[0]) from failure
                time.sleep(_POLL_S)

    def _problem(self, topic: str, error: KafkaError) -> EnvironmentProblemError:
        right = "READ" if topic == self._topic else "WRITE"
        reason = named(error, right, f"topic {topic}").str()
        return EnvironmentProblemError(f"nothing was cancelled, as Kafka does not say where {topic} ends: {reason}")
