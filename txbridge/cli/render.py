"""Output of open messages and answers: text for people, records for programs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from txbridge.cli.terminal import console
from txbridge.operations import Answer, OpenMessage, Result
from txbridge.subject import Subject
from txbridge.text import iso_time, plain

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
