"""What the commands print with: a console, and colours only where they are wanted."""

from __future__ import annotations

import os
from typing import Any, Literal

import typer
from rich.console import Console


def console(*, stderr: bool = False, **options: Any) -> Console:
    """A console without markup and highlighting: names and errors are other people's.

    With NO_COLOR nothing but text is written: rich itself would go on with bold and dim.
    """
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(stderr=stderr, highlight=False, markup=False, color_system=colours, **options)


def warn(text: str) -> None:
    """One line about something that is odd."""
    _say(text, typer.colors.YELLOW)


def complain(text: str) -> None:
    """One line about something that did not work."""
    _say(text, typer.colors.RED)


def _say(text: str, colour: str) -> None:
    typer.secho(text, fg=None if os.environ.get("NO_COLOR") else colour, err=True)
