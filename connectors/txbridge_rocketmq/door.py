"""What the door does with each request. It remembers nothing that an answer to a client depends on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from txbridge.client.checks.request import CheckRequest
from txbridge.core.end_record import EndEntry, Source
from txbridge.core.names import is_topic, short_id
from txbridge.log import get_logger
from txbridge_rocketmq import identity, mapping, routes
from txbridge_rocketmq.access import AccessKey, require_group
from txbridge_rocketmq.codes import Request, RequestError, Response, consumer_refusal, refusal
from txbridge_rocketmq.command import MAX_FRAME, Command, oneway
from txbridge_rocketmq.connection import Connection, Memory
from txbridge_rocketmq.ends import Ends
from txbridge_rocketmq.groups import Groups, Join
from txbridge_rocketmq.metrics import Metrics
from txbridge_rocketmq.outlet import Outlet
from txbridge_rocketmq.requests import End, parse_end
from txbridge_rocketmq.sends import Sends, no_topic
from txbridge_rocketmq.setting import Setting
from txbridge_rocketmq.topics import NoAnswerError, Topics

_log = get_logger("txbridge.rocketmq")

#: The group that every client introduces for its own messages of retries; it has no transactions.
_INNER_GROUP = "CLIENT_INNER_PRODUCER"
#: Groups of one connection: more are no producers but an attack.
_MAX_GROUPS = 1_000


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
        sends = Sends(setting, records, ends, topics, metrics, self.groups.transactional, self._begin, self._refuse)
        self._handlers: dict[int, Callable[[Connection, Command, AccessKey | None], Awaitable[None] | None]] = {
            Request.SEND_MESSAGE: sends.send,
            Request.SEND_MESSAGE_V2: sends.send,
            Request.SEND_BATCH_MESSAGE: sends.send,
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
            raise no_topic(topic)
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
