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
from txbridge.operations.causes import GroupStates, cause_of
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
        str | None,
        typer.Option(metavar="TEXT", help="Messages whose cause, as `txbridge pending` lists it, contains this text."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the messages.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Act on all of them.")] = False,
    expect: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With --yes: act if exactly this many messages match, as in the dry run; else do nothing.",
        ),
    ] = None,
    how: CommandOptions,
    filters: Filters,
    cluster: ClusterOptions,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Commit, roll back, abandon or resume all open messages of a cause or a group, after a dry run.

    Exit code 0: done, or no message matches; 1: some or all were refused; 2: failed; 3: stored, but not done yet. Then
    no worker has applied it, or a real topic does not accept it.
    """
    if cause is not None and not cause.strip():
        raise UsageError("--cause needs part of a cause, as `txbridge pending` lists it")
    if cause is None and filters.group is None:
        raise UsageError("say which messages: give --cause with part of a cause, or --group with a producer group")
    if dry_run == yes:
        raise UsageError("it acts on many messages: look at them with --dry-run, then give --yes")
    if dry_run and expect is not None:
        raise UsageError("--expect needs --yes: it is the number of messages of a dry run")
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
        return [*causes, f"nothing was written; to do it, give --yes --expect {len(answers)} and --reason"]

    answer(work, settings, output_format, summary)


def _counted(texts: Iterable[str]) -> list[str]:
    return [f"{count:,}  {plain(text, _LONGEST)}" for text, count in Counter(texts).most_common()]
