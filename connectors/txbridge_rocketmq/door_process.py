"""A door as a process. It connects to Kafka and then takes clients; at the end it stops both in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient

from txbridge.backoff import keep_trying
from txbridge.client.checks.consumer import CheckConsumer, CheckGroup
from txbridge.client.kafka.connection import KafkaConnection, create_admin
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.message import MessageLimits
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.interrupts import AT_START, end_on_signal
from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import Bounds, KafkaCluster
from txbridge.log import get_logger
from txbridge.proof import ProofOfLife, rest_after
from txbridge.topics.verify import Layout, check_layout, ensure_check_topic
from txbridge.web.web_server import Question, serving
from txbridge_rocketmq.access import WARNED_DAYS, Certificate
from txbridge_rocketmq.admin import MqadminRequests, TopicAdmin
from txbridge_rocketmq.client_connection import ClientListener
from txbridge_rocketmq.door import Door
from txbridge_rocketmq.door_options import DoorMetrics, DoorOptions, DoorSetting
from txbridge_rocketmq.groups import Taker
from txbridge_rocketmq.grpc_service import GrpcService
from txbridge_rocketmq.identity import LARGEST_PARTITION
from txbridge_rocketmq.outlet import DecisionOutlet, Outlet
from txbridge_rocketmq.remoting import Remoting
from txbridge_rocketmq.remoting_connection import DoorConnection
from txbridge_rocketmq.topics import CheckTopics, LookUps, Topics, look_up

_MIB = 1024 * 1024
#: Linger of half messages and plain ones (ms): half of the time that Kafka takes to acknowledge, as in txbridge's own
#: client when many callers wait.
_LINGER_MS = 0.5
#: Time-out of a look at HALF (s). It takes milliseconds if Kafka answers.
_LOOK_S = 2.0
#: Time (s) for the answers to open requests at the end. A SEND waits for Kafka for three seconds.
_PATIENCE_S = 5.0
#: Seconds between two signs of life of the event loop.
_ALIVE_EVERY_S = 1.0
#: Seconds between two looks at the files of certificate and keys. A look takes microseconds.
_FILES_EVERY_S = 2.0
#: Seconds between two warnings of a certificate that expires soon.
_WARN_EVERY_S = 86_400.0
#: Maximum of checks that are read and not yet handed to a client. They are handed over at once.
_CHECKS_HELD = 2_000

_log = get_logger("txbridge.rocketmq")


def run(settings: WorkerSettings, options: DoorOptions, load: Any) -> None:
    """Serve until SIGTERM or Ctrl-C. `load` is the command's DoorLoad.

    Raises TxBridgeError if it cannot start: LayoutError, LocalProblemError, UsageError and errors of Kafka.
    """
    if load.old_port and 0 < options.port < 3:
        raise UsageError(f"--old-port needs a port two below that of --listen, which is {options.port}")
    names, cluster = Names(settings.namespace), KafkaCluster.connect(settings.librdkafka)
    metrics = DoorMetrics()
    questions: dict[str, Question] = {"/livez": list[str], "/readyz": lambda: ["the door is starting"]}

    def look() -> Layout:
        # Its error has the reason why no broker can be reached.
        cluster.read_greeting(names.half)
        return check_layout(cluster, names, client=True)

    with end_on_signal(AT_START), serving(load.metrics_host, load.metrics_port, metrics.registry, questions):
        layout = keep_trying(look, _log, settings.bootstrap_servers)
        asyncio.run(_serve(settings, options, load, layout, metrics, questions))


async def _serve(
    settings: WorkerSettings,
    options: DoorOptions,
    load: Any,
    layout: Layout,
    metrics: DoorMetrics,
    questions: dict[str, Question],
) -> None:
    names, user = Names(settings.namespace), settings.librdkafka
    kafka = KafkaConnection(settings.bootstrap_servers, settings=user)
    kafka.cluster_id = layout.cluster_id
    cluster = KafkaCluster(partial(create_admin, user, AdminClient, kafka), user)
    if layout.partitions > LARGEST_PARTITION + 1:
        raise UsageError(f"{names.half} has more than the {LARGEST_PARTITION + 1} partitions that an END can name")

    def look_at_half() -> int:
        cluster.serve_errors()
        errors = kafka.errors
        seen = cluster.within(Bounds(Deadline(_LOOK_S))).read_greeting(names.half)
        kafka.note_cluster(seen.cluster_id, errors)
        return seen.partitions

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    watch, alive = TopicWatch(names, layout.partitions), ProofOfLife()
    records = Outlet(
        kafka_config.half_producer_config(user, max_message_bytes=layout.half_max_message_bytes, linger_ms=_LINGER_MS),
        kafka,
        "messages",
    )
    end_outlet = Outlet(kafka_config.end_producer_config(user), kafka, "ENDs")

    def make_topic(group: str, is_unwanted: Callable[[], bool]) -> bool:
        bounds = Bounds(is_unwanted=is_unwanted)
        bounds.require_wanted()
        return ensure_check_topic(cluster.within(bounds), names, group, layout)

    def join(group: str, take: Taker, is_unwanted: Callable[[], bool]) -> CheckConsumer:
        make_topic(group, is_unwanted)
        consumer = CheckConsumer(
            kafka_config.check_consumer_config(user, group=names.check(group)),
            kafka,
            CheckGroup(group, names, watch.partitions),
            take,
            _CHECKS_HELD,
            watch,
            lambda: make_topic(group, is_unwanted),
        )
        consumer.start()
        return consumer

    # Closed in the reverse order: no more clients, no more checks, then answers to the requests that are there, then
    # Kafka. Clients are served while the door leaves its groups, which may take seconds.
    async with contextlib.AsyncExitStack() as at_end:
        at_end.callback(asyncio.create_task(_beat(alive)).cancel)
        for outlet, topic in ((records, names.half), (end_outlet, names.end)):
            at_end.push_async_callback(asyncio.to_thread, outlet.close)
            await asyncio.to_thread(outlet.start, loop, topic)
        topic_admin = TopicAdmin(partial(look_up, cluster), cluster, layout, options.auto_create_topics)
        topics = Topics(topic_admin.look_or_create)
        at_end.callback(topics.close)
        check_topics = CheckTopics(make_topic, load.max_groups)
        at_end.callback(check_topics.close)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)

        server = ClientListener(load.max_connections, options.tls)
        port = server.listen_on(options.host, options.port)
        if load.old_port:
            server.listen_on(options.host, port - 2)
        rpc_server = ClientListener(
            load.max_connections, options.tls, "--grpc-listen", needs_tls=options.tls is not None
        )
        rpc_port = None if options.grpc is None else rpc_server.listen_on(*options.grpc)
        door = Door(
            DoorSetting(
                names=names,
                partitions=layout.partitions,
                limits=MessageLimits.of_layout(layout, round(settings.timer_max_delay * 1000)),
                secret=options.secret,
                addresses=options.addresses or (f"{options.host}:{port}",),
                access=options.access,
                obstacle=lambda: kafka.refusal or watch.refusal,
            ),
            records,
            DecisionOutlet(end_outlet, names.end, f"door {socket.gethostname()}@{os.getpid()}"),
            topics,
            LookUps(partial(look_up, cluster), 1),
            check_topics,
            join,
            metrics,
            memory=load.memory_mib * _MIB,
            max_groups=load.max_groups,
        )
        admin_requests = MqadminRequests(door, topic_admin)
        at_end.callback(admin_requests.close)
        remoting = Remoting(door, admin_requests)
        at_end.callback(door.close)
        at_end.callback(remoting.close)
        at_end.push_async_callback(door.drain_requests, _PATIENCE_S)
        at_end.callback(remoting.drop_requests)
        at_end.push_async_callback(door.groups.close)
        rpc = GrpcService(door, max_streams=load.max_connections)
        at_end.push_async_callback(rpc.close, _PATIENCE_S)
        at_end.callback(rpc_server.close)
        at_end.callback(server.close)
        server.start(partial(DoorConnection, remoting), remoting.connections)
        rpc_server.start(rpc.make_connection, rpc.connections)
        questions["/livez"] = lambda: [] if alive.is_fresh else [f"the event loop has not turned for {alive.age:.0f} s"]
        questions["/readyz"] = lambda: _not_ready(kafka, watch, stopped)
        # What is there by now stays. Each full collection would look at it, for tens of milliseconds.
        gc.freeze()
        at_end.callback(asyncio.create_task(_watch(kafka, watch, look_at_half)).cancel)
        at_end.callback(asyncio.create_task(_watch_files(door, options.tls)).cancel)
        _log.info(
            "door_started",
            port=port,
            addresses=door.setting.addresses,
            grpc_port=rpc_port,
            namespace=names.namespace,
            partitions=layout.partitions,
            bootstrap_servers=settings.bootstrap_servers,
            access_keys=options.access.any_key is not None,
            tls=options.tls is not None,
        )
        if len(door.setting.addresses) > 1:
            _log.info(
                "ordered_sends_need_one_address",
                next="a send to a chosen queue (MessageQueueSelector) fails while the queue's door is dead: with such "
                "producers, advertise a load balancer's address alone",
            )
        await stopped.wait()
        _log.info("door_stopping", connections=len(remoting.connections))
    _log.info("door_stopped")


async def _watch(kafka: KafkaConnection, watch: TopicWatch, look: Callable[[], int]) -> None:
    """Watch HALF and Kafka. HALF must keep its partitions, because no worker reads new ones. Kafka must answer."""
    while True:
        asked = time.monotonic()
        try:
            found = await asyncio.to_thread(look)
        except EnvironmentProblemError:
            kafka.check_answers()
        else:
            kafka.note_answer()
            if found:
                watch.note_partitions(found)
        await asyncio.sleep(rest_after(time.monotonic() - asked))


async def _watch_files(door: Door, tls: Certificate | None) -> None:
    """Read the files of keys and certificate again when they change, and warn of a certificate that expires soon."""
    warned = -math.inf
    while True:
        if tls is not None:
            door.metrics.expiry.labels(str(tls.files[0])).set(tls.expires_at)
            if tls.days_left < WARNED_DAYS and time.monotonic() - warned > _WARN_EVERY_S:
                warned = time.monotonic()
                _log.warning("certificate_expires", file=str(tls.files[0]), days=round(tls.days_left, 1))
        await asyncio.sleep(_FILES_EVERY_S)
        if tls is not None:
            await asyncio.to_thread(tls.look_again)
        if await asyncio.to_thread(door.setting.access.look_again):
            door.drop_strangers()


async def _beat(alive: ProofOfLife) -> None:
    """Prove that the event loop turns. It needs milliseconds for a turn, or tens of them for a large body."""
    while True:
        alive.renew()
        await asyncio.sleep(_ALIVE_EVERY_S)


def _not_ready(kafka: KafkaConnection, watch: TopicWatch, stopped: asyncio.Event) -> list[str]:
    reasons = {
        "the door is stopping": stopped.is_set(),
        "Kafka cannot be reached": kafka.is_lost,
        kafka.refusal: bool(kafka.refusal),
        watch.refusal: bool(watch.refusal),
    }
    return [reason for reason, is_so in reasons.items() if is_so]
