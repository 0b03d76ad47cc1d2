"""The producer of this process, made from the settings when it is needed."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import AbstractContextManager

from django.core.signals import setting_changed
from django.dispatch import receiver

from txbridge import Announcement, Message, TransactionProducer
from txbridge_django.conf import refuse_event_loop, require_own_transaction, valid_options

_lock = threading.Lock()
#: The producer, or nothing.
_running: list[TransactionProducer] = []


def get_producer() -> TransactionProducer:
    """The started producer of this process; from its start on it also answers checks of the group.

    It is closed when the process ends. A child process gets one of its own. Call this function where a web process
    starts (its wsgi.py, gunicorn's post_fork), so that a process that never sends answers checks as well. It raises as
    Bridge.start with `start_without_kafka`, and UsageError without the table and on an event loop.
    """
    with _lock:
        if not _running:
            refuse_event_loop("get_producer")
            options = valid_options()
            # Imported here, because models can be imported only when all apps are ready.
            from txbridge_django.listener import DjangoTransactionListener  # noqa: PLC0415

            listener = DjangoTransactionListener(
                options.database, options.check_wait, options.patience, has_kafka=options.kafka is not None
            )
            listener.verify()
            made = TransactionProducer(
                options.group,
                listener,
                options.kafka,
                namespace=options.namespace,
                check_thread_pool_max_size=options.check_threads,
                **{"start_without_kafka": True, **options.producer},
            )
            _running.append(made)
            atexit.register(made.close)
        producer = _running[0]
    # Without the lock: all callers wait for one attempt, and for no more if Kafka is away.
    return producer.start()


def is_connected() -> bool:
    """Whether the producer of this process is connected to Kafka: for the view of a readiness probe.

    It starts the producer if needed, so that a process that never sends becomes ready and answers checks. Raises as
    `get_producer`.
    """
    return get_producer().is_connected


def announce(*messages: Message, once: str | None = None) -> AbstractContextManager[Announcement[None]]:
    """Announce what the block does: the messages are delivered if, and only if, its transaction is committed.

    The block is `transaction.atomic()` of the database of the settings, and all is as Bridge.announce says. An
    exception rolls back, and comes out; `set_rollback` raises `Rollback` at the end. Without KAFKA in the settings, the
    messages and those of `tx.add` are rows of the outbox.

    Raises also UsageError, before anything is sent: on an event loop, and within `atomic()`, with ATOMIC_REQUESTS or
    autocommit off, where the message would be decided before the outer transaction is.
    """
    require_own_transaction(valid_options().database)
    return get_producer().announce(*messages, once=once)


@receiver(setting_changed)
def _close_producer(*, setting: str, **_: object) -> None:
    """Close the producer when a test changes its settings. The next one is made from the new settings."""
    if setting == "TXBRIDGE":
        with _lock:
            while _running:
                _running.pop().close()


def _forget() -> None:
    """Forget the producer in a child process.

    librdkafka's threads do not exist there. The thread that holds the lock may not exist there either.
    """
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget)
