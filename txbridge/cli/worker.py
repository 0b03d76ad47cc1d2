"""`txbridge worker`: its flags are the worker's options, so that they can not drift apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from txbridge import log
from txbridge.config.sources import load_settings
from txbridge.config.worker import OPTIONS, Option
from txbridge.subject import about


def _parameter(option: Option) -> inspect.Parameter:
    """A flag of text: `load_settings` judges its value, as it does those of file and environment."""
    unit = f" [{option.unit}]" if option.unit else ""
    default = f" (default {option.default})" if option.default else ""
    is_list = option.name == "kafka"
    help_text = "A librdkafka property as name=value; may be repeated." if is_list else f"{option.help}{unit}{default}"
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(None, option.flag, help=help_text, show_default=False),
        annotation=list[str] | None if is_list else str | None,
    )


def make_command() -> Callable[..., None]:
    """The command as a function with one parameter for every option."""

    def worker(*, config: Path | None = None, **flags: Any) -> None:
        """Run a worker: it owns its share of the half partitions and delivers, checks and discards.

        Options come from flags, environment (TXBRIDGE_<OPTION>), the file of --config or TXBRIDGE_CONFIG, and defaults,
        in this order.
        """
        # Faust takes seconds to import: not for --help and not for a mistyped option.
        from txbridge.worker.app import run  # noqa: PLC0415

        settings = load_settings(flags, config)
        log.configure(settings.log_format, settings.log_level)
        with about(settings):
            run(settings)

    config_parameter = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(None, "--config", help="A TOML file with options.", show_default=False),
        annotation=Path | None,
    )
    parameters = [config_parameter, *map(_parameter, OPTIONS)]
    worker.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    worker.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return worker
