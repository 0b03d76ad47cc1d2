"""The Faust application: group membership, an agent for END records, and the usual consumer-group lag; nothing else.

The offsets that Faust has committed are never trusted: the checkpoint in OFFSET is the truth (docs/operations.md).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from typing import Any, NoReturn

import faust
from faust.types import TP

from txbridge.backoff import Backoff, keep_trying
from txbridge.config.worker import WorkerSettings
from txbridge.core.decision_record import DecisionEvent
from txbridge.core.names import Names
from txbridge.errors import TxBridgeError
from txbridge.interrupts import AT_START, end_on_signal, if_interrupted
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.each_broker import KeptConnections, require_features
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.group_membership import GroupMembership
from txbridge.kafka.log_ends import LogEnds
from txbridge.log import get_logger
from txbridge.topics.verify import Layout, check_layout
from txbridge.worker.faust.settings import TolerantTransport, calm_down, faust_settings
from txbridge.worker.http.health import Health
from txbridge.worker.http.monitor import Monitor
from txbridge.worker.partition_context import PartitionContext
from txbridge.worker.partitions import STOP_TIMEOUT_S, Worker
from txbridge.worker.startup import log_end, log_start, require_rights, return_freed_memory, slots_for

#: Back-off after a crash of Faust.
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 10.0
#: After this long without a crash, the back-off starts again.
_RAN_WELL_S = 60.0
#: After the owners have ended, Faust leaves the group: one request.
_LEAVE_TIMEOUT_S = 5.0
#: Thresholds of Python's garbage collector. By default it searches the youngest objects for cycles whenever there are
#: 700 more of them. That is after about 100 messages, and no message is part of a cycle. The 10,000 messages of one
#: Kafka transaction are some 130,000 objects, which should need no search. Cycles that Faust leaves behind may wait for
#: 200,000 objects, some forty megabytes.
COLLECT_SELDOM = 200_000, 20, 20

_log = get_logger("txbridge.worker")


class GroupLostError(TxBridgeError):
    """The workers' group does not have this process as a member, although Faust runs."""


class _Boot(faust.App.BootStrategy):  # type: ignore[misc]
    """Faust's services for a worker: no producer, because our own writes everything."""

    enable_kafka_producer = False


class BridgeApp(faust.App):  # type: ignore[misc]  # Faust has no types for mypy here
    """A Faust app that also runs the owners of the partitions."""

    BootStrategy = _Boot

    def __init__(self, *args: Any, settings: WorkerSettings, monitor: Monitor, outside: Outside, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings
        self.outside = outside
        #: Not named `monitor`: that attribute is Faust's.
        self.own_monitor = monitor
        self.worker: Worker | None = None
        #: Monotonic time (s) of the start by Faust's own command. None under `run`, which logs start and end itself.
        self._started_by_faust: float | None = None

    def _new_transport(self) -> Any:
        return TolerantTransport(self.conf.broker_consumer, self)

    def _init_fixups(self) -> list[Any]:
        """None: DJANGO_SETTINGS_MODULE must not load a Django project, nor an installed package extend Faust."""
        return []

    def _create_directories(self) -> None:
        """Create none: nothing is stored on disk."""

    async def on_start(self) -> None:
        """Before Faust joins the group, wait for Kafka, check topics and rights, and serve what nobody else serves."""
        self.own_monitor.start()
        if self.worker is None:
            self._started_by_faust = time.monotonic()
            log_start(self.settings)
            await asyncio.to_thread(self.prepare)
        self.own_monitor.health.look_after_loop(asyncio.get_running_loop(), self._rejoin)
        if self.worker is not None:
            threading.Thread(target=self.worker.assume_partitions, name="txbridge-assume", daemon=True).start()
        await super().on_start()

    async def on_stop(self) -> None:
        """Finish the current Kafka transactions."""
        self.own_monitor.health.look_after_loop(None)
        if self.worker is not None:
            await asyncio.to_thread(self.worker.stop)
        await super().on_stop()
        if self._started_by_faust is not None:
            log_end(time.monotonic() - self._started_by_faust)

    def _rejoin(self, reason: str) -> None:
        """Let Faust end, so that it is started again and joins the group again."""
        self.add_future(self.crash(GroupLostError(reason)))

    def prepare(self) -> None:
        """Wait for Kafka, then check topics and rights. Raises LayoutError, EnvironmentProblemError."""
        gc.set_threshold(*COLLECT_SELDOM)
        settings = self.settings
        names = Names(settings.namespace)

        cluster = KafkaCluster.connect(settings.librdkafka)
        layout = _wait_for_layout(cluster, names, settings, self.own_monitor.health)
        membership = GroupMembership(
            cluster.make_client, report=lambda error: _log.warning("groups_not_answered", error=error)
        )
        require_rights(cluster, membership, names, settings.app_id)
        found = cluster.read_greeting(names.half).brokers
        addresses = {node: address.rpartition(":") for node, address in found.items()}
        brokers = KeptConnections(settings.librdkafka)
        # One that does not answer is no reason to refuse: the others do its work.
        require_features(brokers.versions_of({node: (host, int(port)) for node, (host, _, port) in addresses.items()}))
        context = PartitionContext(
            kafka=settings.librdkafka,
            cluster=cluster,
            membership=membership,
            brokers=brokers,
            ends=LogEnds(brokers, self.outside),
            names=names,
            policy=settings.check_policy,
            commit_timeout_ms=settings.commit_timeout,
            # The budget is for the whole worker, which may come to own every partition.
            payload_memory=settings.payload_memory // layout.partitions,
            check_rate=settings.transaction_check_rate,
            commit_interval=settings.commit_interval,
            metrics=self.own_monitor.metrics,
            next_event=lambda partition: self.consumer.next_offset(TP(names.end, partition)),
            outside=self.outside,
            slots=slots_for(layout.partitions, len(found)),
        )
        self.own_monitor.metrics.partitions_found = layout.partitions
        self.worker = Worker(context, settings.app_id, self.conf.broker_client_id, layout)
        self.own_monitor.health.look_after(self.worker)

    def applied_to(self, tp: TP) -> int | None:
        """The END offset up to which this worker has applied the partition's decisions; None if it cannot tell."""
        return None if self.worker is None else self.worker.applied_to(tp.partition)

    def miss_events(self) -> None:
        """Let the owners read END themselves."""
        if self.worker is not None:
            self.worker.miss_events()


class BridgeWorker(faust.Worker):  # type: ignore[misc]
    """Faust's worker, which ends in bounded time after a signal: without Kafka Faust would wait for a minute."""

    told_to_end = False

    def _schedule_shutdown(self, signal: Any) -> None:
        if not self.told_to_end:
            self.told_to_end = True
            timer = threading.Timer(STOP_TIMEOUT_S + _LEAVE_TIMEOUT_S, self._end)
            timer.daemon = True
            timer.start()
        super()._schedule_shutdown(signal)

    async def _sentinel_task(self) -> None:
        """Do nothing: all tasks have ended. Faust would sleep for a second, in which no worker serves."""

    @staticmethod
    def _end() -> None:
        # The owners have ended, or Kafka will abort their transactions. Nothing else needs to finish.
        _log.warning("ended_without_leaving_the_group", note="the others take over when the session times out")
        os._exit(0)


def create_app(settings: WorkerSettings, monitor: Monitor | None = None, outside: Outside = OUTSIDE) -> BridgeApp:
    """Create the worker as a Faust app, without a connection yet. Without a monitor it gets one of its own."""
    names = Names(settings.namespace)
    app = BridgeApp(
        settings.app_id,
        settings=settings,
        monitor=monitor or Monitor(settings),
        outside=outside,
        **faust_settings(settings),
    )
    end_topic = app.topic(
        names.end,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        allow_empty=True,
        internal=False,
    )

    @app.agent(end_topic, name="txbridge.end", concurrency=1)  # type: ignore[untyped-decorator]
    async def end_transaction(stream: Any) -> None:
        """Pass END records to the owner of their partition. Never raises: Faust would acknowledge them and go on."""
        async for event in stream.events():
            message = event.message
            worker = app.worker
            if worker is not None:
                # Faust gives the time of a record in seconds.
                appended = round(message.timestamp * 1000) if message.timestamp else None
                headers = list(message.headers or ())
                worker.offer_event(
                    message.partition, DecisionEvent(message.offset, message.key, message.value, headers, appended)
                )

    @app.on_partitions_revoked.connect  # type: ignore[untyped-decorator]
    async def revoked(_app: Any, _revoked: set[TP], **_kwargs: Any) -> None:
        """Until the group has assigned partitions again, which may take seconds, Faust hands nothing over."""
        app.miss_events()

    @app.on_partitions_assigned.connect  # type: ignore[untyped-decorator]
    async def assigned(_app: Any, assigned: set[TP], **_kwargs: Any) -> None:
        """Take the group's assignment: the signal names all partitions. Take-overs run in the owners' threads."""
        partitions = sorted(tp.partition for tp in assigned if tp.topic == names.end)
        _log.info("partitions_assigned", partitions=partitions)
        if app.worker is not None:
            app.worker.assign_partitions(partitions)

    return app


def _wait_for_layout(cluster: KafkaCluster, names: Names, settings: WorkerSettings, health: Health) -> Layout:
    """Wait until the cluster of this process answers, then check the topics.

    Raises LayoutError, EnvironmentProblemError.
    """

    def ask() -> Layout:
        health.require_cluster(cluster.read_greeting(names.half).cluster_id)
        return check_layout(cluster, names, longest_wait_ms=settings.longest_wait)

    layout = keep_trying(ask, _log, settings.bootstrap_servers)
    if layout.weak:
        _log.warning("topics_differ", topics=layout.weak, next="messages are delivered as always")
    return layout


def run(settings: WorkerSettings, outside: Outside = OUTSIDE) -> NoReturn:
    """Run a worker until a signal ends it. Raises TxBridgeError before anything was consumed, SystemExit at the end.

    Faust is started again when it crashes: a temporary error must not need a supervisor.
    """
    return_freed_memory()
    monitor = Monitor(settings)
    log_start(settings)
    began = time.monotonic()

    def log_end_now() -> None:
        log_end(time.monotonic() - began)

    try:
        with if_interrupted(log_end_now):
            _serve(settings, monitor, outside)
    except (SystemExit, KeyboardInterrupt):
        log_end_now()
        raise


def _serve(settings: WorkerSettings, monitor: Monitor, outside: Outside) -> NoReturn:
    calm_down(logging.getLogger().handlers)
    # Faust logs each start and stop of a service under the module of its class.
    logging.getLogger("txbridge.worker.faust.settings").setLevel(logging.WARNING)
    # Start it before the wait for Kafka, so that /readyz answers that the worker is not ready.
    monitor.start()
    backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
    while True:
        # While Faust, which otherwise handles signals, does not run, nothing is owned.
        with end_on_signal(AT_START):
            asyncio.set_event_loop(asyncio.new_event_loop())
            app = create_app(settings, monitor, outside)
            app.prepare()
            started = time.monotonic()
            worker = BridgeWorker(
                app, quiet=True, redirect_stdouts=False, override_logging=False, loglevel=settings.log_level.upper()
            )
            # Faust's progress spinner draws on stdout.
            worker.spinner = None
            try:
                worker.execute_from_commandline()
            except SystemExit:
                if worker.told_to_end:
                    raise
        monitor.health.look_after(None)
        if time.monotonic() - started > _RAN_WELL_S:
            backoff.reset()
        monitor.metrics.count_failure("faust_crashed")
        error = repr(worker.crash_reason or "Faust has ended by itself")
        _log.error("faust_crashed", error=error, retry_seconds=backoff.pause)
        with end_on_signal(AT_START):
            time.sleep(backoff.next())
