"""State of the connection, and the Kafka clients that share it: one log line when it is lost, one when it is back.

LastingProducer is a librdkafka producer that is replaced after a fatal error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Record

from txbridge.client.base import process
from txbridge.client.base.contained import contained
from txbridge.client.base.log import report
from txbridge.client.errors import closed
from txbridge.core.names import Headers
from txbridge.kafka import config as kafka_config
from txbridge.kafka.errors import (
    ALL_BROKERS_DOWN,
    TIMED_OUT,
    TRANSPORT,
    explain,
    explain_cause,
    is_refused,
    note_cause,
    other_cluster,
)
from txbridge.proof import FRESH_S, ProofOfLife

#: Errors of single brokers and requests. librdkafka recovers from them by itself while another broker answers.
_PASSING = frozenset({TRANSPORT, TIMED_OUT})
#: Seconds that Kafka must answer until the connection counts as back. A broker that comes back answers some requests
#: before others (its partitions have no leaders yet), and our clients reconnect one after the other.
_STABLE_S = 1.5

_Client = TypeVar("_Client")

#: Callbacks of the user's that are contained. KafkaConnection contains `error_cb`. `oauth_cb` needs nothing: librdkafka
#: takes its exception as the failure to get a token.
_CALLBACKS = ("stats_cb", "throttle_cb")


class KafkaConnection:
    """State of the connection; thread-safe.

    librdkafka reconnects by itself and reports every attempt of every client to `on_error`, the error_cb of all of
    them. It never reports success, so our code calls `note_answer` when Kafka has answered something. These answers
    decide whether the connection is lost, and not the reports: a broker that stands still causes none, and when it goes
    on, they come late.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        also: Callable[[KafkaError], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._bootstrap_servers = bootstrap_servers
        self._also = None if also is None else contained(also)
        self._lock = threading.Lock()
        #: The last error since Kafka has answered; None if there is none.
        self.cause: KafkaError | None = None
        #: Kafka's id of the cluster of the start; empty until it is known.
        self.cluster_id = ""
        #: Why nothing may be sent: another cluster answers. Empty while that of the start does.
        self.refusal = ""
        #: Takes what librdkafka reports to clients that nothing else polls. Otherwise it piles up in an outage.
        self.serve_others: Callable[[], None] = lambda: None
        #: Number of errors so far. After each one another cluster may be at the address.
        self.errors = 0
        #: Whether all brokers were away since the cluster was last recognised. Acknowledgements wait until it is again.
        self.is_unsure = False
        self._lost_at: float | None = None
        self._stable_from = 0.0
        self._clock = clock
        #: The last answer of Kafka.
        self.answered = ProofOfLife(clock)

    @property
    def is_lost(self) -> bool:
        """Whether Kafka has answered nothing for FRESH_S, or is not back since."""
        return self._lost_at is not None or not self.answered.is_fresh

    def check_answers(self) -> None:
        """Log that the connection is lost, if Kafka does not answer."""
        self.serve_others()
        if not self.answered.is_fresh:
            silence = f"no answer for {FRESH_S:g} s"
            self.note_loss(silence if self.cause is None else explain_cause(self.cause, self._settings)[0])

    def on_error(self, error: KafkaError) -> None:
        """Note an error. This is the error_cb of every client."""
        code = error.code()
        self.errors += 1
        self.cause = note_cause(self.cause, error)
        if code == ALL_BROKERS_DOWN:
            self.is_unsure = bool(self.cluster_id)
        elif code not in _PASSING:
            self.note_trouble(error, "kafka_error")
        if self._also is not None:
            self._also(error)

    def explain_error(self, error: KafkaError) -> str:
        """The text of the error of a record, with what to do about it. A refused connection is the cause, if it was."""
        if not is_refused(self.cause):
            return explain(error)
        return f"{error.str()} ({error.name()}): {'; '.join(explain_cause(self.cause, self._settings))}"

    def note_loss(self, reason: str) -> None:
        """Note that no broker answers."""
        now = self._clock()
        with self._lock:
            self._stable_from = 0.0
            if self._lost_at is not None:
                return
            self._lost_at = now
        report(
            logging.WARNING,
            "kafka_connection_lost",
            bootstrap_servers=self._bootstrap_servers,
            reason=reason,
            next="retrying with back-off",
        )

    def note_time_out(self, what: str, seconds: float) -> None:
        """Note a record that was given up after `seconds`. It may be the only sign of a broker that does not answer."""
        if self.answered.age >= seconds:
            self.note_loss(f"{what} are not acknowledged in time")

    def note_trouble(self, error: KafkaError, event: str) -> None:
        """Log an error that is not about the connection (a right, a certificate), once a minute: it comes again."""
        about = (self._bootstrap_servers, error.code())
        report(logging.ERROR, event, once_for=about, error=error.name(), reason=error.str())

    def note_cluster(self, found: str, errors: int) -> None:
        """Note an answer of this cluster, to a question that was asked after so many `errors`."""
        problem, before = other_cluster(self.cluster_id, found), self.refusal
        self.refusal = problem
        if problem and problem != before:
            report(logging.ERROR, "cluster_changed", cluster=found, expected=self.cluster_id, next=problem)
        if errors == self.errors:
            self.is_unsure = False

    def note_answer(self) -> None:
        """Note an answer of Kafka. The connection is back once Kafka answers for a while without trouble."""
        self.answered.renew()
        self.cause = None
        if self._lost_at is None:
            return
        now = self._clock()
        with self._lock:
            if not self._stable_from:
                self._stable_from = now
            if self._lost_at is None or now - self._stable_from < _STABLE_S:
                return
            after, self._lost_at = self._stable_from - self._lost_at, None
        report(
            logging.WARNING,
            "kafka_connection_back",
            bootstrap_servers=self._bootstrap_servers,
            after_seconds=round(after, 1),
        )


def create_client(
    factory: Callable[[dict[str, Any]], _Client], config: Mapping[str, Any], connection: KafkaConnection | None = None
) -> _Client:
    """Make a client, whose errors go to the connection. Without one it only asks questions that may stay unanswered.

    Raises UsageError for settings that librdkafka refuses.
    """
    callbacks: dict[str, Any] = {name: contained(config[name]) for name in _CALLBACKS if config.get(name) is not None}
    settings = {**config, **callbacks}
    settings.pop("error_cb", None)
    if (own := settings.pop("logger", None)) is not None:
        # confluent-kafka calls only `log`.
        settings["logger"] = SimpleNamespace(log=contained(own.log))
    if connection is not None:
        settings["error_cb"] = connection.on_error
    return kafka_config.create(factory, settings)


def create_admin(
    settings: Mapping[str, Any], factory: Callable[[dict[str, Any]], Any], connection: KafkaConnection | None = None
) -> Any:
    """Make an admin client, as `create_client` does."""
    return process.owns_handle(create_client(factory, kafka_config.admin_config(settings), connection))


DeliveryReport = Callable[[KafkaError | None, Record], None]

#: Partition of a record whose key chooses it.
BY_KEY = -1
#: Usual time (s) to connect and to get a producer id: 2 ms on a healthy machine, some tens with TLS and SASL.
_ID_S = 0.1
#: Time-out (s) of a metadata request for a topic, which takes 60 ms on a healthy machine, a few hundred with TLS and
#: SASL. When no broker answers, records fail after their own time-out, and a longer wait here would only add to that.
_CONNECT_S = 0.5
#: Time-out (s) for the delivery reports of purged records. librdkafka makes them at once.
_LAST_REPORTS_S = 1.0


class LastingProducer:
    """Sends records to Kafka and serves their delivery reports.

    Any thread may call `produce`. One thread at a time calls `serve_reports` and `close`. The delivery reports run
    there.

    After a fatal error (the broker has lost its sequence numbers, for example) librdkafka refuses every further record
    of an idempotent producer. Then it replaces the producer, and the undelivered records are reported as failed.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        connection: KafkaConnection,
        factory: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self._connection = connection
        self._create = partial(create_client, factory, config, connection)
        self._producer = self._create()
        process.owns_handle(self)

    def connect(self, topic: str) -> None:
        """Wait a short time for the topic's metadata. If no broker sends them, the first record will fail.

        An idempotent producer needs an id, for which librdkafka asks the broker that it has connected to first. If it
        needs a topic's metadata at that moment, it replaces this connection with another one. Then it has no broker to
        ask, and tries again half a second later. A record that is sent at once waits as long.
        """
        time.sleep(_ID_S)
        with suppress(KafkaException):
            self._producer.list_topics(topic, _CONNECT_S)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        on_delivery: DeliveryReport,
        partition: int = BY_KEY,
        timestamp: int = 0,
    ) -> None:
        """Hand over a record. `timestamp` (ms) 0 means now.

        Raises BufferError when librdkafka's queue is full, KafkaException when the record cannot be sent at all, and
        UsageError after `close`.
        """
        producer = self._producer
        try:
            # By position, because names would add half to the cost of the call. The fifth argument is `callback`, an
            # older name of `on_delivery`. With None for `callback`, `on_delivery` would be ignored.
            producer.produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
        except RuntimeError:
            # confluent-kafka says so after its close: of this one, or of a producer that was replaced meanwhile.
            if producer is self._producer:
                raise closed() from None
            self._producer.produce(topic, value, key, partition, on_delivery, None, timestamp, headers)

    def serve_reports(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for delivery reports and errors, and act on them."""
        try:
            self._producer.poll(timeout)
        except KafkaException as failure:
            # confluent-kafka raises a fatal error here, instead of handing it to error_cb.
            if not failure.args[0].fatal():
                raise
            self._connection.on_error(failure.args[0])
            self._replace_producer()

    def close(self) -> None:
        """Report undelivered records as failed, and end librdkafka's threads."""
        self._end_producer(self._producer)

    def _replace_producer(self) -> None:
        dead, self._producer = self._producer, self._create()
        report(logging.ERROR, "kafka_producer_replaced", reason="a fatal error of librdkafka, see kafka_error")
        self._end_producer(dead)

    @staticmethod
    def _end_producer(producer: Any) -> None:
        # Without the purge, flush and close would wait for message.timeout.ms.
        producer.purge()
        producer.flush(_LAST_REPORTS_S)
        producer.close()
