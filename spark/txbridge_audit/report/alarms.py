"""The steps of an audit that follows: what each has found, and the violations that it raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.model import AuditReport

#: Raises the alarms of a step, given its number, before the step counts. Returns offsets below which no later one lies.
Raise = Callable[[int, Sequence[Entry]], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class AuditStep:
    """The result of a step."""

    #: About all records that this and earlier steps have read.
    report: AuditReport
    #: The violations that no earlier step has found.
    alarms: Sequence[Entry]
    #: Number of transactions that it judged: those not closed before, and those that new records name.
    carried: int
