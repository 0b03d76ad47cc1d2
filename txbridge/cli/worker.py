"""`txbridge worker`. Its flags are generated from the worker's options, so that both always agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from txbridge.cli.options import Config
from txbridge.cli.service import serve
from txbridge.config.sources import load_settings
from txbridge.config.worker import OPTIONS, Option
from txbridge.extras import needs

#: Placeholders of values in the help, by the name of an option, or else by its unit.
_METAVARS = {
    "bootstrap_servers": "HOST:PORT,...",
    "namespace": "PREFIX",
    "app_id": "GROUP",
    "metrics_host": "ADDRESS",
    "kafka": "NAME=VALUE",
}
_UNITS = {"": "N", "ms": "MS", "bytes": "BYTES"}


def _parameter(option: Option) -> inspect.Parameter:
    """A flag whose value is text. `load_settings` validates it, as it does values from file and environment."""
    default = f" (default {option.default})" if option.default else ""
    is_list = option.name == "kafka"
    flag = typer.Option(
        None,
        option.flag,
        help="A librdkafka property; may be repeated." if is_list else f"{option.help}{default}",
        metavar=_METAVARS.get(option.name) or "|".join(option.choices) or _UNITS[option.unit],
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
        show_default=False,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=flag,
        annotation=list[str] | None if is_list else str | None,
    )


def make_command() -> Callable[..., None]:
    """The command as a function with one parameter for every option."""

    def worker(*, config: Path | None = None, **flags: Any) -> None:
        """Run a worker. It serves its share of the half partitions: it delivers, checks and discards.

        Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop it: it finishes its Kafka transactions and leaves its group.
        Exit code 0: stopped by a signal; 130: interrupted before it served; 1: it hung, see the log; 2: it cannot run.
        """
        # Faust takes seconds to import: --help and a mistyped option do without it.
        with needs("worker", "a worker runs on Faust"):
            from txbridge.worker.app import run  # noqa: PLC0415

        settings = load_settings(flags, config)
        serve(settings, lambda: run(settings))

    config_parameter = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config)
    parameters = [config_parameter, *map(_parameter, OPTIONS)]
    worker.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    worker.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return worker
