"""`txbridge resolve-all`: one command for all open messages of a cause, after a dry run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer

from txbridge.cli.operations import CommandOptions, Filters, answer
from txbridge.cli.options import ClusterOptions, Format, OutputFormat, spread
from txbridge.errors import UsageError
from txbridge.operations import Answer, Connection, resolve_all
from txbridge.operations.actions import Action
from txbridge.operations.causes import cause_of
from txbridge.operations.group_states import GroupStates
from txbridge.text import plain

#: Largest number of characters shown of a cause, which can contain an error text of Kafka.
_LONGEST = 500


@spread
def resolve_all_command(
    *,
    action: Annotated[
        Action,
        typer.Argument(
            help="commit or rollback pending messages, abandon held or scheduled ones, resume discarded ones."
        ),
    ],
    cause: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Messages whose cause, as `txbridge pending` lists it, contains this text."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the messages.")] = False,
    expect: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Act if exactly this many messages match, as in the dry run; otherwise do nothing."
        ),
    ] = None,
    how: CommandOptions,
    filters: Filters,
    cluster: ClusterOptions,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Commit, roll back, abandon or resume all open messages with the same cause, after a dry run.

    Exit code 0: done, or no message matches; 1: some or all were refused; 2: failed; 3: stored, but not done yet. Then
    no worker has applied it, or a real topic does not accept it.
    """
    if not cause.strip():
        raise UsageError("--cause needs part of a cause, as `txbridge pending` lists it")
    if dry_run == (expect is not None):
        raise UsageError("run it with --dry-run first, then give --expect with the number of messages")
    given = how.as_arguments(dry_run=dry_run)
    selection = filters.as_selection(cause)
    settings = cluster.load_settings()

    def work(connection: Connection) -> list[Answer]:
        return resolve_all(connection, action, selection, dry_run=dry_run, expected=expect, **given)

    def summary(connection: Connection, answers: list[Answer]) -> list[str]:
        if not answers:
            return ["no message matches"]
        if not dry_run:
            return _counted(one.result.value for one in answers)
        now, problem_of = time.time_ns() // 1_000_000, GroupStates(connection).problem_of
        causes = _counted(cause_of(one.message, now, problem_of) for one in answers)
        return [*causes, f"nothing was written; to do it, give --expect {len(answers)} and --reason"]

    answer(work, settings, output_format, summary)


def _counted(texts: Iterable[str]) -> list[str]:
    return [f"{count:,}  {plain(text, _LONGEST)}" for text, count in Counter(texts).most_common()]
