"""`txbridge pending | show | resolve | resume | resolve-all | acknowledge`, for stuck transactions and partitions."""

from __future__ import annotations

import enum
import getpass
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from txbridge.cli.options import ClusterOptions, Format, OutputFormat, spread
from txbridge.cli.render import answer_record, message_record, print_answers, print_listing, print_refusal
from txbridge.cli.terminal import complain, console, print_json, warn
from txbridge.config.worker import WorkerSettings
from txbridge.core.states import TransactionState
from txbridge.errors import UsageError
from txbridge.interrupts import if_interrupted
from txbridge.operations import (
    Action,
    Answer,
    Connection,
    History,
    Result,
    Selection,
    Step,
    list_pending,
    read_history,
    resolve,
    resolve_all,
)
from txbridge.operations.acknowledge_loss import acknowledge
from txbridge.operations.causes import GroupStates, cause_of
from txbridge.operations.commands import DEFAULT_TIMEOUT_S, check_words
from txbridge.operations.listing import FinishedError
from txbridge.subject import Subject, about
from txbridge.text import duration, iso_time, parse_age, plain

#: Exit codes. main.py uses the same 2 for every TxBridgeError.
EXIT_DONE, EXIT_REFUSED, EXIT_COULD_NOT, EXIT_STORED = 0, 1, 2, 3
#: Largest number of characters shown of a cause, which can contain an error text of Kafka.
_LONGEST = 500
#: Largest number of characters of a text in a step of a history. A step stays one line, however long a remark is.
_LONGEST_STEP = 1_000


class StateFilter(enum.Enum):
    PENDING = "pending"
    HELD = "held"
    SCHEDULED = "scheduled"
    DISCARDED = "discarded"
    ALL = "all"


class Choice(enum.Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: Only for a held or scheduled message. It is no decision, but the message will not be delivered.
    ABANDON = "abandon"


Operator = Annotated[
    str | None,
    typer.Option(help="Who decides; recorded in END. Default: this user at this machine.", show_default=False),
]
IdPrefix = Annotated[
    str | None,
    typer.Option(
        "--id", help="The first 8 or more characters of the transaction id: protects against a mistyped offset."
    ),
]
_MESSAGE = typer.Argument(
    metavar="MESSAGE", help="<partition>:<half offset>, or 8 to 32 characters of the transaction id."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The messages that a command is about."""

    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only of this producer group.")] = None
    real_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only for this real topic.")] = None
    partition: Annotated[int | None, typer.Option(metavar="N", help="Only of this half partition.")] = None
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Only messages of at least this age: 90s, 10m, 2h, 3d.")
    ] = "0s"

    def as_selection(self, cause: str | None) -> Selection:
        """Raises UsageError."""
        age = parse_age(self.older_than, "--older-than")
        return Selection(group=self.group, topic=self.real_topic, partition=self.partition, min_age=age, cause=cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Who writes a command and why, and how long it is waited for."""

    reason: Annotated[str, typer.Option(help="The reason; recorded in END. Not needed with --dry-run.")] = ""
    operator: Operator = None
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait so long until a worker has applied the command.")
    ] = DEFAULT_TIMEOUT_S

    def as_arguments(self, *, dry_run: bool) -> dict[str, Any]:
        """The arguments of `txbridge.operations`. A dry run records nobody.

        Raises UsageError, before Kafka is asked, when reason or operator cannot be recorded.
        """
        reason, operator = self.reason, ""
        if not dry_run:
            reason, operator = check_words(reason, self.operator or default_operator())
        return {"reason": reason, "operator": operator, "timeout_s": self.timeout}


@spread
def pending_command(
    cluster: ClusterOptions,
    state: Annotated[
        list[StateFilter] | None, typer.Option(help="May be repeated. Default: pending and held.", show_default=False)
    ] = None,
    *,
    filters: Filters,
    cause: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only messages whose cause, as listed, contains this text.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many, oldest first.")] = 100,
    show_ids: Annotated[
        bool,
        typer.Option(
            "--show-ids", help="Show whole transaction ids. Anyone who knows an id can decide: keep them secret."
        ),
    ] = False,
    no_errors: Annotated[
        bool, typer.Option("--no-errors", help="Do not search END for each message's last error; faster on long logs.")
    ] = False,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """List open transactions. The topics are read, nothing is written, and no worker is needed or disturbed.

    Exit code 0: all partitions were read; 2: some or all could not be read.
    """
    selection = replace(filters.as_selection(cause), states=_states(state or []), limit=limit)
    settings = cluster.load_settings()
    with about(settings):
        connection = Connection.open(settings)
        listing = list_pending(connection, selection, errors=not no_errors)
    for warning in listing.warnings:
        warn(f"warning: {warning}")
    if output_format is Format.JSON:
        content = {
            "total": listing.total,
            "causes": dict(listing.causes),
            "messages": [message_record(one, listing.now, show_ids=show_ids) for one in listing.messages],
            "left_out": {state.value: count for state, count in listing.left_out.items()},
            "warnings": list(listing.warnings),
            "unread": dict(listing.unread),
        }
        print_json(connection.subject, content)
    else:
        print_listing(connection.subject, listing, show_ids=show_ids)
    for unread, why in listing.unread.items():
        complain(f"error: partition {unread} could not be read: {why}")
    if listing.unread:
        raise typer.Exit(EXIT_COULD_NOT)


@spread
def resolve_command(
    *,
    message: Annotated[str, _MESSAGE],
    decision: Annotated[Choice, typer.Argument(help="The decision; abandon gives up a held or scheduled message.")],
    how: CommandOptions,
    id_prefix: IdPrefix = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With abandon: only show what would happen.")] = False,
    cluster: ClusterOptions,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Commit or roll back one transaction by hand, or abandon one message. The first decision wins.

    Abandon a committed message that can never be delivered because its topic or its body no longer exists, or cancel a
    scheduled message before its time. It is not delivered. What is left of it goes to the discard topic.

    Exit code 0: done; 1: refused, nothing has changed; 2: failed; 3: stored, but not done yet, because no worker has
    applied it or its real topic does not accept it.
    """
    if dry_run and decision is not Choice.ABANDON:
        raise UsageError("--dry-run needs the decision abandon")
    given = how.as_arguments(dry_run=dry_run)
    settings = cluster.load_settings()

    def work(connection: Connection) -> list[Answer]:
        action = Action(decision.value)
        return [resolve(connection, message, action, id_prefix=id_prefix, dry_run=dry_run, **given)]

    answer(work, settings, output_format)


@spread
def resume_command(
    *,
    message: Annotated[str, _MESSAGE],
    how: CommandOptions,
    id_prefix: IdPrefix = None,
    cluster: ClusterOptions,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Resume a discarded transaction: it is pending again, and checks start from 1. A second resume does nothing.

    Exit code 0: resumed, now or before; 1: refused, nothing has changed; 2: failed; 3: stored, but no worker has
    applied it yet.
    """
    given = how.as_arguments(dry_run=False)

    def work(connection: Connection) -> list[Answer]:
        return [resolve(connection, message, Action.RESUME, id_prefix=id_prefix, **given)]

    answer(work, cluster.load_settings(), output_format)


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


def default_operator() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        raise UsageError("this user has no name on this machine: give --operator") from None
    return f"{user}@{socket.gethostname()}"


def exit_code(answers: Sequence[Answer]) -> int:
    results = {answer.result for answer in answers}
    if Result.REFUSED in results:
        return EXIT_REFUSED
    return EXIT_STORED if results & {Result.STORED, Result.HELD} else EXIT_DONE


def _states(chosen: Sequence[StateFilter]) -> frozenset[TransactionState]:
    if StateFilter.ALL in chosen:
        return frozenset(state for state in TransactionState if state.is_open)
    return frozenset(TransactionState(one.value) for one in chosen) or Selection().states


def answer(
    work: Callable[[Connection], list[Answer]],
    settings: WorkerSettings,
    output_format: Format,
    summary: Callable[[Connection, list[Answer]], list[str]] = lambda *_: [],
) -> None:
    """Carry out a command, print its answers, and end with its exit code.

    `summary` makes the lines below the answers in text output.
    """
    with about(settings):
        connection = Connection.open(settings)
    subject = connection.subject
    interrupted = "interrupted. A command that is already written will be applied: check with `txbridge pending`"
    try:
        with about(settings), if_interrupted(partial(warn, interrupted)):
            answers = work(connection)
    except FinishedError as error:
        if output_format is Format.JSON:
            print_json(subject, {"answers": [], "refused": str(error)})
        else:
            print_refusal(subject, str(error))
        raise typer.Exit(EXIT_REFUSED) from None
    if output_format is Format.JSON:
        print_json(subject, {"answers": [answer_record(answer) for answer in answers]})
    else:
        print_answers(subject, answers, summary(connection, answers))
    raise typer.Exit(exit_code(answers))


@spread
def acknowledge_command(
    cluster: ClusterOptions,
    partition: Annotated[int, typer.Argument(help="Partition of HALF and END that workers refuse.")],
    reason: Annotated[str, typer.Option(help="Why the loss is accepted; recorded in the checkpoint.")],
    operator: Operator = None,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Accept that HALF or END of a partition has lost its tail, so that workers serve it again. The loss is described.

    Exit code 0: workers serve the partition again; 1: nothing was lost, nothing has changed; 2: failed.
    """
    settings = cluster.load_settings()
    with about(settings):
        connection = Connection.open(settings)
        found = acknowledge(connection, partition, reason=reason, operator=operator or default_operator())
    if output_format is Format.JSON:
        print_json(connection.subject, {"acknowledged": found.is_written, "lines": [*found.lines]})
    else:
        screen = console(soft_wrap=True)
        screen.print(str(connection.subject))
        for line in found.lines:
            screen.print(line)
    raise typer.Exit(EXIT_DONE if found.is_written else EXIT_REFUSED)


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
    line.append(f"{plain(step.what, _LONGEST_STEP):{width}}", style="bold")
    if step.detail:
        line.append(f"  {plain(step.detail, _LONGEST_STEP)}")
    return line
