"""The options of every command about a cluster, with their sources."""

from __future__ import annotations

import enum
import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from txbridge.config.sources import load_settings as read_settings
from txbridge.config.worker import WorkerSettings
from txbridge.errors import UsageError

#: The end of the help of every command that takes these options.
SOURCES = (
    "Options come from flags, environment (TXBRIDGE_<OPTION>), the file of --config or TXBRIDGE_CONFIG, and defaults, "
    "in this order."
)

_Answer = TypeVar("_Answer")

Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A TOML file with options, the worker's; or TXBRIDGE_CONFIG.")
]


#: Variable for the address of the database, because other users of the machine can read a command line.
DATABASE_VARIABLE = "TXBRIDGE_DATABASE_URL"
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        show_envvar=False,
        help="The database with the table txbridge_transactions, as SQLAlchemy writes it: "
        f"postgresql+psycopg://... Or {DATABASE_VARIABLE}, which other users cannot read.",
    ),
]
MetricsPort = Annotated[
    str | None, typer.Option(metavar="N", help="Port for /metrics, /livez and /readyz (default 0: none).")
]
MetricsHost = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address on which it listens (default 127.0.0.1).")
]


OutboxName = Annotated[
    str,
    typer.Option(
        metavar="TABLE",
        help="The outbox, as [SCHEMA.]NAME; or MODULE:NAME, an OutboxTable in Python that describes another table.",
    ),
]


def require_database(url: str | None, table: str) -> str:
    """The URL. Raises UsageError if there is none; `table` says which database is asked for."""
    if not url:
        raise UsageError(f"--database-url (or {DATABASE_VARIABLE}) is missing: name the database of {table}")
    return url


class Format(enum.Enum):
    TABLE = "table"
    JSON = "json"


OutputFormat = Annotated[Format, typer.Option("--format", help="For people or for programs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Kafka brokers to start from; or TXBRIDGE_BOOTSTRAP_SERVERS."),
    ] = None
    namespace: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Prefix of all internal topics; or TXBRIDGE_NAMESPACE.")
    ] = None
    config: Config = None
    kafka: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A librdkafka property; may be repeated. Or TXBRIDGE_KAFKA, as JSON."),
    ] = None

    def load_settings(self, **more: Any) -> WorkerSettings:
        """The settings of a command: those of the worker, from the same places, so that one file serves both.

        Raises UsageError.
        """
        flags = {"bootstrap_servers": self.bootstrap_servers, "namespace": self.namespace, "kafka": self.kafka or None}
        return read_settings({**flags, **more}, self.config, os.environ)


def spread(command: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Decorator for a command that takes dataclasses of options: their fields become flags of the command."""
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: one.annotation for name, one in own.parameters.items() if is_dataclass(one.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, one in own.parameters.items():
        fields = inspect.signature(groups[name], eval_str=True).parameters.values() if name in groups else [one]
        parameters += [field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields]

    @functools.wraps(command)
    def run(**given: Any) -> _Answer:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields_of(group)})
        return command(**given)

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
