"""Starting a client: nothing flows before the topics are known to be right."""

from __future__ import annotations

import logging
import threading
import time

from confluent_kafka.admin import AdminClient

from txbridge import kafka_config
from txbridge.client.connection import Connection
from txbridge.client.events import report
from txbridge.client.options import ClientOptions
from txbridge.client.runtime import Ask, Runtime
from txbridge.log import librdkafka_logger
from txbridge.topics import KafkaUnreachableError, Layout, check_layout, ensure_check_topic

#: Between attempts to reach Kafka: an attempt itself waits for a connection, so this only slows down one that fails at
#: once (a name that can not be resolved).
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


def start(options: ClientOptions, ask: Ask) -> Runtime:
    """Verify the topics, create the group's check topic if it is missing, and start to send and to answer.

    Raises LayoutError, KafkaUnreachableError after `start_timeout`, EnvironmentProblemError, UsageError for settings
    that librdkafka refuses.
    """
    connection = Connection(options.bootstrap_servers, options.settings.get("error_cb"))
    config = kafka_config.admin_config(options.settings)
    admin = kafka_config.create(
        AdminClient,
        {"logger": librdkafka_logger(), **config, "error_cb": connection.on_error},
    )
    layout = _layout(options, admin, connection)
    connection.works()
    runtime = Runtime(options, layout, connection, ask)
    report(
        logging.INFO,
        "client_started",
        group=options.group,
        namespace=options.names.namespace,
        partitions=layout.partitions,
        bootstrap_servers=options.bootstrap_servers,
    )
    return runtime


def _layout(options: ClientOptions, admin: AdminClient, connection: Connection) -> Layout:
    deadline = time.monotonic() + options.start_timeout
    pause = _FIRST_PAUSE_S
    while True:
        try:
            layout = check_layout(admin, options.names, client=True)
            ensure_check_topic(admin, options.names, options.group, layout)
        except KafkaUnreachableError as error:
            admin.poll(0)  # an admin client calls error_cb only from here
            connection.lost(str(error))
            if time.monotonic() + pause >= deadline:
                raise
        else:
            return layout
        threading.Event().wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
