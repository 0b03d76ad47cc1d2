"""A door as a process. It connects to Kafka and then takes clients; at the end it stops both in reverse order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.client.checks.consumer import CheckConsumer, Group
from txbridge.client.checks.request import CheckRequest
from txbridge.client.kafka.connection import Connection as KafkaConnection
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.message import Limits
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import Bounds, KafkaUnreachableError
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.log import librdkafka_logger
from txbridge.log import get_logger
from txbridge.proof import PROOF_EVERY_S, Proof
from txbridge.topics.verify import Layout, check_layout, ensure_check_topic
from txbridge.web.server import Web
from txbridge_rocketmq.connection import Connection
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.ends import Ends
from txbridge_rocketmq.identity import LARGEST_PARTITION
from txbridge_rocketmq.metrics import Metrics
from txbridge_rocketmq.options import DoorOptions
from txbridge_rocketmq.outlet import Outlet
from txbridge_rocketmq.remoting import Remoting
from txbridge_rocketmq.server import Server
from txbridge_rocketmq.setting import Setting
from txbridge_rocketmq.topics import LookUps, Topics, look_up

#: Linger of half messages and plain ones (ms): half of the time that Kafka takes to acknowledge, as in txbridge's own
#: client when many callers wait.
_LINGER_MS = 0.5
#: Time-out of a look at HALF (s). It takes milliseconds if Kafka answers.
_LOOK_S = 2.0
#: Pause (s) between attempts to reach Kafka at the start. An attempt itself waits for a connection.
_START_PAUSE_S = 2.0
#: Time (s) for the answers to open requests at the end. A SEND waits for Kafka for three seconds.
_PATIENCE_S = 5.0
#: Time-out for leaving a group (s). It takes milliseconds if Kafka answers.
_LEAVE_GROUP_S = 3.0
#: Seconds between two signs of life of the event loop.
_ALIVE_EVERY_S = 1.0
#: Maximum of checks that are read and not yet handed to a client. They are handed over at once.
_CHECKS_HELD = 2_000

_log = get_logger("txbridge.rocketmq")


def run(settings: WorkerSettings, options: DoorOptions) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises TxBridgeError if it cannot start: LayoutError, LocalProblemError, UsageError and errors of Kafka.
    """
    kafka = KafkaConnection(settings.bootstrap_servers)
    admin = kafka_config.create(
        AdminClient,
        {
            "logger": librdkafka_logger(),
            **kafka_config.admin_config(settings.librdkafka),
            "error_cb": kafka.on_error,
        },
    )
    layout = _layout(settings, admin)
    asyncio.run(_serve(settings, options, kafka, admin, layout))


def _layout(settings: WorkerSettings, admin: AdminClient) -> Layout:
    """Layout of the topics. It waits while Kafka cannot be reached: a restart of the container would not be faster."""
    while True:
        try:
            return check_layout(admin, Names(settings.namespace), client=True)
        except KafkaUnreachableError as error:
            _log.warning("kafka_not_reached", reason=str(error), next="trying again")
            time.sleep(_START_PAUSE_S)


async def _serve(
    settings: WorkerSettings, options: DoorOptions, kafka: KafkaConnection, admin: AdminClient, layout: Layout
) -> None:
    loop = asyncio.get_running_loop()
    names, user = Names(settings.namespace), settings.librdkafka
    metrics, watch = Metrics(), TopicWatch(names, layout.partitions)
    if layout.partitions > LARGEST_PARTITION + 1:
        raise UsageError(f"{names.half} has more than the {LARGEST_PARTITION + 1} partitions that an END can name")

    def look_at_half() -> int | KafkaError:
        found = admin.list_topics(names.half, timeout=_LOOK_S).topics[names.half]
        return len(found.partitions) if found.error is None else found.error

    requests = ControllerRequests(
        lambda: kafka_config.create(AdminClient, {"logger": librdkafka_logger(), **kafka_config.admin_config(user)})
    )
    topics = Topics(partial(look_up, requests))
    records = Outlet(
        kafka_config.half_producer_config(user, max_message_bytes=layout.half_max_message_bytes, linger_ms=_LINGER_MS),
        kafka,
        "messages",
    )
    end_outlet = Outlet(kafka_config.end_producer_config(user), kafka, "ENDs")
    alive = Proof()
    beating = asyncio.create_task(_beat(alive))
    server: Server | None = None
    web: Web | None = None
    door: Door | None = None
    remoting: Remoting | None = None
    rpc: Any = None
    rpc_port: int | None = None
    try:
        for outlet, topic in ((records, names.half), (end_outlet, names.end)):
            await asyncio.to_thread(outlet.start, loop, topic)
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        remoting_of: list[Remoting] = []
        connections: set[Connection] = set()
        server = Server(lambda: Connection(remoting_of[0]), connections, options.max_connections, options.tls)
        port = server.listen(options.host, options.port)
        if options.old_port:
            server.listen(options.host, port - 2)
        if options.grpc is not None:
            # Imported only if it is needed: it takes 30 MiB.
            from txbridge_rocketmq.grpc_service import Listener, Service  # noqa: PLC0415

            rpc = Listener(options.max_connections, layout.max_message_size)
            rpc_port = rpc.listen(*options.grpc, options.pem)
        door = Door(
            Setting(
                names=names,
                partitions=layout.partitions,
                limits=Limits.of(layout, settings.timer_max_delay),
                secret=options.secret,
                addresses=options.addresses or (f"{options.host}:{port}",),
                grpc_addresses=options.grpc_addresses or (f"{options.grpc[0]}:{rpc_port}",) if options.grpc else (),
                access=options.access,
                obstacle=lambda: watch.refusal,
            ),
            records,
            Ends(end_outlet, names.end, f"door {socket.gethostname()}@{os.getpid()}"),
            topics,
            LookUps(partial(look_up, requests), 1),
            partial(_join, user, names, layout, kafka, admin),
            metrics,
            memory=options.memory,
            max_groups=options.max_groups,
        )
        remoting = Remoting(door, connections)
        remoting_of.append(remoting)
        if options.metrics_port:
            web = Web(
                options.metrics_host,
                options.metrics_port,
                metrics.registry,
                {"/livez": lambda: _not_alive(alive), "/readyz": lambda: _not_ready(kafka, watch, stopped)},
            )
            web.start()
        server.start()
        if rpc is not None:
            await rpc.start(Service(door, max_streams=options.max_connections))
        watching = asyncio.create_task(_watch(kafka, watch, look_at_half))
        _log.info(
            "door_started",
            port=port,
            addresses=remoting.addresses,
            grpc_port=rpc_port,
            namespace=names.namespace,
            partitions=layout.partitions,
            bootstrap_servers=settings.bootstrap_servers,
            access_keys=options.access.is_demanded,
            tls=options.tls is not None,
        )
        await stopped.wait()
        _log.info("door_stopping", connections=len(connections))
        watching.cancel()
    finally:
        if server is not None:
            server.close()
        if door is not None and remoting is not None:
            if rpc is not None:
                await rpc.close(_PATIENCE_S)
            await door.drain(_PATIENCE_S)
            remoting.close()
            door.close()
        topics.close()
        for outlet in (records, end_outlet):
            await asyncio.to_thread(outlet.close)
        if web is not None:
            web.close()
        beating.cancel()
    _log.info("door_stopped")


class _Membership:
    """The door as a member of a group's checks."""

    def __init__(self, consumer: CheckConsumer) -> None:
        self._consumer = consumer

    def stop(self) -> None:
        self._consumer.stop()

    def close(self) -> None:
        self._consumer.close(_LEAVE_GROUP_S)


def _join(
    user: dict[str, Any],
    names: Names,
    layout: Layout,
    kafka: KafkaConnection,
    admin: AdminClient,
    group: str,
    take: Callable[[CheckRequest, Callable[[], None]], None],
    is_unwanted: Callable[[], bool],
) -> _Membership:
    bounds = Bounds(is_unwanted=is_unwanted)
    bounds.require_wanted()
    make_check_topic = partial(ensure_check_topic, admin, names, group, layout, bounds=bounds)
    make_check_topic()
    consumer = CheckConsumer(
        kafka_config.check_consumer_config(user, group=names.check(group)),
        kafka,
        Group(group, names, layout.partitions),
        take,
        _CHECKS_HELD,
        TopicWatch(names, layout.partitions),
        make_check_topic,
    )
    consumer.start()
    return _Membership(consumer)


async def _watch(kafka: KafkaConnection, watch: TopicWatch, look: Callable[[], int | KafkaError]) -> None:
    """Watch HALF and Kafka. HALF must keep its partitions, because no worker reads new ones. Kafka must answer."""
    while True:
        await asyncio.sleep(PROOF_EVERY_S)
        try:
            found = await asyncio.to_thread(look)
        except KafkaException:
            kafka.look()
            continue
        kafka.works()
        if isinstance(found, int):
            watch.found(found)


async def _beat(alive: Proof) -> None:
    """Prove that the event loop turns. It needs milliseconds for a turn, or tens of them for a large body."""
    while True:
        alive.renew()
        await asyncio.sleep(_ALIVE_EVERY_S)


def _not_alive(alive: Proof) -> list[str]:
    return [] if alive.is_fresh else [f"the event loop has not turned for {alive.age:.0f} s"]


def _not_ready(kafka: KafkaConnection, watch: TopicWatch, stopped: asyncio.Event) -> list[str]:
    reasons = {
        "the door is stopping": stopped.is_set(),
        "Kafka cannot be reached": kafka.is_lost,
        watch.refusal: bool(watch.refusal),
    }
    return [reason for reason, is_so in reasons.items() if is_so]
