"""Starting a client: nothing flows before the topics are known to be right."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka.admin import AdminClient

from txbridge.backoff import Backoff
from txbridge.client.errors import closed
from txbridge.client.kafka.connection import Connection
from txbridge.client.log import report
from txbridge.client.options import ClientOptions
from txbridge.client.runtime import Ask, Runtime
from txbridge.deadline import Deadline
from txbridge.kafka import config as kafka_config
from txbridge.kafka.admin import Bounds, UnwantedError
from txbridge.kafka.log import librdkafka_logger
from txbridge.topics.verify import KafkaUnreachableError, Layout, check_layout, ensure_check_topic

#: Between attempts to reach Kafka: an attempt itself waits for a connection, so this only slows down one that fails at
#: once (a name that cannot be resolved).
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


def start(options: ClientOptions, ask: Ask, is_unwanted: Callable[[], bool] = lambda: False) -> Runtime:
    """Verify the topics, create the group's check topic if it is missing, and start to send and to answer.

    Raises LayoutError, KafkaUnreachableError after `start_timeout`, EnvironmentProblemError, UsageError for settings
    that librdkafka refuses, and once it `is_unwanted`: then nothing is left behind.
    """
    connection = Connection(options.bootstrap_servers, options.settings.get("error_cb"))
    config = kafka_config.admin_config(options.settings)
    admin = kafka_config.create(
        AdminClient,
        {"logger": librdkafka_logger(), **config, "error_cb": connection.on_error},
    )
    layout = _layout(options, admin, connection, is_unwanted)
    connection.works()
    runtime = Runtime(options, layout, connection, ask)
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
        # Also interrupted by a signal. A member of the group that nobody knows of would burn checks.
        runtime.close(0, lambda _: None)
        raise
    return runtime


def _layout(
    options: ClientOptions, admin: AdminClient, connection: Connection, is_unwanted: Callable[[], bool]
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
            admin.poll(0)  # an admin client calls error_cb only from here
            connection.lost(str(error))
            # Not what one request may take, which is less.
            if bounds.deadline.left <= backoff.pause:
                raise
        else:
            return layout
        bounds.wait(backoff.next())
