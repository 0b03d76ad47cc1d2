"""Sources of the worker's options.

Flags win over the environment, that over the configuration file, that over the defaults. An option that does not exist
is refused in every source. A misspelt time-out that silently keeps its default costs more than a failed start.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from txbridge.config.worker import ENVIRONMENT_PREFIX, OPTIONS, WorkerSettings
from txbridge.errors import UsageError
from txbridge.kafka import config as kafka_config

CONFIG_FILE_VARIABLE = "TXBRIDGE_CONFIG"
#: Variables with our prefix that are not options of the worker.
OTHER_VARIABLES = frozenset(
    {
        CONFIG_FILE_VARIABLE,
        "TXBRIDGE_CACHE_DIR",
        "TXBRIDGE_MAVEN_REPOSITORY",
        "TXBRIDGE_FAULT_POINT",
        "TXBRIDGE_DATABASE_URL",
    }
)

#: Variables of the front door for RocketMQ clients (`txbridge rocketmq`), which has options of its own.
DOOR_PREFIX = "TXBRIDGE_ROCKETMQ_"

#: Variables that Kubernetes sets in every pod for a Service, without the Service's name and "_" in front.
_SERVICE_LINK = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?", re.ASCII
)
_LINKED_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:[0-9]+", re.ASCII)

#: RocketMQ's spellings, as in its broker.conf; its documentation often writes transactionTimeout.
ROCKETMQ_NAMES = {
    "transactionTimeOut": "transaction_timeout",
    "transactionTimeout": "transaction_timeout",
    "transactionCheckInterval": "transaction_check_interval",
    "transactionCheckMax": "transaction_check_max",
}

_BY_NAME = {option.name: option for option in OPTIONS}


def read_toml(path: Path, what: str = "the configuration file") -> dict[str, Any]:
    """The content of a file. Raises UsageError, which repeats nothing of it."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} {path} is not valid TOML: {error}") from None


def flat(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and their values: in TOML, unquoted dotted names make nested tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True, slots=True)
class _Layer:
    """The values that one source of options gives, by option name."""

    #: The spelling of names there, and a note for messages.
    spell: Callable[[str], str]
    where: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    def label_of(self, name: str) -> str:
        return self.spell(name) + self.where

    def take_values(
        self, given: Mapping[str, Any], problems: list[str], aliases: Mapping[str, str] | None = None
    ) -> None:
        """Take these values over. Names that are unknown or given twice are added to the problems."""
        aliases = aliases or {}
        for spelling, value in given.items():
            name = aliases.get(spelling, spelling)
            if name not in _BY_NAME:
                known = {self.spell(known) for known in (*_BY_NAME, *aliases)}
                wrong = self.spell(spelling)
                problems.append(f"unknown option {wrong!r}{self.where}{kafka_config.nearest(wrong, known)}")
            elif name in self.values:
                problems.append(f"{self.label_of(spelling)}: {name} is given twice")
            else:
                self.values[name] = value
        if "kafka" in self.values:
            _split_kafka(self.label_of("kafka"), self.values, problems)


def _flag(name: str) -> str:
    return _BY_NAME[name].flag if name in _BY_NAME else f"--{name.replace('_', '-')}"


def load_settings(
    flags: Mapping[str, Any], config_file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> WorkerSettings:
    """The settings from flags (by option name, None = not given), environment, file and defaults, in this order.

    `flags["kafka"]` is a mapping or a sequence of `name=value`. Without `config_file` the variable TXBRIDGE_CONFIG
    names the file, or there is none. Raises UsageError with one line per problem: unknown options (with the nearest
    name), wrong values, a file that cannot be read.
    """
    problems: list[str] = []
    if config_file is None and environ.get(CONFIG_FILE_VARIABLE):
        config_file = Path(environ[CONFIG_FILE_VARIABLE])
    layers = [_Layer(_flag), _Layer(lambda name: ENVIRONMENT_PREFIX + name.upper())]
    layers[0].take_values({name: value for name, value in flags.items() if value is not None}, problems)
    layers[1].take_values(_environment(environ, problems), problems)
    if config_file is not None:
        layers.append(_Layer(str, f" ({config_file})"))
        layers[2].take_values(read_toml(config_file), problems, ROCKETMQ_NAMES)
    if problems:
        raise UsageError("\n".join(problems))

    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        kafka = {**merged.get("kafka", {}), **layer.values.get("kafka", {})}
        merged |= {**layer.values, "kafka": kafka}
    try:
        return WorkerSettings(**merged)
    except ValidationError as error:
        # The default of app_id fails with a wrong namespace, which is no problem of its own. A property of a wrong type
        # is one problem, not one for each possible type.
        details = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
        raise UsageError("\n".join(dict.fromkeys(_explain(detail, layers) for detail in details))) from None


def without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the worker's options, for a worker that gets all of them as flags."""
    options = {CONFIG_FILE_VARIABLE, *(option.variable for option in OPTIONS)}
    return {name: value for name, value in environ.items() if name not in options}


def _environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """Options from the environment. An empty variable counts as absent: a compose file makes an unset one empty."""
    links = _service_links(environ)
    values: dict[str, Any] = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
        and not name.startswith(DOOR_PREFIX)
        and name not in OTHER_VARIABLES
        and name not in links
        and value != ""
    }
    if "kafka" in values:
        try:
            values["kafka"] = json.loads(values["kafka"])
        except json.JSONDecodeError as error:
            problems.append(f'TXBRIDGE_KAFKA: must be JSON like {{"security.protocol": "ssl"}}: {error}')
            del values["kafka"]
    return values


def _service_links(environ: Mapping[str, str]) -> set[str]:
    """Variables that Kubernetes sets for Services named txbridge or txbridge-..., except where an option has the name.

    A Service always has variables for its host and its port. Without these two, other variables are not from
    Kubernetes.
    """
    own = ENVIRONMENT_PREFIX.rstrip("_")
    services = [
        name.removesuffix("_SERVICE_HOST")
        for name in environ
        if name.startswith(ENVIRONMENT_PREFIX) and name.endswith("_SERVICE_HOST")
    ]
    links = {
        name
        for service in services
        if (service == own or service.startswith(ENVIRONMENT_PREFIX))
        and environ.get(f"{service}_SERVICE_PORT", "").isdecimal()
        for name in environ
        if name.startswith(f"{service}_")
        and _SERVICE_LINK.fullmatch(name.removeprefix(f"{service}_"))
        # Kubernetes sets an address here. A number comes from a person who means an option.
        and (name != f"{service}_PORT" or _LINKED_ADDRESS.fullmatch(environ[name]))
    }
    return links - {option.variable for option in OPTIONS}


def _split_kafka(label: str, values: dict[str, Any], problems: list[str]) -> None:
    """Give properties their canonical names, so that sources overrule each other, and move bootstrap.servers out."""
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
    """One line for one of pydantic's errors: the place of the value, and the rule that it breaks."""
    context = detail.get("ctx", {})
    if not detail["loc"]:
        return str(context["error"])
    name = str(detail["loc"][0])
    option = _BY_NAME[name]
    if detail["type"] == "missing":
        return f"{name} is missing: give {option.flag}, {option.variable} or {name} in the configuration file"
    if name == "kafka":
        # The properties of all layers are merged: the first layer that gives this one is to blame.
        prop = str(detail["loc"][1])
        label = next(layer.label_of(name) for layer in layers if prop in layer.values.get(name, {}))
        return f"{label}: {prop} must be text, a number, true or false"
    label = next((layer.label_of(name) for layer in layers if name in layer.values), name)
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
            # A list of addresses, perhaps with a password.
            return f"{label}: must be text, not {type(detail['input']).__name__}"
        case _:
            must = f"must be a whole number{unit and ' of'}{unit}"
            if _LINKED_ADDRESS.fullmatch(str(detail["input"])):
                must += " (if Kubernetes set it for a Service of that name, give the pod enableServiceLinks: false)"
    return f"{label}: {must}, not {detail['input']!r}"
