"""The result of an audit, or a step of one, as plain data: its JSON form with stable keys (docs/audit.md), and words.

The words are what all forms for people say about it: advice, and a link to each rule.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txbridge.masking import masked_values
from txbridge.subject import Subject
from txbridge.text import counted, iso_time
from txbridge_audit.judge import fates
from txbridge_audit.judge.facts import AuditLimits, AuditSelection, TopicPartition
from txbridge_audit.judge.findings import BLIND
from txbridge_audit.judge.table import NOTES
from txbridge_audit.report.entries import Entry, Tally
from txbridge_audit.report.overview import AuditOverview

#: Version of the JSON form: raised when a key changes its meaning or goes.
FORMAT = 1

CLEAN, VIOLATED = 0, 1
#: Raises the alarms of a step, given its number, before the step counts. Returns offsets below which no later one lies.
Raise = Callable[[int, Sequence[Entry]], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The fates of all transactions that HALF still holds, with violations and findings."""

    namespace: str
    #: Valid half messages up to the cut; the sum of `fates`.
    transactions: int
    fates: Mapping[str, int]
    pending_states: Mapping[str, int]
    violations: Tally
    findings: Tally
    #: Transactions of any fate with more than one visible copy in their real topic.
    delivered_more_than_once: int
    #: Transactions of any fate that were rolled back and have a visible copy.
    rolled_back_but_visible: int
    #: Transactions whose winning decision came in answer to a check.
    answered_by_check: int
    #: Topic, then partition: `start` and `end` offsets read; `before` is the earlier cut of a real topic,
    #: `target` the high watermark that an open Kafka transaction kept it from reaching.
    cuts: Mapping[str, Mapping[str, Mapping[str, int]]]
    #: Milliseconds since 1970-01-01 UTC.
    started_at: int
    seconds: float
    #: Messages of abandoned and cancelled transactions that were delivered before, at their own times.
    delivered_before_given_up: int = 0
    #: Rows of relays by what became of them (judge/relays.py).
    rows: Mapping[str, int] = field(default_factory=dict)
    #: By violation and reason (judge/lacking.py): number of transactions that could not be judged, because evidence is
    #: gone. For PHANTOM and ALTERED it counts visible records, for EXPIRED the offsets that HALF has lost.
    unjudged: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    selection: AuditSelection = field(default_factory=AuditSelection)
    #: Summaries for the page; None unless they were asked for. Not in the JSON form.
    overview: AuditOverview | None = None
    #: The cluster that was audited.
    bootstrap_servers: str = ""
    cluster_id: str = ""
    #: What made the report: version of txbridge and name of the engine. The workers' settings that it assumed.
    version: str = ""
    engine: str = ""
    limits: AuditLimits = field(default_factory=AuditLimits)
    #: When the topics were read, ms: later than `started_at` if an earlier audit is made again at its cuts.
    read_at: int = 0
    #: Kafka's ids of the topics that were read.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    #: Whether the cuts are those of the last step of a continued audit alone.
    continued: bool = False
    #: Of an audit that is made again: by topic/partition, the number of offsets that retention has removed since.
    lost_since: Mapping[str, int] = field(default_factory=dict)
    #: Ids of acceptances that no violation of this audit matches.
    stale_acceptances: tuple[str, ...] = ()

    @property
    def subject(self) -> Subject:
        """The cluster and the namespace of the report."""
        return Subject(self.namespace, self.bootstrap_servers, self.cluster_id)

    @property
    def scope(self) -> str:
        """What was audited, in words."""
        rows = sum(self.rows.values())
        return counted(self.transactions, "transaction") + (f" and {counted(rows, 'row')} of relays" if rows else "")

    @property
    def clean(self) -> bool:
        """Whether there is no violation, and no rule that could judge nothing: without evidence no audit is clean."""
        return self.violations.total == 0 and not self.findings.by_kind.get(BLIND.name)

    @property
    def to_act_on(self) -> int:
        """Number of findings that `--strict` counts as errors: all but NOTES."""
        return sum(count for kind, count in self.findings.by_kind.items() if kind not in NOTES)

    @property
    def exit_code(self) -> int:
        """0 clean, or all violations are accepted; 1 violations, or rules that could judge nothing."""
        return VIOLATED if self.unaccepted or self.findings.by_kind.get(BLIND.name) else CLEAN

    @property
    def unaccepted(self) -> int:
        """Number of violations that nobody has accepted, or only until a day that is over."""
        return self.violations.total - sum(self.violations.accepted.values())

    @property
    def strict_exit_code(self) -> int:
        """0 clean, 1 violations or findings to act on."""
        return VIOLATED if self.to_act_on else self.exit_code

    @property
    def delivered(self) -> int:
        """Transactions that were committed and delivered exactly once."""
        return self.fates["delivered"]

    @property
    def rolled_back(self) -> int:
        return self.fates["rolled_back"]

    @property
    def pending(self) -> int:
        return self.fates["pending"]

    @property
    def discarded(self) -> int:
        return self.fates["discarded"]

    @property
    def abandoned(self) -> int:
        """Transactions that were committed, and given up by an operator before they were delivered."""
        return self.fates["abandoned"]

    @property
    def unverifiable(self) -> int:
        return self.fates["unverifiable"]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form as a dictionary."""
        return {
            "format": FORMAT,
            "clean": self.clean,
            **self.subject.as_record(),
            **{name: getattr(self, name) for name in _AS_IT_IS},
            "cancelled": self.fates["cancelled"],
            "violations": _tally(self.violations),
            "findings": _tally(self.findings),
            "findings_to_act_on": self.to_act_on,
            "selection": self.selection.to_dict(),
            "seconds": round(self.seconds, 3),
            "limits": dataclasses.asdict(self.limits),
            "accepted": dict(self.violations.accepted),
            "stale_acceptances": list(self.stale_acceptances),
        }

    def to_json(self) -> str:
        return json.dumps(masked_values(self.to_dict()), indent=2)


#: Fields and properties of the report that are so in its JSON form.
_AS_IT_IS = (
    *("transactions", "fates", "delivered", "delivered_more_than_once", "rolled_back", "rolled_back_but_visible"),
    *("answered_by_check", "pending", "pending_states", "discarded", "abandoned", "delivered_before_given_up"),
    *("unverifiable", "rows", "unjudged", "cuts", "started_at", "version", "engine", "read_at", "topic_ids"),
    *("continued", "lost_since"),
)


def _tally(tally: Tally) -> dict[str, Any]:
    listed = [{"id": entry.id, **dataclasses.asdict(entry)} for entry in tally.listed]
    return {"total": tally.total, "by_kind": dict(tally.by_kind), "listed": listed}


@dataclass(frozen=True, slots=True)
class AuditStep:
    """The result of a step of an audit that follows."""

    #: About all records that this and earlier steps have read.
    report: AuditReport
    #: The violations that no earlier step has found.
    alarms: Sequence[Entry]


# For people

#: Every verdict has an anchor there, its name in lower case.
DOCS = "https://github.com/txbridge/txbridge/blob/main/docs/audit.md"


def rule_of(kind: str) -> str:
    """Link to the rule of a verdict or finding."""
    return f"{DOCS}#{kind.lower()}"


def advice(report: AuditReport) -> list[str]:
    """Advice about transactions that are no violation, and not finished either."""
    told = []
    if report.read_at > report.started_at:
        told.append(
            f"At the cuts of {readable_time(report.started_at)}, read again at {readable_time(report.read_at)}."
        )
    if report.lost_since:
        where = ", ".join(f"{number:,} of {place}" for place, number in report.lost_since.items())
        told.append(f"Retention has removed offsets since that audit: {where}. What they held is not judged.")
    if report.unverifiable:
        told.append(
            f"{report.unverifiable:,} unverifiable: retention or compaction has removed what would tell. Audit more "
            "often than records expire (--continue), or keep END, OP and the real topics longer."
        )
    if report.delivered_before_given_up:
        told.append(
            f"{report.delivered_before_given_up:,} messages of cancelled or abandoned transactions were delivered "
            "before, at their own times."
        )
    if report.pending_states.get(fates.HELD):
        told.append(
            f"{report.pending_states[fates.HELD]:,} held: decided, and the real topic cannot be written. "
            "`txbridge pending` says why. Create the topic or give the right, or give them up with "
            "`txbridge resolve ... abandon`."
        )
    return told


def some_of_each(tally: Tally, number: int) -> list[tuple[str, list[Entry]]]:
    """The kinds that have entries, with the first entries of each."""
    by_kind = itertools.groupby(tally.listed, key=lambda entry: entry.kind)
    return [(kind, list(itertools.islice(entries, number))) for kind, entries in by_kind]


def accepted(report: AuditReport) -> str:
    """How many of the violations are accepted, to be written behind their number."""
    number = report.violations.total - report.unaccepted
    if not number:
        return ""
    return ", all accepted" if not report.unaccepted else f" ({number:,} accepted)"


def readable_time(ms: int) -> str:
    """A time in UTC, with a space between the day and the hour."""
    return iso_time(ms).replace("T", " ")
