"""The options that every command about a cluster has, and where they come from: one place for all commands."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from txbridge.config.sources import load_settings
from txbridge.config.worker import WorkerSettings

#: The end of the help of every command that takes these options.
SOURCES = (
    "Options come from flags, environment (TXBRIDGE_<OPTION>), the file of --config or TXBRIDGE_CONFIG, and defaults, "
    "in this order."
)

BootstrapServers = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT,...", help="Kafka brokers to start from; or TXBRIDGE_BOOTSTRAP_SERVERS."),
]
Namespace = Annotated[str | None, typer.Option(help="Prefix of all internal topics; or TXBRIDGE_NAMESPACE.")]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A TOML file with options, the worker's; or TXBRIDGE_CONFIG.")
]
Kafka = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A librdkafka property; may be repeated. Or TXBRIDGE_KAFKA, as JSON."),
]


class Format(enum.Enum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


OutputFormat = Annotated[Format, typer.Option("--format", help="For people or for programs.")]


def settings_of(
    bootstrap_servers: str | None, namespace: str | None, config: Path | None, kafka: list[str] | None, **more: Any
) -> WorkerSettings:
    """The settings of a command: those of the worker, from the same places, so that one file serves both.

    Raises UsageError.
    """
    flags = {"bootstrap_servers": bootstrap_servers, "namespace": namespace, "kafka": kafka or None, **more}
    return load_settings(flags, config, os.environ)
