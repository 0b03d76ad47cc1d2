"""Every event that the code logs is in the documentation with its level, and vice versa."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.source import ROOT, calls_in
from txbridge.backoff import EVENTS

LEVELS = {"debug", "info", "warning", "error"}


def text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def logged_by_the_worker() -> dict[str, str]:
    """Events and levels. Owner and committer have methods that log an event from an argument."""
    found: dict[str, str] = {}
    for _, call in calls_in("txbridge/worker", "txbridge/kafka"):
        match call.func:
            case ast.Attribute(value=ast.Name("_log"), attr=level) if level in LEVELS:
                if (event := text(call.args[0])) is not None:
                    found[event] = level
            case ast.Attribute(value=ast.Name("self"), attr="_report_failure") if len(call.args) > 1:
                warn = any(keyword.arg == "warn" for keyword in call.keywords)
                if (event := text(call.args[0])) is not None:
                    found[event] = "warning" if warn else "error"
            case ast.Attribute(value=ast.Name("self"), attr="_on_aborted"):
                found[text(call.args[1]) or ""] = "warning"
            case ast.Attribute(value=ast.Name("self"), attr="_back_off"):
                if (event := text(call.args[0])) is not None:
                    found[event] = "warning"
    for away, there in EVENTS.values():
        found |= {away: "warning", there: "info"}
    return found


def logged_by_the_client() -> dict[str, str]:
    """Events and levels. `note_trouble` of the connection logs its argument."""
    found: dict[str, str] = {}
    for _, call in calls_in("txbridge/client", "connectors"):
        match call.func, call.args:
            case ast.Name("report"), [ast.Attribute(value=ast.Name("logging"), attr=level), event, *_]:
                if (name := text(event)) is not None:
                    found[name] = level.lower()
            case ast.Attribute(attr="note_trouble"), [_, event]:
                if (name := text(event)) is not None:
                    found[name] = "error"
    return found


def documented(page: str, heading: str) -> dict[str, str]:
    """The rows of a table of events. One row may name several, with one level or one for each."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for names, levels in re.findall(r"^\| (`[^|]+`) \| ([a-z, ]+) \|", section, re.MULTILINE):
        events, each = re.findall(r"`(\w+)`", names), levels.strip().split(", ")
        assert len(each) in {1, len(events)}, names
        found |= dict(zip(events, each * len(events) if len(each) == 1 else each, strict=True))
    return found


def test_the_events_of_the_worker():
    assert documented("logs.md", "Log events") == logged_by_the_worker()


def test_the_events_of_the_client():
    assert documented("client.md", "Log lines") == logged_by_the_client()


@pytest.mark.parametrize("events", [logged_by_the_worker(), logged_by_the_client()], ids=["worker", "client"])
def test_event_names_are_words_that_can_be_searched_for(events: dict[str, str]):
    assert len(events) > 10
    assert [event for event in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []
