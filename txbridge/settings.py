"""The worker's options: RocketMQ's, with its defaults, and those that Kafka adds. docs/configuration.md lists them all.

Flags win over the environment, that over the configuration file, that over the defaults. An option that does not exist
is refused wherever it was given: a misspelt time-out that silently keeps its default costs more than a failed start.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from txbridge import kafka_config
from txbridge.config_file import flat, read_config_file
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names
from txbridge.errors import UsageError

ENVIRONMENT_PREFIX = "TXBRIDGE_"
CONFIG_FILE_VARIABLE = "TXBRIDGE_CONFIG"
#: Variables with our prefix that are not options of the worker.
OTHER_VARIABLES = frozenset(
    {CONFIG_FILE_VARIABLE, "TXBRIDGE_CACHE_DIR", "TXBRIDGE_IVY_SETTINGS", "TXBRIDGE_FAULT_POINT"},
)

#: RocketMQ's spellings, as in its broker.conf; its documentation often writes transactionTimeout.
ROCKETMQ_NAMES = {
    "transactionTimeOut": "transaction_timeout",
    "transactionTimeout": "transaction_timeout",
    "transactionCheckInterval": "transaction_check_interval",
    "transactionCheckMax": "transaction_check_max",
}

_MIB = 1024 * 1024
_HOUR_MS = 3_600_000
#: Too long to be tried out over a network: 16 random letters and digits are 95 bits.
_SHORTEST_TOKEN = 16
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
    """A namespace becomes the beginning of topic names; raises ValueError for one that can not."""
    if _NAME.match(value) is None or len(value) > _LONGEST_NAMESPACE:
        raise ValueError(f"must be at most {_LONGEST_NAMESPACE} characters of A-Z a-z 0-9 . _ -")
    return value


def _check_app_id(value: str) -> str:
    if not value or _NAME.match(value) is None:
        raise ValueError("must be characters of A-Z a-z 0-9 . _ -")
    return value


_Milliseconds = Annotated[int, BeforeValidator(_no_bool), Unit("ms")]
_Bytes = Annotated[int, BeforeValidator(_no_bool), Unit("bytes")]
_Count = Annotated[int, BeforeValidator(_no_bool), Unit("")]


class WorkerSettings(BaseSettings):
    """Everything a worker can be told. Constructed directly it takes its arguments only; see `load_settings`."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """Kafka brokers to start from, host:port,host:port. May also be given as bootstrap.servers among the properties of
    kafka."""

    namespace: Annotated[str, AfterValidator(check_namespace)] = ""
    """Prefix of all internal topics, groups and transactional ids, so that environments can share a cluster."""

    app_id: Annotated[str, AfterValidator(_check_app_id)] = Field(
        default_factory=lambda data: Names(data.get("namespace", "")).worker_group,
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

    payload_memory: Annotated[_Bytes, Field(ge=_MIB)] = 256 * _MIB
    """Memory for the contents of pending half messages, per worker. Those that do not fit are read again on commit."""

    park_after: Annotated[_Milliseconds, Field(ge=1)] = 30_000
    """A half message that stays undecided longer is parked in the offset topic, so that it does not hold up progress:
    what lies behind the progress must be read again when a partition moves to another worker."""

    park_after_records: Annotated[_Count, Field(ge=1)] = 100_000
    """Parked earlier when more records than this have come behind it."""

    park_after_bytes: Annotated[_Bytes, Field(ge=1)] = 64 * _MIB
    """Parked earlier when more bytes than this have come behind it."""

    session_timeout: Annotated[_Milliseconds, Field(ge=1_000)] = 6_000
    """Silence after which a worker counts as dead and others take over its partitions (Kafka's session.timeout.ms).
    Brokers accept 6,000 to 1,800,000 unless they are configured otherwise."""

    # Bounds: librdkafka's smallest transaction.timeout.ms is 1 s and half of ours goes to delivery; the broker's
    # transaction.max.timeout.ms is 15 min.
    commit_timeout: Annotated[_Milliseconds, Field(ge=2_000, le=900_000)] = 10_000
    """Kafka's transaction.timeout.ms of the commits: the broker aborts a Kafka transaction that takes longer. Records
    that can not be delivered are given up after half of it. Not to be confused with transaction_timeout."""

    metrics_port: Annotated[_Count, Field(ge=0, le=65_535)] = 0
    """Port for /metrics, /livez and /readyz; 0 is none. 9464 is usual for metrics."""

    metrics_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address on which that port listens; 0.0.0.0 for all. There is no authentication."""

    status_page: Annotated[Literal["off", "read", "act"], BeforeValidator(_lower)] = "off"
    """Whether that port also has the status page at /status: to read, or to act as well (decide and resume by hand),
    which needs status_token."""

    status_token: Annotated[SecretStr, Field(repr=False)] = SecretStr("")
    """What a person must know to act by the status page; 16 characters at least. Give it in the environment or in the
    file: other users can read a command line."""

    # Prometheus keeps a few kilobytes for every group that ever had a name of its own here.
    metrics_max_groups: Annotated[_Count, Field(ge=0, le=10_000)] = 100
    """Producer groups with a label value of their own in the metrics; all later ones share one, (other)."""

    log_format: Annotated[Literal["auto", "json", "console"], BeforeValidator(_lower)] = "auto"
    """One JSON object a line, or text for people; auto is console on a terminal and json otherwise."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"
    """The least important messages to log."""

    kafka: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """librdkafka's own properties by their own names, for every Kafka client of the worker."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing but the arguments: `load_settings` adds the other sources."""
        return (init_settings,)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        last_check = self.transaction_timeout + self.transaction_check_max * self.transaction_check_interval
        if last_check >= self.transaction_max_age:
            raise ValueError(
                f"transaction_timeout + transaction_check_max * transaction_check_interval ({last_check} ms) must be "
                f"less than transaction_max_age ({self.transaction_max_age} ms), or messages expire unchecked",
            )
        if self.status_page == "act" and len(self.status_token.get_secret_value()) < _SHORTEST_TOKEN:
            raise ValueError(f"status_page=act needs a status_token of {_SHORTEST_TOKEN} characters or more")
        if self.status_page != "off" and not self.metrics_port:
            raise ValueError("status_page needs a metrics_port: that port serves it")
        kafka_config.user_config(self.librdkafka)
        return self

    @property
    def librdkafka(self) -> dict[str, Any]:
        """The properties for the functions of `txbridge.kafka_config`, bootstrap.servers included."""
        return {**self.kafka, kafka_config.BOOTSTRAP_SERVERS: self.bootstrap_servers}

    @property
    def check_policy(self) -> CheckPolicy:
        """When messages are checked, discarded and parked."""
        return CheckPolicy(
            transaction_timeout=self.transaction_timeout,
            transaction_check_interval=self.transaction_check_interval,
            transaction_check_max=self.transaction_check_max,
            transaction_max_age=self.transaction_max_age,
            park_after=self.park_after,
            park_after_records=self.park_after_records,
            park_after_bytes=self.park_after_bytes,
        )

    def shown(self) -> dict[str, Any]:
        """All options for the log, secrets masked."""
        return {**self.model_dump(mode="json"), "kafka": kafka_config.masked(self.kafka)}


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
        if isinstance(field.default, SecretStr):
            default = ""
        yield Option(name, " ".join((field.description or "").split()), unit, default, choices)


#: All options in the order of the documentation. Flags are text: `load_settings` judges their values.
OPTIONS: tuple[Option, ...] = tuple(_options())
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class _Source:
    """Where options can be given: how they are spelled there, and what to add in a message."""

    spell: Callable[[str], str]
    where: str = ""

    def label(self, name: str) -> str:
        return self.spell(name) + self.where


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one source gave, by option name."""

    source: _Source
    values: dict[str, Any]


_FLAGS = _Source(lambda name: _BY_NAME[name].flag if name in _BY_NAME else f"--{name.replace('_', '-')}")
_ENVIRONMENT = _Source(lambda name: ENVIRONMENT_PREFIX + name.upper())


def load_settings(
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> WorkerSettings:
    """The settings from flags (by option name, None = not given), environment, file and defaults, in this order.

    `flags["kafka"]` is a mapping or a sequence of `name=value`. Without `config_file` the variable TXBRIDGE_CONFIG
    names the file, or there is none. Raises UsageError with one line per problem: unknown options (with the nearest
    name), values that can not be, a file that can not be read.
    """
    problems: list[str] = []
    if config_file is None and environ.get(CONFIG_FILE_VARIABLE):
        config_file = Path(environ[CONFIG_FILE_VARIABLE])
    layers = [
        _layer(_FLAGS, {name: value for name, value in flags.items() if value is not None}, problems),
        _layer(_ENVIRONMENT, _environment(environ, problems), problems),
    ]
    if config_file is not None:
        source = _Source(str, f" ({config_file})")
        layers.append(_layer(source, read_config_file(config_file), problems, ROCKETMQ_NAMES))
    if problems:
        raise UsageError("\n".join(problems))

    class _Loaded(WorkerSettings):
        @classmethod
        def settings_customise_sources(cls, settings_cls: type[BaseSettings], *_: Any, **__: Any) -> Any:
            # Earlier sources win; the kafka properties of all of them are merged name by name.
            return tuple(InitSettingsSource(settings_cls, layer.values) for layer in layers)

    try:
        loaded = _Loaded()
    except ValidationError as error:
        # An app id that waits for a namespace which is wrong itself is no problem of its own, and a property of no
        # possible type is one problem, not one for each type.
        details = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
        raise UsageError("\n".join(dict.fromkeys(_explain(detail, layers) for detail in details))) from None
    return WorkerSettings(**loaded.model_dump())


def _environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """An empty variable counts as absent: that is what an unset one becomes in a compose file."""
    values: dict[str, Any] = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in OTHER_VARIABLES and value != ""
    }
    if "kafka" in values:
        try:
            values["kafka"] = json.loads(values["kafka"])
        except json.JSONDecodeError as error:
            problems.append(f'TXBRIDGE_KAFKA: must be JSON like {{"security.protocol": "ssl"}}: {error}')
            del values["kafka"]
    return values


def _layer(
    source: _Source,
    given: Mapping[str, Any],
    problems: list[str],
    aliases: Mapping[str, str] | None = None,
) -> _Layer:
    """Bring the values of one source to our names; what can not be is added to the problems."""
    aliases = aliases or {}
    values: dict[str, Any] = {}
    for spelling, value in given.items():
        name = aliases.get(spelling, spelling)
        if name not in _BY_NAME:
            known = {source.spell(known) for known in (*_BY_NAME, *aliases)}
            wrong = source.spell(spelling)
            problems.append(f"unknown option {wrong!r}{source.where}{kafka_config.nearest(wrong, known)}")
        elif name in values:
            problems.append(f"{source.label(spelling)}: {name} is given twice")
        else:
            values[name] = value
    if "kafka" in values:
        _kafka(source.label("kafka"), values, problems)
    return _Layer(source, values)


def _kafka(label: str, values: dict[str, Any], problems: list[str]) -> None:
    """Name the properties canonically, so that sources overrule each other, and lift bootstrap.servers out."""
    kafka: dict[str, Any] = {}
    for name, value in _pairs(label, values.pop("kafka"), problems):
        canonical = kafka_config.canonical_name(name)
        if canonical in kafka or (canonical == kafka_config.BOOTSTRAP_SERVERS and "bootstrap_servers" in values):
            problems.append(f"{label}: {name} is given twice")
        kafka[canonical] = value
    if kafka_config.BOOTSTRAP_SERVERS in kafka:
        values["bootstrap_servers"] = kafka.pop(kafka_config.BOOTSTRAP_SERVERS)
    if kafka:
        values["kafka"] = kafka


def _pairs(label: str, given: Any, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Properties of a mapping (in TOML, unquoted dotted names make nested ones) or of texts `name=value`."""
    if isinstance(given, Mapping):
        yield from flat(given)
    elif isinstance(given, (list, tuple)) and all(isinstance(pair, str) for pair in given):
        for number, pair in enumerate(given, 1):
            name, equals, value = pair.partition("=")
            if equals and name:
                yield name.strip(), value
            else:
                # Not repeated: it may be a password.
                problems.append(f"{label}: must be name=value (number {number} of them)")
    else:
        problems.append(f"{label}: must be a table of librdkafka properties")


def _explain(detail: ErrorDetails, layers: list[_Layer]) -> str:
    """One line for one of pydantic's errors: where the value was given, and what it must be."""
    context = detail.get("ctx", {})
    if not detail["loc"]:
        return str(context["error"])
    name = str(detail["loc"][0])
    option = _BY_NAME[name]
    if detail["type"] == "missing":
        return f"{name} is missing: give {option.flag}, {option.variable} or {name} in the configuration file"
    label = next((layer.source.label(name) for layer in layers if name in layer.values), name)
    if name == "kafka":
        prop = str(detail["loc"][1]) if len(detail["loc"]) > 1 else ""
        return f"{label}: {prop} must be text, a number, true or false"
    unit = f" {option.unit}" if option.unit else ""
    match detail["type"]:
        case "greater_than_equal":
            must = f"must be at least {context['ge']}{unit}"
        case "less_than_equal":
            must = f"must be at most {context['le']}{unit}"
        case "literal_error":
            must = f"must be one of {', '.join(option.choices)}"
        case "value_error":
            must = str(context["error"])
        case "string_too_short":
            must = "must not be empty"
        case "string_type":
            must = "must be text"
        case _:
            must = f"must be a whole number{unit and ' of'}{unit}"
    # A secret is not to be repeated, however wrong it is.
    given = "" if name == "status_token" else f", not {detail['input']!r}"
    return f"{label}: {must}{given}"
