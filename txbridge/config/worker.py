"""The worker's options: RocketMQ's, with its defaults, and those that Kafka adds. docs/configuration.md lists them all.

`txbridge.config.sources` tells where they can be given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.kafka import config as kafka_config
from txbridge.kafka.config import canonical_servers
from txbridge.masking import masked_values

ENVIRONMENT_PREFIX = "TXBRIDGE_"

_MIB = 1024 * 1024
_HOUR_MS = 3_600_000
_NAME = re.compile(r"[A-Za-z0-9._-]*\Z")
#: Leaves room in Kafka's 249 characters of a topic name for RMQ_SYS_TRANS_CHECK. and a group of usual length.
_LONGEST_NAMESPACE = 100


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of an option, for messages and the documentation."""

    name: str


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004  the one that pydantic reports
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def check_namespace(value: str) -> str:
    """Return a namespace, which becomes a prefix of topic names. Raises ValueError if it cannot."""
    if _NAME.match(value) is None or len(value) > _LONGEST_NAMESPACE:
        raise ValueError(f"must be at most {_LONGEST_NAMESPACE} characters of A-Z a-z 0-9 . _ -")
    return value


def _check_app_id(value: str) -> str:
    if not value or _NAME.match(value) is None:
        raise ValueError("must be characters of A-Z a-z 0-9 . _ -")
    return value


_Milliseconds = Annotated[int, BeforeValidator(_no_bool), Unit("ms")]
_Seconds = Annotated[float, BeforeValidator(_no_bool), Unit("s")]
_Bytes = Annotated[int, BeforeValidator(_no_bool), Unit("bytes")]
_Count = Annotated[int, BeforeValidator(_no_bool), Unit("")]


class WorkerSettings(BaseModel):
    """All options of a worker. `load_settings` reads them from flags, environment and file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Kafka brokers to start from, host:port,host:port. May also be given as bootstrap.servers among the properties of
    kafka."""

    namespace: Annotated[str, AfterValidator(check_namespace)] = ""
    """Prefix of all internal topics, groups and transactional ids, so that environments can share a cluster."""

    app_id: Annotated[str, AfterValidator(_check_app_id)] = Field(
        default_factory=lambda data: Names(data.get("namespace", "")).worker_group
    )
    """Faust's app id and the workers' consumer group; all workers of a namespace share it. Default: CID_RMQ_SYS_TRANS,
    prefixed by the namespace."""

    transaction_timeout: Annotated[_Milliseconds, Field(ge=1)] = 6_000
    """Age at which an undecided half message is checked for the first time (RocketMQ's transactionTimeOut)."""

    transaction_check_interval: Annotated[_Milliseconds, Field(ge=1)] = 30_000
    """Time between two checks of the same half message (RocketMQ's transactionCheckInterval)."""

    transaction_check_max: Annotated[_Count, Field(ge=1)] = 15
    """Checks after which a half message that stays undecided is discarded (RocketMQ's transactionCheckMax)."""

    transaction_max_age: Annotated[_Milliseconds, Field(ge=1)] = 72 * _HOUR_MS
    """Age at which an undecided half message is discarded, however few checks were sent (RocketMQ keeps messages for
    72 h)."""

    transaction_check_rate: Annotated[_Count, Field(ge=1)] = 1_000
    """Most checks sent per second and partition, so that the backlog of an outage does not flood the producers."""

    # A reader of the messages hardly notices 20 ms. It leaves Kafka and the worker one Kafka transaction, of a few
    # milliseconds of processor time, for as many messages as come in that time. A longer one saves little more.
    commit_interval: Annotated[_Seconds, Field(ge=0, le=1)] = 0.02
    """Least time from the begin of one Kafka transaction of a partition to that of the next. Nothing waits for it in a
    backlog, after a quiet time, or when a message that a topic has refused is tried again. 0: none."""

    # A year: a longer delay is surely meant in milliseconds.
    timer_max_delay: Annotated[_Seconds, Field(ge=0.001, le=366 * 86_400)] = 72 * 3_600
    """Longest delay of a message that names a time of delivery, from its birth (RocketMQ's timerMaxDelaySec). One that
    names a later time is discarded as malformed. A smaller value does not affect messages that already wait."""

    payload_memory: Annotated[_Bytes, Field(ge=_MIB)] = 256 * _MIB
    """Memory for the contents of pending half messages, per worker. Those that do not fit are read again on commit."""

    park_after: Annotated[_Milliseconds, Field(ge=1)] = 30_000
    """A half message that stays undecided longer is parked in the offset topic. So it does not hold back the
    checkpoint, from which another worker reads when it takes the partition over."""

    park_after_records: Annotated[_Count, Field(ge=1)] = 100_000
    """It is parked earlier when more records than this follow it in HALF."""

    park_after_bytes: Annotated[_Bytes, Field(ge=1)] = 64 * _MIB
    """It is parked earlier when more bytes than this follow it in HALF."""

    session_timeout: Annotated[_Milliseconds, Field(ge=1_000)] = 6_000
    """Silence after which a worker counts as dead and others take over its partitions (Kafka's session.timeout.ms).
    Brokers accept 6,000 to 1,800,000 unless they are configured otherwise."""

    # Bounds: librdkafka's smallest transaction.timeout.ms is 1 s and half of ours goes to delivery; the broker's
    # transaction.max.timeout.ms is 15 min.
    commit_timeout: Annotated[_Milliseconds, Field(ge=2_000, le=900_000)] = 10_000
    """Kafka's transaction.timeout.ms of the commits: the broker aborts a Kafka transaction that takes longer. Records
    that cannot be delivered are given up after half of it. Not to be confused with transaction_timeout."""

    metrics_port: Annotated[_Count, Field(ge=0, le=65_535)] = 0
    """Port for /metrics, /livez and /readyz; 0 is none. 9464 is usual for metrics."""

    metrics_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address on which that port listens; 0.0.0.0 for all. There is no authentication."""

    status_page: Annotated[Literal["off", "read"], BeforeValidator(_lower)] = "off"
    """Whether that port also has the status page, at /status. It shows what is open, and changes nothing."""

    # Prometheus keeps a few kilobytes for every group that ever had a name of its own here.
    metrics_max_groups: Annotated[_Count, Field(ge=0, le=10_000)] = 100
    """Producer groups with a label value of their own in the metrics; all later ones share one, (other)."""

    log_format: Annotated[Literal["auto", "json", "console"], BeforeValidator(_lower)] = "auto"
    """One JSON object a line, or text for people; auto is console on a terminal and json otherwise."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"
    """The lowest level that is logged."""

    kafka: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """librdkafka's own properties by their own names, for every Kafka client of the worker."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        last_check = self.transaction_timeout + self.transaction_check_max * self.transaction_check_interval
        if last_check >= self.transaction_max_age:
            raise ValueError(
                f"transaction_timeout + transaction_check_max * transaction_check_interval ({last_check} ms) must be "
                f"less than transaction_max_age ({self.transaction_max_age} ms), or messages expire unchecked"
            )
        kafka_config.user_config(self.librdkafka)
        return self

    @property
    def librdkafka(self) -> dict[str, Any]:
        """The properties for the functions of `txbridge.kafka.config`, bootstrap.servers included."""
        native = {name: value for name, value in self.kafka.items() if not name.startswith(kafka_config.JAVA_PREFIX)}
        servers = canonical_servers(self.bootstrap_servers, native.get("security.protocol"))
        return {**native, kafka_config.BOOTSTRAP_SERVERS: servers}

    @property
    def longest_wait(self) -> int:
        """Longest time (ms) after its birth for which the body of a half message may be needed."""
        return max(self.transaction_max_age, round(self.timer_max_delay * 1000))

    @property
    def check_policy(self) -> CheckPolicy:
        return CheckPolicy(
            transaction_timeout=self.transaction_timeout,
            transaction_check_interval=self.transaction_check_interval,
            transaction_check_max=self.transaction_check_max,
            transaction_max_age=self.transaction_max_age,
            longest_delay=round(self.timer_max_delay * 1000),
            park_after=self.park_after,
            park_after_records=self.park_after_records,
            park_after_bytes=self.park_after_bytes,
        )

    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, secrets masked; not those that name cluster and group."""
        named = {"bootstrap_servers", "namespace", "app_id"}
        return dict(masked_values(self.model_dump(mode="json", exclude=named, exclude_defaults=True)))


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the worker, as the command line and the documentation show it."""

    name: str
    help: str
    unit: str
    default: str
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _options() -> Iterator[Option]:
    for name, field in WorkerSettings.model_fields.items():
        unit = next((extra.name for extra in field.metadata if isinstance(extra, Unit)), "")
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        default = "" if field.is_required() or field.default_factory else str(field.default)
        yield Option(name, " ".join((field.description or "").split()), unit, default, choices)


#: All options in the order of the documentation. Flags are text: `load_settings` judges their values.
OPTIONS: tuple[Option, ...] = tuple(_options())
