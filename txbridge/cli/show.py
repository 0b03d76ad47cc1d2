"""`txbridge show`: the whole history of one transaction, finished or not."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from txbridge.cli.options import ClusterOptions, Format, OutputFormat, spread
from txbridge.cli.terminal import console, print_json, warn
from txbridge.operations import Connection, History, Step, read_history
from txbridge.subject import Subject, about
from txbridge.text import duration, iso_time, plain

#: Largest number of characters of a text in a step. A step stays one line, however long a remark in it is.
_LONGEST = 1_000


@spread
def show_command(
    cluster: ClusterOptions,
    message: Annotated[
        str,
        typer.Argument(
            metavar="MESSAGE",
            help="<partition>:<half offset>, as in 0:42, or 8 to 32 characters of an id, for which HALF is searched.",
        ),
    ],
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Show the history of one transaction, as the topics record it: prepared, checked, decided, delivered.

    Coordinates are found at once. For a transaction id all of HALF is searched, for up to 20 s.

    Exit code 0: shown, with the names of topics that this user may not read; 2: the transaction does not exist (any
    more), or could not be read.
    """
    settings = cluster.load_settings()
    with about(settings):
        connection = Connection.open(settings)
        found = read_history(connection, message)
    if output_format is Format.JSON:
        print_json(connection.subject, history_record(found))
    else:
        print_history(connection.subject, found)


def history_record(history: History) -> dict[str, Any]:
    """A history as JSON shows it; the names are those of `txbridge pending`."""
    return {
        "partition": history.partition,
        "half_offset": history.half_offset,
        "transaction_id": history.short_id,
        "group": history.group,
        "topic": history.real_topic,
        "size": history.size,
        "state": history.state,
        "born": iso_time(history.born),
        "steps": [{"at": iso_time(step.at), "what": step.what, "detail": step.detail} for step in history.steps],
        "missing": list(history.missing),
    }


def print_history(subject: Subject, history: History) -> None:
    """One line for the transaction, then one line for each step."""
    screen = console(soft_wrap=True)
    screen.print(str(subject))
    who = f"{history.partition}:{history.half_offset} ({history.short_id}, group {history.group}, "
    line = Text(f"{who}topic {history.real_topic}): ")
    line.append(history.state, style="bold")
    screen.print(line)
    longest = max((len(step.what) for step in history.steps), default=0)
    for step in history.steps:
        screen.print(_line(step, history.born, longest))
    for missing in history.missing:
        warn(f"not read: {missing}")


def _line(step: Step, born: int, width: int) -> Text:
    # Text, not markup: remarks and names come from outside.
    line = Text(f"{iso_time(step.at)}  +{duration(max(step.at - born, 0)):<8}  ")
    line.append(f"{plain(step.what, _LONGEST):{width}}", style="bold")
    if step.detail:
        line.append(f"  {plain(step.detail, _LONGEST)}")
    return line
