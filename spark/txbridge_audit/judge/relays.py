"""The rows of relays: each is visible once, as the progress of its outbox names it.

Each batch of rows is one Kafka transaction, with the record of the progress that names them. So the cuts that suit OP
suit the progress, too:

- PHANTOM, "visible, but no progress names it", is sound below the earlier cut of the real topics: OUTBOX is cut later,
  and settled.
- LOST, "named, but not visible", is sound at the later cut, which is settled. One relay at a time writes the batches of
  an outbox, one after the other. So its rows lie in a real partition in the order of the batches. Older rows that are
  still there prove that neither retention nor a deleted topic is the reason, as for transactions (evidence.py).

A record whose batch the progress no longer holds is not judged. It may be that of another namespace, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from txbridge_audit.judge.case import Case
from txbridge_audit.judge.fates import DELIVERED, DUPLICATED, LOST, PENDING, UNVERIFIABLE
from txbridge_audit.judge.findings import FOREIGN_COPY, NOT_IN_TOPIC
from txbridge_audit.judge.lacking import OPEN, OUTBOX_GONE, REAL_TOPIC, REASONS
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.protocol.mentions import NamedMention

#: What becomes of a row, in the order in which they are counted and shown.
STATES = tuple(kind.name for kind in (DELIVERED, PENDING, UNVERIFIABLE, LOST, DUPLICATED, PHANTOM))


#: Violations and findings; by kind of violation the reason why it was not judged; and what became of the row: None for
#: one that is only about real topics that are not read. See Verdict.
RowJudgement = tuple[tuple[str, ...], tuple[str, ...], Mapping[str, str], str | None]


def judge_row(case: Case) -> RowJudgement:
    """Judge the records with one row's number."""
    chosen, facts, rows = case.facts.only_topics, case.facts, case.transaction.rows
    named = [one for one in case.transaction.named if not chosen or one.topic in chosen]
    if not named and not rows:
        return (), (), {}, None
    names = {(one.batch, one.topic) for one in named}
    if len(rows) == 1 and names == {(rows[0].batch, rows[0].topic)}:
        return (), (), {}, DELIVERED.name
    batches = {one.batch for one in case.transaction.named}
    moved = [row for row in rows if row.batch in batches and (row.batch, row.topic) not in names]
    numbering = facts.relays.get(case.transaction.partition)
    unnamed = [row for row in rows if row.batch not in batches]
    known = [row for row in unnamed if numbering is not None and row.batch >= numbering.first]
    phantoms = [row for row in known if case.is_before(row) and facts.are_relays_settled]
    there = Counter((row.id, row.topic) for row in rows if row not in moved)
    visible = {topic for _, topic in there}
    why = [_why_missing(case, one) for one in named if one.topic not in visible]
    breaches = {DUPLICATED.name: max(there.values(), default=0) > 1, PHANTOM.name: bool(phantoms), LOST.name: "" in why}
    findings = {FOREIGN_COPY.name: bool(moved), NOT_IN_TOPIC.name: NOT_IN_TOPIC.name in why}
    lacking = [(LOST.name, REAL_TOPIC if one == NOT_IN_TOPIC.name else one) for one in why if one]
    if len(known) < len(unnamed):
        lacking.append((PHANTOM.name, OUTBOX_GONE))
    violations = tuple(kind for kind, holds in breaches.items() if holds)
    if violations:
        state = violations[0]
    elif len(phantoms) < len(known) or REASONS[OPEN] in why:
        state = PENDING.name
    else:
        state = UNVERIFIABLE.name if lacking else DELIVERED.name
    return violations, tuple(kind for kind, holds in findings.items() if holds), dict(lacking), state


def _why_missing(case: Case, named: NamedMention) -> str:
    """The reason why a row that is not visible may not be lost; empty if it is lost."""
    topic = case.facts.topic(named.topic)
    if topic is None or topic.compacted:
        return REAL_TOPIC
    if not topic.settled:
        return REASONS[OPEN]
    proof = case.facts.proofs.get((named.partition, named.topic))
    if proof is not None and named.batch > proof.op:
        return ""
    return REAL_TOPIC if topic.truncated else NOT_IN_TOPIC.name
