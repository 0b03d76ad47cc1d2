"""Options of a client, which its three APIs share, and the checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from txbridge.client.message import DEFAULT_TIMER_MAX_DELAY_MS
from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import UsageError
from txbridge.kafka import config as kafka_config

if TYPE_CHECKING:
    from txbridge.client.forwarding import Forwarding
    from txbridge.client.metrics import ClientMetrics

#: A blocking service with 200 orders a second sends 40 END records instead of 200, and its worker as many Kafka
#: transactions. The wait is as long as a person or a service behind Kafka does not notice. It is longer than the
#: worker's commit_interval (20 ms): a worker that has one client is then ready when the next record comes. With two
#: equal ones a message waited for both, 35 ms instead of 25.
DEFAULT_COMMIT_INTERVAL_S = 0.025
#: A longer one is surely meant in milliseconds.
_LONGEST_COMMIT_INTERVAL_S = 1.0
#: A year. A longer delay is surely meant in milliseconds, too.
_LONGEST_DELAY_S = 366 * 86_400.0


class ProducerOptions(TypedDict, total=False):
    """Options that both producers take, as TransactionProducer describes them."""

    namespace: str
    check_request_hold_max: int
    start_timeout: float
    start_without_kafka: bool
    timer_max_delay: float
    commit_interval: float
    metrics: ClientMetrics | None


@dataclass(frozen=True)
class ClientOptions:
    """Options of a client, with its group and settings. Raises UsageError if they cannot work."""

    group: str
    settings: Mapping[str, Any] = field(repr=False)
    namespace: str = ""
    #: Seconds. A broker restarts in 10 to 20 s. So a service that starts together with its Kafka succeeds, and one with
    #: a wrong address fails while somebody is still watching.
    start_timeout: float = 30.0
    #: RocketMQ's default.
    check_request_hold_max: int = 2000
    metrics: ClientMetrics | None = None
    #: Seconds.
    timer_max_delay: float = DEFAULT_TIMER_MAX_DELAY_MS / 1000
    #: Seconds.
    commit_interval: float = DEFAULT_COMMIT_INTERVAL_S
    #: Of a listener with an outbox.
    forwarding: Forwarding | None = None
    start_without_kafka: bool = False
    #: Whether there is a Kafka to send to; else every message is stored in the outbox.
    has_kafka: bool = True

    def __post_init__(self) -> None:
        _require_group(self.group, self.namespace)
        require_positive(check_request_hold_max=self.check_request_hold_max)
        _require_seconds("start_timeout", self.start_timeout)
        _require_seconds("timer_max_delay", self.timer_max_delay, _LONGEST_DELAY_S)
        interval = self.commit_interval
        if not isinstance(interval, int | float) or not 0 <= interval <= _LONGEST_COMMIT_INTERVAL_S:
            raise UsageError(f"commit_interval must be 0 to {_LONGEST_COMMIT_INTERVAL_S:g} seconds, not {interval!r}")
        if self.has_kafka:
            kafka_config.user_config(self.settings)
        elif self.forwarding is None:
            raise UsageError("without Kafka's settings a bridge needs an outbox, which stores its messages")
        # A copy, so that what the application changes later has no effect.
        object.__setattr__(self, "settings", dict(self.settings))
        if self.forwarding is not None:
            self.forwarding.has_kafka = self.has_kafka
            if self.metrics is not None:
                self.forwarding.count_stored = self.metrics.count_stored(self.group)

    @cached_property
    def names(self) -> Names:
        """Names of the topics and groups."""
        return Names(self.namespace)

    @property
    def starts_in_background(self) -> bool:
        """Whether the start goes on while Kafka is away. With an outbox there is always something to do meanwhile."""
        return self.start_without_kafka or self.forwarding is not None

    @property
    def bootstrap_servers(self) -> str:
        return str(kafka_config.user_config(self.settings)[kafka_config.BOOTSTRAP_SERVERS])


def require_positive(**options: int) -> None:
    """Raise UsageError if one of these options is below 1 or no number."""
    for name, number in options.items():
        if not isinstance(number, int | float) or number < 1:
            raise UsageError(f"{name} must be at least 1, not {number!r}")


def _require_seconds(name: str, seconds: float, below: float | None = None) -> None:
    if not isinstance(seconds, int | float) or not seconds > 0 or (below is not None and seconds >= below):
        raise UsageError(f"{name} must be seconds, more than 0, not {seconds!r}")


def _require_group(group: str, namespace: str) -> None:
    if not isinstance(group, str) or not is_group(group):
        raise UsageError(f"{group!r} cannot be a producer group: 1 to 200 characters of A-Z a-z 0-9 . _ - are needed")
    if not is_topic(Names(namespace).check(group)):
        raise UsageError(f"namespace {namespace!r} cannot prefix topic names, or makes them longer than 249 characters")
