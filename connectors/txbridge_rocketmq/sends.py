"""Sender of clients' messages: half messages to HALF, all others to their topic. Answers wait for Kafka."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from txbridge.client.decide.decision_sender import MAX_UNSETTLED
from txbridge.client.message import Message, now_ms
from txbridge.core.decision_record import Decision, DecisionEntry, Source
from txbridge.core.half_message import half_headers
from txbridge.kafka.errors import QUEUE_FULL
from txbridge.log import get_logger
from txbridge.murmur2 import hash_key
from txbridge_rocketmq import identity, mapping
from txbridge_rocketmq.access import RareLines
from txbridge_rocketmq.codes import CONSUMER_REFUSAL, RequestError, ResponseCode
from txbridge_rocketmq.command import MAX_FRAME
from txbridge_rocketmq.door_options import DoorMetrics, DoorSetting
from txbridge_rocketmq.mapping import refuse_in_batch
from txbridge_rocketmq.message import decompressed, encode_properties, parse_batch
from txbridge_rocketmq.outlet import DecisionOutlet, Outlet, Report
from txbridge_rocketmq.requests import PGROUP, UNIQ_KEY, SendRequest
from txbridge_rocketmq.topics import NoAnswerError, Topics

#: RocketMQ's limit of properties is 32,767 bytes. A check adds UNIQ_KEY once more, and at most 700 bytes of its own.
_MAX_CHECKED_PROPERTIES = 31 * 1024

#: RocketMQ's own limit. A check has one byte for the length, which the clients of Java read with a sign.
_LONGEST_CHECKED_TOPIC = 127

#: Messages that are remembered. Clients with equal ids send them within seconds of each other. They take 3 MiB.
_MOST = 10_000

_log = get_logger("txbridge.rocketmq")


class EqualIds:
    """The ids of the last messages of a door, to warn of clients that make equal ones. For the event loop only."""

    def __init__(self, metrics: DoorMetrics) -> None:
        self._metrics = metrics
        #: Fingerprint and peer of a message, by a hash of group and UNIQ_KEY, which may be long.
        self._seen: dict[int, tuple[str, str]] = {}
        self._lines = RareLines()

    def note_message(self, group: str, uniq_key: str, fingerprint: str, peer: str) -> None:
        """Count the message if another one has had its id."""
        first = self._seen.setdefault(hash((group, uniq_key)), (fingerprint, peer))
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]
        if first[0] == fingerprint:
            return
        self._metrics.equal_ids.inc()
        if self._lines.may_log("", ""):
            _log.warning(
                "equal_message_ids",
                group=group,
                id=uniq_key[:80],
                peers=[first[1], peer],
                next="each message is a transaction of its own; give each container its own IP and MAC address",
            )


class StoredRecord(NamedTuple):
    """A message that Kafka has."""

    #: The client's id of the message; empty if it gave none.
    uniq_key: str
    #: Transaction id of a half message; empty for others.
    transaction: str
    #: Queue of the real topic, as the client knows it.
    queue: int
    #: Partition of HALF, or of the real topic.
    partition: int
    offset: int


class Sends:
    """Sender of clients' messages, for the event loop only."""

    def __init__(
        self,
        setting: DoorSetting,
        records: Outlet,
        ends: DecisionOutlet,
        topics: Topics,
        metrics: DoorMetrics,
        transactional: Callable[[str], Awaitable[str]],
    ) -> None:
        """`transactional` gets the group of each transactional message first, and returns why it is refused."""
        self._setting = setting
        self._records = records
        self._ends = ends
        self._topics = topics
        self._metrics = metrics
        self._transactional = transactional
        self._equal_ids = EqualIds(metrics)
        #: Number of messages of a topic that wait until Kafka has answered for it. Later messages wait behind them.
        self._later: Counter[str] = Counter()

    async def send_message(self, send: SendRequest, body: bytes, peer: str, client_id: str = "") -> list[StoredRecord]:
        """Send a message or a batch, and wait for Kafka. Messages leave in the order in which this is called.

        A client without an id is known by its host. Raises RequestError and NoAnswerError.
        """
        began = time.monotonic()
        if not send.is_trace:
            mapping.check_group(send.group, self._setting.names)
        mapping.check_topic(send.topic, self._setting.names)
        if obstacle := self._setting.obstacle():
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, obstacle)
        partitions = self._topics.cached_partitions(send.topic)
        if partitions is None or send.topic in self._later:
            partitions = await self._partitions_of(send.topic, peer)
        if not partitions and send.is_trace:
            # A client reports each error of its traces with a stack trace, and RocketMQ creates the topic.
            self._metrics.traces_dropped.inc()
            return [StoredRecord("", "", 0, 0, 0)]
        if not partitions:
            raise no_topic(send.topic)
        if send.queue_id >= partitions:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{send.queue_id}] is illegal, the topic has {partitions} partitions",
            )
        stored = self._begin_send(send, body, partitions, peer, client_id or peer.rpartition(":")[0])
        try:
            return await stored
        finally:
            self._metrics.sends.observe(time.monotonic() - began)

    async def _partitions_of(self, topic: str, peer: str) -> int:
        self._later[topic] += 1
        try:
            if self._topics.cached_partitions(topic) is not None:
                # Kafka has just answered, and earlier messages go on in this turn of the event loop.
                await asyncio.sleep(0)
            return await self._topics.count_partitions(topic, peer)
        finally:
            self._later[topic] -= 1
            if not self._later[topic]:
                del self._later[topic]

    def _begin_send(
        self, send: SendRequest, body: bytes, partitions: int, peer: str, client: str
    ) -> Coroutine[Any, Any, list[StoredRecord]]:
        """Hand the records to the producer, and return what waits for Kafka. Raises RequestError."""
        if send.is_batch:
            return self._begin_batch(send, body, partitions, peer)
        # A message without the client's id gets one, as from a broker of RocketMQ.
        uniq_key = send.properties[UNIQ_KEY] = send.properties.get(UNIQ_KEY) or secrets.token_hex(16).upper()
        message = self._make_message(send, send.properties, body, send.sys_flag, send.flag, peer)
        if send.is_transactional:
            self._require_checkable(send, uniq_key)
        is_delayed = message.deliver_at is not None and message.deliver_at > now_ms()
        if not (send.is_transactional or is_delayed):
            return self._await_stored(uniq_key, [self._send_record(message, partitions)])
        secret = self._setting.secret
        fingerprint = identity.fingerprint_of(
            secret, client, send.topic, message.value or b"", send.flag, send.properties
        )
        self._equal_ids.note_message(send.group, uniq_key, fingerprint, peer)
        if send.is_transactional:
            transaction = identity.transaction_id(secret, send.group, uniq_key, fingerprint)
            return self._await_checkable(send, message, uniq_key, transaction)
        transaction = identity.delayed_id(secret, send.group, uniq_key, fingerprint)
        return self._await_delayed(send, uniq_key, transaction, self._send_half(send, message, transaction))

    def _begin_batch(
        self, send: SendRequest, body: bytes, partitions: int, peer: str
    ) -> Coroutine[Any, Any, list[StoredRecord]]:
        messages = []
        for one in parse_batch(decompressed(body, send.sys_flag, MAX_FRAME)):
            refuse_in_batch(one.properties)
            messages.append(self._make_message(send, one.properties, one.body, 0, one.flag, peer))
        if not messages:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        return self._await_stored("", [self._send_record(message, partitions) for message in messages])

    @staticmethod
    async def _await_stored(uniq_key: str, records: list[asyncio.Future[Report]]) -> list[StoredRecord]:
        # In spite of an error some of a batch may be stored: the client sends all of them again.
        return [_stored(uniq_key, report) for report in [await one for one in records]]

    def _send_record(self, message: Message, partitions: int) -> asyncio.Future[Report]:
        partition = -1 if message.partition is None else message.partition
        if partition < 0 and message.key is not None:
            # As librdkafka would choose it. The outlet has to know which records wait behind which.
            partition = hash_key(message.key) % partitions
        return self._records.send_record(
            message.topic,
            message.value,
            message.key,
            list(message.headers),
            partition=partition,
            timestamp=message.timestamp,
        )

    @staticmethod
    def _require_checkable(send: SendRequest, uniq_key: str) -> None:
        """Raise RequestError if the client could not be asked about this transaction."""
        if len(send.topic) > _LONGEST_CHECKED_TOPIC:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the topic of a transactional message has at most {_LONGEST_CHECKED_TOPIC} characters, as in RocketMQ",
            )
        group = send.properties.get(PGROUP, send.group)
        if group != send.group:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the property PGROUP is {group[:80]!r}, the producer group {send.group!r}",
            )
        if len(f"{encode_properties(send.properties)}{uniq_key}".encode()) > _MAX_CHECKED_PROPERTIES:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties, with UNIQ_KEY twice as in a check, take more than {_MAX_CHECKED_PROPERTIES} bytes",
            )

    async def _await_checkable(
        self, send: SendRequest, message: Message, uniq_key: str, transaction: str
    ) -> list[StoredRecord]:
        """Send a half message, unless its group can get no checks: then the client must not run its transaction."""
        if refusal := await self._transactional(send.group):
            raise RequestError(ResponseCode.INVALID_PARAMETER, refusal)
        return await self._await_half(send, uniq_key, transaction, self._send_half(send, message, transaction))

    async def _await_delayed(
        self, send: SendRequest, uniq_key: str, transaction: str, record: asyncio.Future[Report]
    ) -> list[StoredRecord]:
        """Commit a message without a local transaction for later delivery, once its half message is stored.

        The answer comes when Kafka has both. A client without an answer sends the message again with the same UNIQ_KEY.
        That is the same transaction, and it is delivered once. If the commit is missing, the worker sends a check,
        which the door answers itself (`Door._ask_member`). It does not join the checks of a group because of such a
        message.
        """
        [half] = await self._await_half(send, uniq_key, transaction, record)
        entry = DecisionEntry(half.offset, transaction, Decision.COMMIT)
        reason = await self._ends.submit_decision(send.group, half.partition, Source.CLIENT, entry, is_awaited=True)
        if reason is not None:
            text = f"Kafka did not accept the commit of the delayed message: {reason}"
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, text)
        return [half._replace(transaction="")]

    def _send_half(self, send: SendRequest, message: Message, transaction: str) -> asyncio.Future[Report]:
        if self._ends.unsettled >= MAX_UNSETTLED:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{self._ends.unsettled} decisions are waiting for Kafka: send it again later"
            )
        headers = half_headers(
            message.headers,
            transaction_id=transaction,
            group=send.group,
            real_topic=message.topic,
            real_partition=message.partition,
            immunity_seconds=message.check_immunity_time,
            user_timestamp=message.timestamp,
            deliver_at=message.deliver_at,
        )
        partition = identity.half_partition(transaction, message.key, self._setting.partitions)
        return self._records.send_record(
            self._setting.names.half, message.value, message.key, headers, partition=partition
        )

    async def _await_half(
        self, send: SendRequest, uniq_key: str, transaction: str, record: asyncio.Future[Report]
    ) -> list[StoredRecord]:
        error, partition, offset = await record
        if error is not None or not (0 <= partition < self._setting.partitions and offset >= 0):
            raise _not_stored(error)
        return [StoredRecord(uniq_key, transaction, max(send.queue_id, 0), partition, offset)]

    def _make_message(
        self, send: SendRequest, properties: dict[str, str], body: bytes, sys_flag: int, flag: int, peer: str
    ) -> Message:
        return mapping.record_of(
            send.topic,
            decompressed(body, sys_flag, self._setting.limits.value),
            properties,
            flag=flag,
            born=send.born,
            now=now_ms(),
            born_host=peer,
            queue_id=send.queue_id,
            limits=self._setting.limits,
        )


def _stored(uniq_key: str, report: Report) -> StoredRecord:
    error, partition, offset = report
    if error is not None:
        raise _not_stored(error)
    # A message id has room for this many partitions. A topic with more still gets messages in all of them.
    return StoredRecord(uniq_key, "", partition, min(max(partition, 0), identity.LARGEST_PARTITION), max(offset, 0))


def as_request_error(error: Exception, request: str, peer: str) -> RequestError:
    """The error with which a request is answered. A defect of the door is logged with its trace."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NoAnswerError):
        return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"Kafka does not answer: {error}")
    _log.error("request_failed", peer=peer, request=request, exc_info=error)
    return RequestError(ResponseCode.SYSTEM_ERROR, f"the txbridge door failed: {type(error).__name__}")


def no_topic(topic: str) -> RequestError:
    """The error for a topic that Kafka does not have."""
    # Consumers, and administrators who ask about them, name the topic %RETRY%GROUP.
    advice = CONSUMER_REFUSAL if topic.startswith("%") else _CREATE
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}\n{advice}"
    )


_CREATE = (
    "Create the topic in Kafka: the txbridge door creates one only for an administrator, or in a test environment "
    "(--auto-create-topics)."
)


#: Codes for errors of Kafka after which sending again does not help.
_CODES = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: ResponseCode.TOPIC_NOT_EXIST,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ResponseCode.NO_PERMISSION,
    KafkaError.MSG_SIZE_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    KafkaError.INVALID_RECORD: ResponseCode.MESSAGE_ILLEGAL,
}


def _not_stored(error: KafkaError | None) -> RequestError:
    if error is None:
        return RequestError(
            ResponseCode.SERVICE_NOT_AVAILABLE, "Kafka did not return the offset of the message: send it again"
        )
    if error.code() == QUEUE_FULL:
        return RequestError(ResponseCode.SYSTEM_BUSY, "too many messages are waiting for Kafka: send it again later")
    code = _CODES.get(error.code(), ResponseCode.SERVICE_NOT_AVAILABLE)
    return RequestError(code, f"Kafka did not accept the message: {error.str()}")
