"""State of the connection, and the Kafka clients that share it: one log line when it is lost, one when it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from txbridge.client.base import process
from txbridge.client.base.contained import contained
from txbridge.client.base.log import report
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
        self._answered = ProofOfLife(clock)

    @property
    def is_lost(self) -> bool:
        """Whether Kafka has answered nothing for FRESH_S, or is not back since."""
        return self._lost_at is not None or not self._answered.is_fresh

    @property
    def silent_for(self) -> float:
        """Seconds since the last answer of Kafka."""
        return self._answered.age

    def check_answers(self) -> None:
        """Log that the connection is lost, if Kafka does not answer."""
        self.serve_others()
        if not self._answered.is_fresh:
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
        if self._answered.age >= seconds:
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
        self._answered.renew()
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
