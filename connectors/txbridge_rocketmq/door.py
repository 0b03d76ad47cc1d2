"""What the door does with each request. It remembers nothing that an answer to a client depends on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from txbridge.client.checks.request import CheckRequest
from txbridge.client.message import Limits, Message
from txbridge.core.end_record import EndEntry, Source
from txbridge.core.half_message import half_headers
from txbridge.core.names import Names, is_topic, short_id
from txbridge.log import get_logger
from txbridge_rocketmq import identity, mapping, routes
from txbridge_rocketmq.access import Access, AccessKey, require_group
from txbridge_rocketmq.codes import Request, RequestError, Response, consumer_refusal, refusal
from txbridge_rocketmq.command import MAX_FRAME, Command, oneway
from txbridge_rocketmq.connection import Connection, Memory
from txbridge_rocketmq.ends import Ends
from txbridge_rocketmq.groups import Groups, Join
from txbridge_rocketmq.message import decompressed, parse_batch
from txbridge_rocketmq.metrics import Metrics
from txbridge_rocketmq.outlet import Outlet
from txbridge_rocketmq.requests import UNIQ_KEY, End, Send, parse_end, parse_send, refuse_delay
from txbridge_rocketmq.topics import NoAnswerError, Topics

_log = get_logger("txbridge.rocketmq")

#: The group that every client introduces for its own messages of retries; it has no transactions.
_INNER_GROUP = "CLIENT_INNER_PRODUCER"
#: Groups of one connection: more are no producers but an attack.
_MAX_GROUPS = 1_000
#: RocketMQ's limit of properties is 32,767 bytes, and a check adds some of its own.
_MAX_CHECKED_PROPERTIES = 31 * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """What a door is made of that does not change while it runs."""

    names: Names
    #: Of HALF.
    partitions: int
    limits: Limits
    secret: bytes
    #: Addresses of all doors, as clients reach them.
    addresses: tuple[str, ...]
    access: Access
    #: Why nothing may be sent; empty while all is well.
    obstacle: Callable[[], str]


class Door:
    """Belongs to the event loop."""

    def __init__(
        self,
        setting: Setting,
        records: Outlet,
        ends: Ends,
        topics: Topics,
        join: Join,
        metrics: Metrics,
        connections: set[Connection],
        *,
        memory: int,
        max_groups: int,
    ) -> None:
        self._setting = setting
        self._records = records
        self._ends = ends
        self._topics = topics
        self._metrics = metrics
        self.memory = Memory(memory)
        self.max_frame = MAX_FRAME
        self.groups = Groups(topics, setting.names.check, join, self._ask, metrics, max_groups)
        self.connections = connections
        self._tasks: set[asyncio.Task[None]] = set()
        #: Requests that are being handled.
        self._open = 0
        self._idle = asyncio.Event()
        #: Messages that wait until Kafka tells of their topic. Those that come later go behind them.
        self._later: Counter[str] = Counter()
        self._handlers: dict[int, Callable[[Connection, Command, AccessKey | None], Awaitable[None] | None]] = {
            Request.SEND_MESSAGE: self._send,
            Request.SEND_MESSAGE_V2: self._send,
            Request.SEND_BATCH_MESSAGE: self._send,
            Request.END_TRANSACTION: self._end,
            Request.HEART_BEAT: self._heartbeat,
            Request.UNREGISTER_CLIENT: self._unregister,
            Request.GET_ROUTEINFO_BY_TOPIC: self._route,
        }

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all doors, as clients reach them."""
        return self._setting.addresses

    # --- what a connection tells --------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self._metrics.connections.set(len(self.connections))

    def closed(self, connection: Connection, reason: str | None) -> None:
        self.connections.discard(connection)
        self._metrics.connections.set(len(self.connections))
        if reason is not None:
            self._metrics.closed.labels(reason).inc()
        self.groups.drop(connection)

    def answered(self, request: int, code: int) -> None:
        # Codes are what any client says; only known ones become a label.
        name = Request(request).name if request in _REQUESTS else "(other)"
        self._metrics.requests.labels(name, Response(code).name).inc()

    def handle(self, connection: Connection, command: Command) -> None:
        """Serve one request; never raises."""
        if command.is_response:
            # A client that answers a check, which none does.
            return
        handler = self._handlers.get(command.code)
        try:
            key = self._setting.access.check(command.fields, command.body)
            if handler is None:
                raise RequestError(Response.REQUEST_CODE_NOT_SUPPORTED, refusal(command.code))  # noqa: TRY301
            work = handler(connection, command, key)
        except RequestError as error:
            self._refuse(connection, command, error)
        except Exception as error:  # noqa: BLE001  one request must not end the door
            self._failed(connection, command, error)
        else:
            if work is not None:
                self._spawn(self._finish(connection, command, work, self._begin(connection)))

    async def _finish(
        self, connection: Connection, command: Command, work: Awaitable[None], finish: Callable[[], None]
    ) -> None:
        try:
            await work
        except RequestError as error:
            self._refuse(connection, command, error)
        except NoAnswerError as error:
            connection.respond(command, Response.SERVICE_NOT_AVAILABLE, f"Kafka does not answer: {error}")
        except Exception as error:  # noqa: BLE001  as above
            self._failed(connection, command, error)
        finally:
            finish()

    def _refuse(self, connection: Connection, command: Command, error: RequestError) -> None:
        _log.debug("request_refused", peer=connection.peer, request=command.code, code=error.code, remark=error.remark)
        connection.respond(command, error.code, error.remark)

    def _failed(self, connection: Connection, command: Command, error: Exception) -> None:
        _log.error("request_failed", peer=connection.peer, request=command.code, exc_info=error)
        connection.respond(command, Response.SYSTEM_ERROR, f"the txbridge door failed: {type(error).__name__}")

    def _begin(self, connection: Connection) -> Callable[[], None]:
        finish_reading = connection.begin()
        self._open += 1
        self._idle.clear()

        def finish() -> None:
            self._open -= 1
            if not self._open:
                self._idle.set()
            finish_reading()

        return finish

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- routes and heartbeats ----------------------------------------------------------------------------------------

    async def _route(self, connection: Connection, command: Command, _key: AccessKey | None) -> None:
        topic = command.fields.get("topic", "")
        if not topic:
            raise RequestError(Response.INVALID_PARAMETER, "topic is missing")
        if topic == routes.DEFAULT_TOPIC:
            # A client asks for it to learn an address, before it knows any topic or when it does not exist.
            count = routes.DEFAULT_QUEUES
        else:
            known = is_topic(topic) and not self._setting.names.is_forbidden(topic)
            count = await self._topics.partitions(topic) if known else 0
        if not count:
            raise _no_topic(topic)
        body = routes.route(self._setting.addresses, min(count, identity.LARGEST_PARTITION + 1))
        connection.respond(command, Response.SUCCESS, body=body)

    def _heartbeat(self, connection: Connection, command: Command, key: AccessKey | None) -> None:
        producers, has_consumers = _introduced(command.body)
        good, problem = set(), None
        for name in producers - {_INNER_GROUP}:
            try:
                require_group(key, name)
                mapping.check_group(name, self._setting.names)
            except RequestError as error:
                problem = error
            else:
                good.add(name)
        # One that is refused must not keep the others of the process from being asked.
        self.groups.introduce(connection, frozenset(good))
        if problem is not None:
            raise problem
        if has_consumers:
            # Its producers are served all the same.
            raise RequestError(Response.NO_PERMISSION, consumer_refusal())
        connection.respond(command, Response.SUCCESS)

    def _unregister(self, connection: Connection, command: Command, key: AccessKey | None) -> None:
        if group := command.fields.get("producerGroup"):
            require_group(key, group)
            self.groups.forget(connection, group)
        connection.respond(command, Response.SUCCESS)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _send(self, connection: Connection, command: Command, key: AccessKey | None) -> Awaitable[None] | None:
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
            raise _no_topic(send.topic)
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
        body = decompressed(command.body, send.sys_flag, self.max_frame)
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
                stored[number] = (partition, max(offset, 0))
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
        self.groups.transactional(group)

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

    # --- decisions and checks -----------------------------------------------------------------------------------------

    def _end(self, connection: Connection, command: Command, key: AccessKey | None) -> None:
        end = parse_end(command)
        require_group(key, end.group)
        mapping.check_group(end.group, self._setting.names)
        if end.half_partition >= self._setting.partitions:
            raise RequestError(
                Response.SYSTEM_ERROR, "Find prepared transaction message failed: no such half partition"
            )
        finish = self._begin(connection)

        def settled(reason: str | None) -> None:
            finish()
            if reason is None:
                connection.respond(command, Response.SUCCESS)
            else:
                self._metrics.ends_lost.inc()
                connection.respond(command, Response.SERVICE_NOT_AVAILABLE, f"Kafka has not taken the END: {reason}")

        self._ends.submit(
            end.group,
            end.half_partition,
            Source.CHECK if end.is_answer else Source.CLIENT,
            self._entry(end),
            settled,
        )

    def _entry(self, end: End) -> EndEntry:
        transaction = identity.transaction_id(self._setting.secret, end.group, end.uniq_key)
        return EndEntry(end.half_offset, transaction, end.decision, end.check_times, end.remark)

    def _ask(self, group: str, request: CheckRequest, members: list[Connection]) -> None:
        """Ask one of them, first of all the connection that has sent the message."""
        message = request.message
        uniq_key = mapping.uniq_key_of(message)
        if uniq_key is None or identity.transaction_id(self._setting.secret, group, uniq_key) != message.transaction_id:
            self._metrics.checks.labels("not_ours").inc()
            _log.warning(
                "check_of_another_client",
                group=group,
                transaction=short_id(message.transaction_id),
                next="give every kind of client a group of its own, and all doors one secret",
            )
            return
        born_host = dict(message.headers).get(mapping.BORN_HOST, b"") or b""
        own = [one for one in members if one.peer.encode() == born_host]
        chosen = next((one for one in [*own, *members] if one.takes_checks), None)
        if chosen is None:
            self._metrics.checks.labels("not_sent").inc()
            _log.warning("check_not_sent", group=group, reason="no connection of the group takes anything")
            return
        stored = mapping.checked(message, group, chosen.local)
        fields = {
            # As in RocketMQ both come back with the answer; the first also tells which check it was.
            "tranStateTableOffset": str(identity.packed(message.check_times & 0x7FFF, message.half_offset)),
            "commitLogOffset": str(stored.physical_offset),
            "msgId": uniq_key,
            "transactionId": uniq_key,
            "offsetMsgId": identity.message_id(chosen.local, stored.physical_offset),
            "topic": message.topic,
            "bname": routes.broker_name(self._setting.addresses[0]),
        }
        body = stored.encode()
        chosen.ask(lambda opaque: oneway(Request.CHECK_TRANSACTION_STATE, opaque, fields, body))
        self._metrics.checks.labels("sent").inc()

    async def close(self, patience: float) -> None:
        """Answer what is being handled (s), then close all connections."""
        if self._open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), patience)
        await self.groups.close()
        for connection in list(self.connections):
            connection.close()
        for task in self._tasks:
            task.cancel()


_REQUESTS = frozenset(Request)


def _stored(connection: Connection, uniq_key: str, queue: int, partition: int, offset: int) -> dict[str, str]:
    """What a client wants to know of a message that is stored."""
    fields = {
        "msgId": identity.message_id(connection.local, identity.packed(partition, max(offset, 0))),
        "queueId": str(queue),
        "queueOffset": str(max(offset, 0)),
        "MSG_REGION": "DefaultRegion",
        # There is no trace topic here.
        "TRACE_ON": "false",
    }
    return {**fields, "transactionId": uniq_key} if uniq_key else fields


def _no_topic(topic: str) -> RequestError:
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


def _introduced(body: bytes) -> tuple[frozenset[str], bool]:
    """The producer groups of a heartbeat, and whether it has consumers. Raises RequestError."""
    try:
        given = json.loads(body)
        producers = [one["groupName"] for one in given.get("producerDataSet") or ()]
        has_consumers = bool(given.get("consumerDataSet"))
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        raise RequestError(Response.INVALID_PARAMETER, "the heartbeat is not RocketMQ's JSON") from None
    if not all(isinstance(one, str) for one in producers) or len(producers) > _MAX_GROUPS:
        raise RequestError(Response.INVALID_PARAMETER, f"a heartbeat names at most {_MAX_GROUPS} producer groups")
    return frozenset(producers), has_consumers
