"""Check of protocol_rules.md: it has the verdict for each rule of docs/protocol.md, and leaves none out."""

from __future__ import annotations

import re
from pathlib import Path

from txbridge_audit.judge.lacking import REASONS, SAYS
from txbridge_audit.judge.table import FATES, FINDINGS, KINDS, NEEDING, NOTES, RULES, VIOLATIONS

DOCS = Path(__file__).parents[3] / "docs"
AUDIT = (DOCS / "audit.md").read_text(encoding="utf-8")
#: The rules of the page without the examples, which only repeat them.
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8").partition("## Examples")[0].partition("## Conventions")[2]
TABLE = (Path(__file__).parent / "protocol_rules.md").read_text(encoding="utf-8")
ROWS = [(row[0].replace(r"\|", "|"), row[1]) for row in re.findall(r"^\| `` (.+?) `` \| (.+) \|$", TABLE, re.MULTILINE)]


def flat(text: str) -> str:
    return " ".join(text.split())


def blocks() -> list[str]:
    """Paragraphs, list items and tables of the protocol."""
    found = []
    for part in re.split(r"\n\n+", PROTOCOL):
        items = re.split(r"\n(?=- )", part) if part.startswith("- ") else [part]
        found += [flat(item) for item in items if item.strip() and not item.startswith("#")]
    return found


def test_every_rule_of_the_protocol_has_a_verdict_or_a_reason_for_none() -> None:
    quotations = [flat(quotation) for quotation, _ in ROWS]
    assert len(quotations) > 60
    assert [block for block in blocks() if not any(quotation in block for quotation in quotations)] == []
    assert [quotation for quotation in quotations if not any(quotation in block for block in blocks())] == []
    assert all(verdict for _, verdict in ROWS)


def test_every_violation_covers_a_rule_and_every_name_in_the_table_is_a_verdict() -> None:
    named = {name for _, verdict in ROWS for name in re.findall(r"`([A-Z_]{4,})`", verdict)}
    assert set(VIOLATIONS) <= named
    refusals_that_change_nothing = {"NOT_DISCARDED", "NOT_HELD"}
    known = {*VIOLATIONS, *FINDINGS, *SAYS, *refusals_that_change_nothing, "REAL_QID"}
    assert named <= known


def test_every_reason_why_a_rule_cannot_judge_is_explained() -> None:
    reasons = AUDIT.partition("## What cannot be judged")[2].partition("\n## ")[0]
    assert set(REASONS.values()) <= set(SAYS)
    for reason in SAYS:
        assert f"`{reason}`" in reasons


def test_the_page_has_every_verdict_of_the_table_and_no_other() -> None:
    """A kind of verdict that somebody adds is explained, and one that goes leaves the page."""
    rows = re.findall(
        r"^\| (.+?) \| .+ \|$", AUDIT.partition("## Fates")[2].partition("## What cannot")[0], re.MULTILINE
    )
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told - {"decision_unread", "held", "in_commit", "moving", "resumed", "scheduled", "undecided"} == set(KINDS)
    notes = re.search(r"all findings except (.+?) are errors", flat(AUDIT))
    assert notes is not None
    assert set(re.findall(r"`(\w+)`", notes[1])) == NOTES


def test_every_rule_that_concludes_from_something_missing_says_why_it_may() -> None:
    assert {rule.kind.name for rule in RULES} == {
        *FATES,
        *VIOLATIONS,
        *(name for name in FINDINGS if name in _OF_ROWS),
    } - {"PHANTOM"}
    assert all(rule.says for rule in RULES)
    # Without evidence a violation is not judged: each of these rules looks for something that may be gone.
    needing = {name for name, _ in NEEDING}
    assert {rule.kind.name for rule in RULES if rule.kind.name in needing and not rule.sound} == set()
    assert all(KINDS[name].means for name in KINDS)
    assert all(KINDS[name].do for name in VIOLATIONS)


_OF_ROWS = {rule.kind.name for rule in RULES}
