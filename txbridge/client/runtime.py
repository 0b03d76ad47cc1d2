"""A client of any API: its start, its connections and threads, answers to checks, flush, close.

It sends and answers nothing before the topics are verified.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient

from txbridge.backoff import Backoff
from txbridge.client.base import process
from txbridge.client.base.log import report
from txbridge.client.checks.calls import CheckCalls, CheckRequest
from txbridge.client.checks.consumer import CheckConsumer, CheckGroup
from txbridge.client.decide.decision_sender import DecisionSender
from txbridge.client.errors import closed
from txbridge.client.flow.cancellation import Cancellation
from txbridge.client.flow.send_path import REPORT_MARGIN_S, SendPath
from txbridge.client.kafka.connection import KafkaConnection, LastingProducer, create_admin
from txbridge.client.kafka.topic_watch import RealTopics, TopicDiagnosis, TopicWatch, find_missing
from txbridge.client.listener import ListenerOutcome
from txbridge.client.message import MessageLimits
from txbridge.client.options import ClientOptions
from txbridge.client.prepare.half_writer import HalfWriter, HalfWriters
from txbridge.deadline import Deadline
from txbridge.errors import KafkaUnreachableError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import Bounds, KafkaCluster, UnwantedError
from txbridge.kafka.errors import unreachable
from txbridge.topics.verify import Layout, check_layout, ensure_check_topic

#: Longest wait (s) for the consumer of checks to leave its group. It takes milliseconds, unless Kafka is away. Then the
#: group removes the member after the session time-out, and close() does not wait for that.
_LEAVE_GROUP_S = 3.0
#: Pauses (s) between attempts to reach Kafka. An attempt itself waits for a connection, so they only slow down attempts
#: that fail at once (a name that cannot be resolved).
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Runtime:
    """The threads and connections of a client; thread-safe."""

    def __init__(
        self,
        options: ClientOptions,
        layout: Layout,
        connection: KafkaConnection,
        calls: CheckCalls,
        make_check_topic: Callable[[], None],
    ) -> None:
        names, group, settings = options.names, options.group, options.settings

        def half_config(linger_ms: float) -> dict[str, Any]:
            room = layout.half_max_message_bytes
            return kafka_config.half_producer_config(settings, max_message_bytes=room, linger_ms=linger_ms)

        end_config = kafka_config.end_producer_config(settings)
        check_config = kafka_config.check_consumer_config(settings, group=names.check(group))
        limits = MessageLimits.of_layout(layout, int(options.timer_max_delay * 1000))
        # Seconds. In librdkafka 0 means no time-out.
        prepare_timeout = int(half_config(0)["message.timeout.ms"]) / 1000 or threading.TIMEOUT_MAX
        self._calls = calls
        self._connection = connection
        cluster = KafkaCluster(lambda: create_admin(settings, AdminClient))
        connection.serve_others = cluster.serve_errors
        self._diagnosis = TopicDiagnosis(cluster, names.half)
        self._watch = TopicWatch(names, layout.partitions, partial(find_missing, settings))
        # The look at HALF begins when half of the time is over.
        miss_before_s = prepare_timeout / 2 + REPORT_MARGIN_S

        def new_writer(linger_ms: float, thread: str) -> HalfWriter:
            producer = LastingProducer(half_config(linger_ms), connection)
            return HalfWriter(producer, connection, names, group, thread, self._diagnosis, miss_before_s, self._watch)

        self._halves = HalfWriters(new_writer)
        # Names this process to people who read END. RocketMQ's client id has the same form.
        client_id = f"{socket.gethostname()}@{os.getpid()}"
        self._ends = DecisionSender(
            LastingProducer(end_config, connection), connection, names, group, client_id, options.commit_interval
        )
        self.sends = SendPath(
            options,
            limits,
            prepare_timeout,
            self._halves,
            self._ends,
            self._watch,
            RealTopics(cluster),
            lambda: self.is_connected,
        )
        self.cancellation = Cancellation(options, connection, layout.partitions, self._ends)
        self._checks = CheckConsumer(
            check_config,
            connection,
            CheckGroup(group, names, layout.partitions),
            self._answer_check,
            options.check_request_hold_max,
            self._watch,
            make_check_topic,
        )

    def start(self) -> None:
        """Start the threads. `__init__` starts none, so a setting that librdkafka refuses leaves none behind."""
        # The sender of ENDs connects in its own thread, while the writer of half messages connects in this one.
        self._ends.start()
        self._halves.start()
        self._checks.start()
        atexit.register(self._warn_at_exit, process.generation())

    def _warn_at_exit(self, generation: int) -> None:
        """Say what was on its way when a program ended that has not called close()."""
        running, ends = self.sends.attempts.running, self._ends.unsettled
        if (running or ends) and generation == process.generation():
            report(
                logging.WARNING,
                "not_closed",
                transactions_running=running,
                ends_not_acknowledged=ends,
                next="call close() before the program ends; the worker will ask check_local_transaction",
            )

    @property
    def is_connected(self) -> bool:
        """Whether the connection to Kafka works, as far as is known, and leads to the cluster of the start."""
        return not (self._connection.is_lost or self._connection.refusal)

    def flush(self, timeout: float | None) -> int:
        """See DecisionSender.flush."""
        return self._ends.flush(timeout)

    def is_called_by_it(self) -> bool:
        """Whether a callback calls this in a thread that serves this client. It must not wait for that thread."""
        writers = tuple(self._halves.writers.values())
        return threading.current_thread() in (self._ends.thread, self._checks.thread, *(one.thread for one in writers))

    def close(self, timeout: float | None, finish_checks: Callable[[float | None], None]) -> None:
        """Wait up to `timeout` seconds (None: no limit) for everything that has begun, and stop.

        `finish_checks` waits (s) for running check methods of the application. May be called again if it was
        interrupted.
        """
        deadline = Deadline(timeout)
        self._checks.stop()
        running = self.sends.attempts.close(deadline.timeout)
        finish_checks(deadline.timeout)
        ends = self._ends.close(deadline.timeout)
        # Meanwhile the thread of the checks ends its wait.
        self._halves.close()
        self._checks.close(_LEAVE_GROUP_S)
        self._diagnosis.close()
        atexit.unregister(self._warn_at_exit)
        if running or ends:
            report(
                logging.WARNING,
                "closed_too_early",
                local_transactions_running=running,
                ends_not_acknowledged=ends,
                next="the worker will ask check_local_transaction",
            )

    def _answer_check(self, request: CheckRequest, settled: Callable[[], None]) -> None:
        """Answer a check, without the application if this process knows the answer."""

        def answer(outcome: ListenerOutcome | None) -> None:
            if outcome is None:
                settled()
            else:
                self.sends.send_answer(request, outcome).as_future().add_done_callback(lambda _: settled())

        known = self.sends.known_outcome(request.message)
        if known is None:
            self._calls.ask_application(request, answer)
        else:
            answer(known)


def start(options: ClientOptions, checks: CheckCalls, is_unwanted: Callable[[], bool] = lambda: False) -> Runtime:
    """Verify the topics, create the group's check topic if it is missing, and start to send and to answer.

    Raises LayoutError, EnvironmentProblemError, KafkaUnreachableError after `start_timeout`, and UsageError for
    settings that librdkafka refuses or if the client `is_unwanted` by then. After an error nothing is left behind.
    """
    settings = options.settings
    connection = KafkaConnection(options.bootstrap_servers, settings.get("error_cb"), settings=settings)
    connect = partial(create_admin, settings, AdminClient, connection)
    layout = _layout(options, KafkaCluster(connect), connection, is_unwanted)
    connection.cluster_id = layout.cluster_id
    connection.note_answer()

    def make_check_topic() -> None:
        # With a client of its own: one that is kept would cost threads and connections in every process.
        ensure_check_topic(KafkaCluster(connect), options.names, options.group, layout)

    runtime = Runtime(options, layout, connection, checks, make_check_topic)
    try:
        runtime.start()
        if is_unwanted():
            raise closed()  # noqa: TRY301  what is handled is that it was started
        report(
            logging.INFO,
            "client_started",
            group=options.group,
            namespace=options.names.namespace,
            partitions=layout.partitions,
            bootstrap_servers=options.bootstrap_servers,
        )
    except BaseException:
        # Also after an interrupt by a signal. A forgotten member of the group would use up checks.
        runtime.close(0, lambda _: None)
        raise
    return runtime


def _layout(
    options: ClientOptions, cluster: KafkaCluster, connection: KafkaConnection, is_unwanted: Callable[[], bool]
) -> Layout:
    bounds = Bounds(Deadline(options.start_timeout), is_unwanted)
    cluster = cluster.within(bounds)
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            layout = check_layout(cluster, options.names, client=True)
            ensure_check_topic(cluster, options.names, options.group, layout)
        except UnwantedError:
            raise closed() from None
        except KafkaUnreachableError as error:
            cause = connection.cause or error.cause
            explain = partial(unreachable, "start of the producer", options.settings, cause)
            connection.note_loss(str(explain()))
            # Only when `start_timeout` is over. A single request has less time.
            if bounds.deadline.left <= backoff.pause:
                # A new one: this frame must not hold what is raised, or they keep each other, and a Kafka client.
                raise explain() from None
        else:
            return layout
        bounds.wait_for(backoff.next())
