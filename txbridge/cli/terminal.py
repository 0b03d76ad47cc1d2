"""Console, warnings and errors of the commands. Foreign text is printable; without colours if NO_COLOR is set."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Literal

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from txbridge.masking import masked, masked_values
from txbridge.subject import Subject
from txbridge.text import printable

#: Wide enough for every line when the output is not a terminal: a wrapped line is hard to search.
_WIDE = 250


class PrintableConsole(Console):
    """A console that escapes control characters in all that it prints: names, keys and errors come from outside."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See rich. It is called for every part of what is printed, before a long line is broken."""
        plain = renderable.plain if isinstance(renderable, Text) else renderable
        if isinstance(plain, str) and (safe := masked(plain)) != plain:
            renderable = renderable.blank_copy(safe) if isinstance(renderable, Text) else safe
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console(*, stderr: bool = False, wide: bool = False, **options: Any) -> Console:
    """A console without markup, emoji and highlighting, because names and errors come from outside.

    With NO_COLOR it writes plain text only. Rich alone would still write bold and dim. With `wide` the lines on stdout
    are wider when it is not a terminal.
    """
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    width = _WIDE if wide and not sys.stdout.isatty() else None
    plain = {"highlight": False, "markup": False, "emoji": False, **options}
    return PrintableConsole(stderr=stderr, color_system=colours, width=width, **plain)


def print_json(subject: Subject, content: dict[str, Any]) -> None:
    """Print a report for programs: the namespace and the cluster, then the content."""
    sys.stdout.write(json.dumps(masked_values({**subject.as_record(), **content}), indent=2) + "\n")


def warn(text: str) -> None:
    _say(text, typer.colors.YELLOW)


def complain(text: str) -> None:
    _say(text, typer.colors.RED)


def _say(text: str, colour: str) -> None:
    # Without a colour alone, click would still write the sequence that ends one.
    typer.secho(printable(text), fg=colour, err=True, color=False if os.environ.get("NO_COLOR") else None)
