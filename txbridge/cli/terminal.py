"""Console, warnings and errors of the commands, without colours if NO_COLOR is set."""

from __future__ import annotations

import os
from typing import Any, Literal

import typer
from rich.console import Console


def console(*, stderr: bool = False, **options: Any) -> Console:
    """A console without markup and highlighting, because names and errors come from outside.

    With NO_COLOR it writes plain text only. Rich alone would still write bold and dim.
    """
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(stderr=stderr, highlight=False, markup=False, color_system=colours, **options)


def warn(text: str) -> None:
    """Print a warning of one line to stderr."""
    _say(text, typer.colors.YELLOW)


def complain(text: str) -> None:
    """Print an error of one line to stderr."""
    _say(text, typer.colors.RED)


def _say(text: str, colour: str) -> None:
    typer.secho(text, fg=None if os.environ.get("NO_COLOR") else colour, err=True)
