"""SEND in its three forms: half messages to HALF, all others to their topic. Each is answered once Kafka has it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from confluent_kafka import KafkaError

from txbridge.client.message import Message
from txbridge.core.half_message import half_headers
from txbridge_rocketmq import identity, mapping
from txbridge_rocketmq.access import AccessKey, require_group
from txbridge_rocketmq.codes import RequestError, Response
from txbridge_rocketmq.command import MAX_FRAME, Command
from txbridge_rocketmq.connection import Connection
from txbridge_rocketmq.ends import Ends
from txbridge_rocketmq.message import decompressed, parse_batch
from txbridge_rocketmq.metrics import Metrics
from txbridge_rocketmq.outlet import Outlet
from txbridge_rocketmq.requests import UNIQ_KEY, Send, parse_send, refuse_delay
from txbridge_rocketmq.setting import Setting
from txbridge_rocketmq.topics import Topics

#: RocketMQ's limit of properties is 32,767 bytes, and a check adds some of its own.
_MAX_CHECKED_PROPERTIES = 31 * 1024

#: Counts a request of a connection as open, and returns what is to be called when it is not any more.
Begin = Callable[[Connection], Callable[[], None]]
#: Answers a request with an error.
Refuse = Callable[[Connection, Command, RequestError], None]


class Sends:
    """Belongs to the event loop."""

    def __init__(
        self,
        setting: Setting,
        records: Outlet,
        ends: Ends,
        topics: Topics,
        metrics: Metrics,
        transactional: Callable[[str], None],
        begin: Begin,
        refuse: Refuse,
    ) -> None:
        """`transactional` is told each group that sends a half message."""
        self._setting = setting
        self._records = records
        self._ends = ends
        self._topics = topics
        self._metrics = metrics
        self._transactional = transactional
        self._begin = begin
        self._refuse = refuse
        #: Messages that wait until Kafka tells of their topic. Those that come later go behind them.
        self._later: Counter[str] = Counter()

    def send(self, connection: Connection, command: Command, key: AccessKey | None) -> Awaitable[None] | None:
        """Serve a SEND; what is returned is to be awaited. Raises RequestError."""
        began = time.monotonic()
        send = parse_send(command)
        require_group(key, send.group)
        mapping.check_group(send.group, self._setting.names)
        mapping.check_topic(send.topic, self._setting.names)
        if obstacle := self._setting.obstacle():
            raise RequestError(Response.SERVICE_NOT_AVAILABLE, obstacle)
        count = self._topics.known(send.topic)
        if count is None or send.topic in self._later:
            self._later[send.topic] += 1
            return self._send_later(connection, command, send, began)
        self._send_now(connection, command, send, count, began)
        return None

    async def _send_later(self, connection: Connection, command: Command, send: Send, began: float) -> None:
        try:
            partitions = await self._topics.partitions(send.topic)
        finally:
            self._later[send.topic] -= 1
            if not self._later[send.topic]:
                del self._later[send.topic]
        self._send_now(connection, command, send, partitions, began)

    def _send_now(self, connection: Connection, command: Command, send: Send, partitions: int, began: float) -> None:
        if not partitions:
            raise no_topic(send.topic)
        if send.queue_id >= partitions:
            raise RequestError(
                Response.INVALID_PARAMETER,
                f"request queueId[{send.queue_id}] is illegal, the topic has {partitions} partitions",
            )
        if send.is_batch:
            self._send_batch(connection, command, send, began)
        elif send.is_transactional:
            self._prepare(connection, command, send, began)
        else:
            message = self._message(connection, send, send.properties, command.body, send.sys_flag, send.flag)
            uniq_key = send.properties.get(UNIQ_KEY, "")

            def done(error: KafkaError | None, partition: int, offset: int) -> None:
                finish()
                self._metrics.sends.observe(time.monotonic() - began)
                if error is None:
                    connection.respond(
                        command, Response.SUCCESS, fields=_stored(connection, uniq_key, partition, partition, offset)
                    )
                else:
                    self._refuse(connection, command, _not_stored(error))

            if not self._produce(message, done):
                raise _busy()
            # Acknowledgements come in a later turn of the loop.
            finish = self._begin(connection)

    def _send_batch(self, connection: Connection, command: Command, send: Send, began: float) -> None:
        body = decompressed(command.body, send.sys_flag, MAX_FRAME)
        messages = []
        for one in parse_batch(body):
            refuse_delay(one.properties)
            messages.append(self._message(connection, send, one.properties, one.body, 0, one.flag))
        if not messages:
            raise RequestError(Response.MESSAGE_ILLEGAL, "the batch is empty")
        stored: dict[int, tuple[int, int]] = {}
        errors: list[RequestError] = []
        finish = self._begin(connection)
        left = len(messages)

        def settle() -> None:
            finish()
            self._metrics.sends.observe(time.monotonic() - began)
            if errors:
                # Some may be stored all the same: the client sends all of them again.
                self._refuse(connection, command, errors[0])
                return
            ids = [identity.message_id(connection.local, identity.packed(*stored[n])) for n in range(len(messages))]
            partition, offset = stored[0]
            fields = {**_stored(connection, "", partition, partition, offset), "msgId": ",".join(ids)}
            connection.respond(command, Response.SUCCESS, fields=fields)

        def done(number: int, error: KafkaError | None, partition: int, offset: int) -> None:
            nonlocal left
            left -= 1
            if error is None:
                stored[number] = (min(partition, identity.LARGEST_PARTITION), max(offset, 0))
            else:
                errors.append(_not_stored(error))
            if not left:
                settle()

        for number, message in enumerate(messages):
            if not self._produce(message, partial(done, number)):
                errors.append(_busy())
                left -= len(messages) - number
                if not left:
                    settle()
                break

    def _produce(self, message: Message, done: Callable[[KafkaError | None, int, int], None]) -> bool:
        partition = -1 if message.partition is None else message.partition
        return self._records.send(
            message.topic,
            message.value,
            message.key,
            list(message.headers),
            done,
            partition=partition,
            timestamp=message.timestamp,
        )

    def _prepare(self, connection: Connection, command: Command, send: Send, began: float) -> None:
        """A half message: the local transaction runs once it is answered."""
        group = send.properties.get("PGROUP", send.group)
        if group != send.group:
            raise RequestError(
                Response.MESSAGE_ILLEGAL, f"the property PGROUP is {group[:80]!r}, the producer group {send.group!r}"
            )
        if not self._ends.has_room:
            raise RequestError(
                Response.SYSTEM_BUSY, f"more than {self._ends.unsettled} decisions wait for Kafka: send again later"
            )
        if len(command.fields.get("i", command.fields.get("properties", "")).encode()) > _MAX_CHECKED_PROPERTIES:
            raise RequestError(
                Response.MESSAGE_ILLEGAL,
                f"the properties take more than {_MAX_CHECKED_PROPERTIES} bytes, and a check adds some of its own",
            )
        uniq_key = send.properties.setdefault(UNIQ_KEY, identity.new_uniq_key())
        message = self._message(connection, send, send.properties, command.body, send.sys_flag, send.flag)
        transaction = identity.transaction_id(self._setting.secret, group, uniq_key)
        headers = half_headers(
            message.headers,
            transaction_id=transaction,
            group=group,
            real_topic=message.topic,
            real_partition=message.partition,
            immunity_seconds=message.check_immunity_time,
            user_timestamp=message.timestamp,
        )
        # With a key Kafka's hash chooses, as for every client of txbridge.
        partition = -1 if message.key is not None else identity.half_partition(transaction, self._setting.partitions)
        self._transactional(group)

        def done(error: KafkaError | None, partition: int, offset: int) -> None:
            finish()
            self._metrics.sends.observe(time.monotonic() - began)
            if error is None and 0 <= partition < self._setting.partitions and offset >= 0:
                fields = _stored(connection, uniq_key, max(send.queue_id, 0), partition, offset)
                connection.respond(command, Response.SUCCESS, fields={**fields, "transactionId": uniq_key})
            else:
                self._refuse(connection, command, _not_stored(error))

        if not self._records.send(
            self._setting.names.half, message.value, message.key, headers, done, partition=partition
        ):
            raise _busy()
        # Acknowledgements come in a later turn of the loop.
        finish = self._begin(connection)

    def _message(
        self, connection: Connection, send: Send, properties: dict[str, str], body: bytes, sys_flag: int, flag: int
    ) -> Message:
        return mapping.record_of(
            send.topic,
            decompressed(body, sys_flag, self._setting.limits.value),
            properties,
            flag=flag,
            born=send.born,
            now=int(time.time() * 1000),
            born_host=connection.peer,
            queue_id=send.queue_id,
            limits=self._setting.limits,
        )


def _stored(connection: Connection, uniq_key: str, queue: int, partition: int, offset: int) -> dict[str, str]:
    """What a client wants to know of a message that is stored."""
    where = identity.packed(min(partition, identity.LARGEST_PARTITION), max(offset, 0))
    fields = {
        "msgId": identity.message_id(connection.local, where),
        "queueId": str(queue),
        "queueOffset": str(max(offset, 0)),
        "MSG_REGION": "DefaultRegion",
        # There is no trace topic here.
        "TRACE_ON": "false",
    }
    return {**fields, "transactionId": uniq_key} if uniq_key else fields


def no_topic(topic: str) -> RequestError:
    """For a topic that Kafka does not have."""
    return RequestError(
        Response.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}\nCreate the topic in Kafka: the txbridge door "
        "creates none.",
    )


def _busy() -> RequestError:
    return RequestError(Response.SYSTEM_BUSY, "too many messages wait for Kafka: send again later")


_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})


def _not_stored(error: KafkaError | None) -> RequestError:
    if error is None:
        return RequestError(Response.SERVICE_NOT_AVAILABLE, "Kafka did not tell its offset: send again")
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return RequestError(Response.TOPIC_NOT_EXIST, f"Kafka has not taken the message: {error.str()}")
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return RequestError(Response.NO_PERMISSION, f"Kafka has not taken the message: {error.str()}")
    if error.code() in _TOO_LARGE:
        return RequestError(Response.MESSAGE_ILLEGAL, f"Kafka has not taken the message: {error.str()}")
    return RequestError(Response.SERVICE_NOT_AVAILABLE, f"Kafka has not taken the message: {error.str()}")
