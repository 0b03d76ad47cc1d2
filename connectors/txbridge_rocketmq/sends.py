"""Sender of clients' messages: half messages to HALF, all others to their topic. Answers wait for Kafka."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from txbridge.client.message import Message, now_ms
from txbridge.core.decision_record import Decision, DecisionEntry, Source
from txbridge.core.half_message import half_headers
from txbridge.log import get_logger
from txbridge_rocketmq import identity, mapping
from txbridge_rocketmq.codes import RequestError, Response
from txbridge_rocketmq.command import MAX_FRAME
from txbridge_rocketmq.compression import decompressed
from txbridge_rocketmq.delays import refuse_in_batch
from txbridge_rocketmq.ends import Ends
from txbridge_rocketmq.message import encode_properties, parse_batch
from txbridge_rocketmq.metrics import Metrics
from txbridge_rocketmq.outlet import Outlet
from txbridge_rocketmq.requests import UNIQ_KEY, Send
from txbridge_rocketmq.setting import Setting
from txbridge_rocketmq.topics import NoAnswerError, Topics

#: RocketMQ's limit of properties is 32,767 bytes, and a check adds some of its own.
_MAX_CHECKED_PROPERTIES = 31 * 1024

_log = get_logger("txbridge.rocketmq")


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that Kafka has."""

    #: The client's id of the message; empty if it gave none.
    uniq_key: str
    #: Transaction id of a half message; empty for others.
    transaction: str
    #: Queue of the real topic, as the client is told.
    queue: int
    #: Partition of HALF, or of the real topic.
    partition: int
    offset: int


#: Takes the stored messages in the order of the request, or the error. Called once, in a later turn of the event loop.
Done = Callable[[list[Stored] | RequestError], None]


class Sends:
    """Sender of clients' messages, for the event loop only."""

    def __init__(
        self,
        setting: Setting,
        records: Outlet,
        ends: Ends,
        topics: Topics,
        metrics: Metrics,
        transactional: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`transactional` is called with the group of each transactional message."""
        self._setting = setting
        self._records = records
        self._ends = ends
        self._topics = topics
        self._metrics = metrics
        self._transactional = transactional
        self._spawn = spawn
        #: Number of messages of a topic that wait until Kafka has answered for it. Later messages wait behind them.
        self._later: Counter[str] = Counter()

    def submit(self, send: Send, body: bytes, peer: str, done: Done) -> None:
        """Send a message or a batch; `done` takes the outcome. Raises RequestError if it is refused at once."""
        began = time.monotonic()
        mapping.check_group(send.group, self._setting.names)
        mapping.check_topic(send.topic, self._setting.names)
        if obstacle := self._setting.obstacle():
            raise RequestError(Response.SERVICE_NOT_AVAILABLE, obstacle)

        def settled(outcome: list[Stored] | RequestError) -> None:
            self._metrics.sends.observe(time.monotonic() - began)
            done(outcome)

        count = self._topics.known(send.topic)
        if count is None or send.topic in self._later:
            self._later[send.topic] += 1
            self._spawn(self._send_later(send, body, peer, done, settled))
        else:
            self._send_now(send, body, peer, count, settled)

    async def _send_later(self, send: Send, body: bytes, peer: str, refused: Done, settled: Done) -> None:
        try:
            try:
                partitions = await self._topics.partitions(send.topic, peer)
            finally:
                self._later[send.topic] -= 1
                if not self._later[send.topic]:
                    del self._later[send.topic]
            self._send_now(send, body, peer, partitions, settled)
        except RequestError as error:
            refused(error)
        except NoAnswerError as error:
            refused(no_answer(error))
        except Exception as error:  # noqa: BLE001  one request must not end the door
            refused(failed("SEND", peer, error))

    def _send_now(self, send: Send, body: bytes, peer: str, partitions: int, done: Done) -> None:
        if not partitions:
            raise no_topic(send.topic)
        if send.queue_id >= partitions:
            raise RequestError(
                Response.INVALID_PARAMETER,
                f"request queueId[{send.queue_id}] is illegal, the topic has {partitions} partitions",
            )
        if send.is_batch:
            self._send_batch(send, body, peer, done)
        elif send.is_transactional:
            self._prepare(send, body, peer, done)
        else:
            self._send_plain(send, body, peer, done)

    def _send_plain(self, send: Send, body: bytes, peer: str, done: Done) -> None:
        uniq_key = _uniq_key_of(send)
        message = self._message(send, send.properties, body, send.sys_flag, send.flag, peer)
        if message.deliver_at is not None and message.deliver_at > now_ms():
            self._send_delayed(send, message, uniq_key, done)
            return

        def delivered(error: KafkaError | None, partition: int, offset: int) -> None:
            done([_stored(uniq_key, partition, offset)] if error is None else _not_stored(error))

        if not self._produce(message, delivered):
            raise _busy()

    def _send_batch(self, send: Send, body: bytes, peer: str, done: Done) -> None:
        messages = []
        for one in parse_batch(decompressed(body, send.sys_flag, MAX_FRAME)):
            refuse_in_batch(one.properties)
            messages.append(self._message(send, one.properties, one.body, 0, one.flag, peer))
        if not messages:
            raise RequestError(Response.MESSAGE_ILLEGAL, "the batch is empty")
        stored: dict[int, Stored] = {}
        errors: list[RequestError] = []
        left = len(messages)

        def settle() -> None:
            # In spite of an error some may be stored: the client sends all of them again.
            done(errors[0] if errors else [stored[number] for number in range(len(messages))])

        def delivered(number: int, error: KafkaError | None, partition: int, offset: int) -> None:
            nonlocal left
            left -= 1
            if error is None:
                stored[number] = _stored("", partition, offset)
            else:
                errors.append(_not_stored(error))
            if not left:
                settle()

        for number, message in enumerate(messages):
            if not self._produce(message, partial(delivered, number)):
                if not number:
                    raise _busy()
                errors.append(_busy())
                left -= len(messages) - number
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

    def _prepare(self, send: Send, body: bytes, peer: str, done: Done) -> None:
        """Send a half message. The client runs its local transaction when this is answered."""
        group = send.properties.get("PGROUP", send.group)
        if group != send.group:
            raise RequestError(
                Response.MESSAGE_ILLEGAL, f"the property PGROUP is {group[:80]!r}, the producer group {send.group!r}"
            )
        if len(encode_properties(send.properties).encode()) > _MAX_CHECKED_PROPERTIES:
            raise RequestError(
                Response.MESSAGE_ILLEGAL,
                f"the properties take more than {_MAX_CHECKED_PROPERTIES} bytes, and a check adds some of its own",
            )
        uniq_key = _uniq_key_of(send)
        message = self._message(send, send.properties, body, send.sys_flag, send.flag, peer)
        self._transactional(group)
        transaction = identity.transaction_id(self._setting.secret, send.group, uniq_key)
        self._send_half(send, message, uniq_key, transaction, done)

    def _send_delayed(self, send: Send, message: Message, uniq_key: str, done: Done) -> None:
        """Send a message without a local transaction for later delivery: a half message, and its commit at once.

        The answer comes when Kafka has both. A client without an answer sends the message again with the same UNIQ_KEY.
        That is the same transaction, and it is delivered once. If the commit is missing, the worker sends a check. The
        door answers it itself (`Door._ask`). The door does not join the checks of a group because of such a message.
        """
        transaction = identity.delayed_id(self._setting.secret, send.group, uniq_key)

        def prepared(outcome: list[Stored] | RequestError) -> None:
            if isinstance(outcome, RequestError):
                done(outcome)
                return
            [half] = outcome

            def settled(reason: str | None) -> None:
                if reason is None:
                    done([replace(half, transaction="")])
                else:
                    text = f"Kafka has not taken the commit of the delayed message: {reason}"
                    done(RequestError(Response.SERVICE_NOT_AVAILABLE, text))

            entry = DecisionEntry(half.offset, half.transaction, Decision.COMMIT)
            self._ends.submit(send.group, half.partition, Source.CLIENT, entry, settled)

        self._send_half(send, message, uniq_key, transaction, prepared)

    def _send_half(self, send: Send, message: Message, uniq_key: str, transaction: str, done: Done) -> None:
        if not self._ends.has_room:
            raise RequestError(
                Response.SYSTEM_BUSY, f"more than {self._ends.unsettled} decisions wait for Kafka: send again later"
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
        # With a key, Kafka's hash chooses the partition, as for every client of txbridge.
        partition = -1 if message.key is not None else identity.half_partition(transaction, self._setting.partitions)

        def delivered(error: KafkaError | None, partition: int, offset: int) -> None:
            if error is None and 0 <= partition < self._setting.partitions and offset >= 0:
                done([Stored(uniq_key, transaction, max(send.queue_id, 0), partition, offset)])
            else:
                done(_not_stored(error))

        if not self._records.send(
            self._setting.names.half, message.value, message.key, headers, delivered, partition=partition
        ):
            raise _busy()

    def _message(
        self, send: Send, properties: dict[str, str], body: bytes, sys_flag: int, flag: int, peer: str
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


def _uniq_key_of(send: Send) -> str:
    """The client's id of the message. A message without one gets one, as from a broker of RocketMQ."""
    if not send.properties.get(UNIQ_KEY):
        send.properties[UNIQ_KEY] = identity.new_uniq_key()
    return send.properties[UNIQ_KEY]


def _stored(uniq_key: str, partition: int, offset: int) -> Stored:
    # A message id has room for this many partitions. A topic with more still gets messages in all of them.
    return Stored(uniq_key, "", partition, min(max(partition, 0), identity.LARGEST_PARTITION), max(offset, 0))


def no_answer(error: NoAnswerError) -> RequestError:
    """The error for a question that Kafka has not answered."""
    return RequestError(Response.SERVICE_NOT_AVAILABLE, f"Kafka does not answer: {error}")


def failed(request: str, peer: str, error: Exception) -> RequestError:
    """The error for a defect of the door, which is logged with its trace."""
    _log.error("request_failed", peer=peer, request=request, exc_info=error)
    return RequestError(Response.SYSTEM_ERROR, f"the txbridge door failed: {type(error).__name__}")


def no_topic(topic: str) -> RequestError:
    """The error for a topic that Kafka does not have."""
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
