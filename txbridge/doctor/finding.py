"""Findings of an examination, each one line with its remedy. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txbridge.subject import Subject


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    #: Worth knowing; nothing needs to be done.
    NOTE = "note"
    #: Nothing fails now, but something will, or is weaker than it should be.
    WARNING = "warning"
    #: Something does not work, or messages can be lost.
    PROBLEM = "problem"
    #: It could not be examined, so that nothing is known about it.
    UNKNOWN = "unknown"


class Check(Enum):
    """The parts of an examination, in this order."""

    CONNECTION = "connection"
    VERSIONS = "versions"
    TOPICS = "topics"
    RETENTION = "retention"
    REPLICATION = "replication"
    LIMITS = "limits"
    RIGHTS = "rights"
    WORKERS = "workers"
    PRODUCERS = "producers"
    BACKLOG = "backlog"
    TRANSACTIONS = "transactions"
    #: The front door for RocketMQ clients, only on request.
    DOOR = "door"
    #: An outbox and its relays, only on request.
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `do` is the remedy; empty when there is nothing to do."""

    check: Check
    level: Level
    text: str
    do: str = ""

    def as_record(self) -> dict[str, Any]:
        """The finding as JSON shows it."""
        return {"check": self.check.value, "level": self.level.value, "text": self.text, "do": self.do}


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one examination."""

    subject: Subject
    findings: Sequence[Finding]

    @property
    def complete(self) -> bool:
        """Whether everything could be examined."""
        return all(one.level is not Level.UNKNOWN for one in self.findings)

    @property
    def healthy(self) -> bool:
        """Whether no finding is a warning or a problem."""
        return all(one.level not in {Level.WARNING, Level.PROBLEM} for one in self.findings)


def ok(check: Check, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def note(check: Check, text: str, do: str = "") -> Finding:
    return Finding(check, Level.NOTE, text, do)


def warning(check: Check, text: str, do: str) -> Finding:
    return Finding(check, Level.WARNING, text, do)


def problem(check: Check, text: str, do: str) -> Finding:
    return Finding(check, Level.PROBLEM, text, do)


def unknown(check: Check, text: str, do: str) -> Finding:
    return Finding(check, Level.UNKNOWN, text, do)
