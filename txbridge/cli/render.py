"""Output of open messages and answers: text for people, records for programs.

A list has its causes first, then a table, or a block per message on a narrow terminal.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from txbridge.cli.terminal import console
from txbridge.core.states import TransactionState
from txbridge.operations import Answer, Listing, OpenMessage, Result
from txbridge.operations.causes import next_step_of, trouble_of
from txbridge.subject import Subject
from txbridge.text import counted, duration, iso_time, plain

#: Least width for the table. Below it, ten columns leave no room for errors.
_TABLE = 150
#: Characters of a key, and of an error; JSON has all of them.
_KEY, _ERROR = 24, 120
#: Causes shown; the rest is one line.
_CAUSES = 10
#: Gap between two parts of a line, and indent of all lines of a block but the first.
_GAP, _INDENT = "  ", "    "

_STYLE = {
    TransactionState.PENDING: "yellow",
    TransactionState.HELD: "red",
    TransactionState.SCHEDULED: "cyan",
    TransactionState.DISCARDED: "magenta",
}
_GOOD = {Result.COMMITTED, Result.ROLLED_BACK, Result.RESUMED, Result.ABANDONED}


def shown_key(key: bytes | None) -> str:
    """A key as text when it is text, else as hexadecimal digits."""
    if key is None:
        return ""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()


def message_record(message: OpenMessage, now: int, *, show_ids: bool) -> dict[str, Any]:
    stored = message.stored
    return {
        "partition": message.partition,
        "half_offset": message.half_offset,
        "transaction_id": message.transaction_id if show_ids else message.short_id,
        "group": message.group,
        "topic": message.real_topic,
        **_key_record(message.key),
        "barrier_id": message.barrier_id,
        "size": message.size,
        "messages": message.messages,
        "delivered": message.delivered,
        "state": message.state.value,
        "parked": message.parked,
        "born": iso_time(message.born),
        "age_ms": now - message.born,
        "checks": message.checks,
        "next_step": message.next_step.value,
        "next_due": None if message.next_due is None else iso_time(message.next_due),
        "error": message.error,
        "decided_at_end_offset": message.decided,
        "discard_reason": message.reason,
        "discarded_at": message.discarded_at and ":".join(map(str, message.discarded_at)),
        "resumed": None if message.resumed is None else iso_time(message.resumed),
        "body_gone": message.gone,
        "stored": stored
        and {
            "end_offset": stored.end_offset,
            "decision": stored.decision.name.lower(),
            "source": stored.source.value,
            "client_id": stored.client_id,
        },
    }


def answer_record(answer: Answer) -> dict[str, Any]:
    message = answer.message
    return {
        "partition": message.partition,
        "half_offset": message.half_offset,
        "transaction_id": message.short_id,
        "group": message.group,
        "topic": message.real_topic,
        "result": answer.result.value,
        "detail": answer.detail,
        "end_offset": answer.end_offset,
    }


def print_answers(subject: Subject, answers: Sequence[Answer], summary: Sequence[str] = ()) -> None:
    screen = console(wide=True)
    screen.print(str(subject))
    for answer in answers:
        message = answer.message
        who = f"{message.coordinates} ({message.short_id}, group {message.group}, topic {message.real_topic})"
        style = "green" if answer.result in _GOOD else "yellow"
        screen.print(Text(answer.result.value, style=style) + Text(f"  {who}: {plain(answer.detail, 1_000)}"))
    for line in summary:
        screen.print(Text(line))


def print_refusal(subject: Subject, why: str) -> None:
    screen = console(wide=True)
    screen.print(str(subject))
    screen.print(Text("refused", style="yellow") + Text(f": {why}"))


def _key_record(key: bytes | None) -> dict[str, str | None]:
    if key is None:
        return {"key": None}
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key": None, "key_base64": base64.b64encode(key).decode()}


def print_listing(subject: Subject, listing: Listing, *, show_ids: bool) -> None:
    screen = console(wide=True)
    screen.print(str(subject))
    for line in _summary(listing, screen.width):
        screen.print(line, soft_wrap=True)
    if listing.messages:
        if screen.width < _TABLE:
            _blocks(screen, listing, show_ids=show_ids)
        else:
            screen.print(_table(listing, show_ids=show_ids))
    for hint in hints(listing):
        screen.print(hint)


def hints(listing: Listing) -> Iterator[str]:
    """Hints about open messages that are not shown, with the options that show them."""
    shown = len(listing.messages)
    if shown < listing.total:
        yield f"shown: the oldest {shown:,} of {listing.total:,}; --limit {listing.total} shows all"
    if listing.left_out:
        states = ", ".join(f"{count:,} {state.value}" for state, count in listing.left_out.items())
        others = counted(sum(listing.left_out.values()), "other open message")
        yield f"left out by the filters: {others} ({states}); --state all lists every state"


def _summary(listing: Listing, width: int) -> Iterator[Text]:
    if not listing.total:
        yield Text("no open message matches")
        return
    oldest = duration(max(listing.now - min(one.born for one in listing.messages), 0)) if listing.messages else "0s"
    yield Text(f"{counted(listing.total, 'open message')}, the oldest for {oldest}:", style="bold")
    figures = len(f"{max(listing.causes.values(), default=0):,}")
    for number, (cause, count) in enumerate(listing.causes.items()):
        if number == _CAUSES:
            yield Text(f"{'':{figures}}  and {counted(len(listing.causes) - _CAUSES, 'other cause')}")
            return
        lines = _flow(plain(cause, 2 * _ERROR).split(" "), width - figures - 2, " ", "")
        for first, line in enumerate(lines):
            figure = f"{count:,}" if first == 0 else ""
            yield Text(f"{figure:>{figures}}  {line}")


def _table(listing: Listing, *, show_ids: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("message", "transaction id", "state", "group", "topic", "key"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("checks", justify="right", no_wrap=True)
    table.add_column("next", overflow="fold")
    table.add_column("last error", overflow="fold")
    for message in listing.messages:
        # Text, not markup: groups, keys and errors come from outside.
        cells = [
            Text(message.coordinates),
            Text(message.transaction_id if show_ids else message.short_id),
            Text(message.state.value, style=_STYLE[message.state]),
            Text(message.group if message.barrier_id is None else f"{message.group} ({message.barrier_id[:8]})"),
            Text(message.real_topic),
            Text(plain(shown_key(message.key), _KEY)),
            Text(duration(max(listing.now - message.born, 0))),
            Text(str(message.checks)),
            Text(plain(next_step_of(message, listing.now), _ERROR)),
            Text(plain(trouble_of(message), _ERROR)),
        ]
        table.add_row(*cells)
    return table


def _blocks(screen: Console, listing: Listing, *, show_ids: bool) -> None:
    for message in listing.messages:
        lines = list(_block(message, listing.now, screen.width, show_ids=show_ids))
        first = Text(lines[0])
        first.stylize("bold", 0, len(message.coordinates))
        first.highlight_words([message.state.value], _STYLE[message.state])
        screen.print()
        for line in (first, *map(Text, lines[1:])):
            screen.print(line, soft_wrap=True)
    screen.print()


def _block(message: OpenMessage, now: int, width: int, *, show_ids: bool) -> Iterator[str]:
    what = [
        message.coordinates,
        message.transaction_id if show_ids else message.short_id,
        message.state.value,
        f"age {duration(max(now - message.born, 0))}",
        counted(message.checks, "check"),
        plain(next_step_of(message, now), _ERROR),
    ]
    where = [f"group {message.group}", f"topic {message.real_topic}"]
    if message.key is not None:
        where.append(f"key {plain(shown_key(message.key), _KEY)}")
    if message.barrier_id is not None:
        where.append(f"barrier {message.barrier_id}")
    yield from _flow(what, width, _GAP, _INDENT)
    for line in _flow(where, width - len(_INDENT), _GAP, ""):
        yield _INDENT + line
    for line in _flow(plain(trouble_of(message), 2 * _ERROR).split(" "), width - len(_INDENT), " ", ""):
        if line:
            yield _INDENT + line


def _flow(parts: Sequence[str], width: int, gap: str, indent: str) -> Iterator[str]:
    """Lines with as many parts as fit. A part that is too long for a line is cut into pieces."""
    line, room = "", max(width, 10)
    for part in parts:
        for piece in chop_cells(part, room - len(indent)) if cell_len(part) > room - len(indent) else [part]:
            if line.strip() and cell_len(line) + len(gap) + cell_len(piece) > room:
                yield line
                line = indent + piece
            else:
                line = f"{line}{gap}{piece}" if line.strip() else line + piece
    yield line
