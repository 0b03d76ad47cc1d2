"""Start of a client. It sends and answers nothing before the topics are verified."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from confluent_kafka.admin import AdminClient

from txbridge.backoff import Backoff
from txbridge.client.base.log import report
from txbridge.client.checks.calls import CheckCalls
from txbridge.client.errors import closed
from txbridge.client.in_process import BRIDGES
from txbridge.client.kafka.connection import KafkaConnection, create_admin
from txbridge.client.options import ClientOptions
from txbridge.client.runtime import Runtime
from txbridge.deadline import Deadline
from txbridge.errors import KafkaUnreachableError
from txbridge.kafka.admin import Bounds, UnwantedError
from txbridge.kafka.errors import unreachable
from txbridge.topics.verify import Layout, check_layout, ensure_check_topic

#: Pauses (s) between attempts to reach Kafka. An attempt itself waits for a connection, so they only slow down attempts
#: that fail at once (a name that cannot be resolved).
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


def start(options: ClientOptions, checks: CheckCalls, is_unwanted: Callable[[], bool] = lambda: False) -> Runtime:
    """Verify the topics, create the group's check topic if it is missing, and start to send and to answer.

    Raises LayoutError, EnvironmentProblemError, KafkaUnreachableError after `start_timeout`, and UsageError for
    settings that librdkafka refuses or if the client `is_unwanted` by then. After an error nothing is left behind.
    """
    if (open_client := BRIDGES.get(options.bootstrap_servers)) is not None:
        return open_client(options, checks)
    settings = options.settings
    connection = KafkaConnection(options.bootstrap_servers, settings.get("error_cb"), settings=settings)
    connect = partial(create_admin, settings, AdminClient, connection)
    layout = _layout(options, connect(), connection, is_unwanted)
    connection.cluster_id = layout.cluster_id
    connection.note_answer()

    def make_check_topic() -> None:
        # With a client of its own: one that is kept would cost threads and connections in every process.
        ensure_check_topic(connect(), options.names, options.group, layout)

    runtime = Runtime(options, layout, connection, checks.ask_application, make_check_topic)
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
    options: ClientOptions, admin: AdminClient, connection: KafkaConnection, is_unwanted: Callable[[], bool]
) -> Layout:
    bounds = Bounds(Deadline(options.start_timeout), is_unwanted)
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            layout = check_layout(admin, options.names, client=True, bounds=bounds)
            ensure_check_topic(admin, options.names, options.group, layout, bounds=bounds)
        except UnwantedError:
            raise closed() from None
        except KafkaUnreachableError as error:
            admin.poll(0)  # an admin client calls error_cb only in here
            explained = unreachable("start of the producer", options.settings, connection.cause or error.cause)
            connection.note_loss(str(explained))
            # Only when `start_timeout` is over. A single request has less time.
            if bounds.deadline.left <= backoff.pause:
                raise explained from None
        else:
            return layout
        bounds.wait_for(backoff.next())
