"""The table of rules: every verdict that the audit knows, and everything that follows from the list of them.

A new violation is an entry in `violations.py`, a row each in docs/audit.md and protocol_rules.md, and its cases. The
tests name what is missing, also the evidence that its rule needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from txbridge_audit.judge import fates, findings, violations
from txbridge_audit.judge.rule import Rule, Sort, VerdictKind

#: All rules. A transaction has the fate of the first rule of a fate that holds, and may break all the others.
RULES: tuple[Rule, ...] = (*fates.RULES, *violations.RULES, *findings.RULES)

KINDS: Mapping[str, VerdictKind] = {kind.name: kind for kind in (*fates.KINDS, *violations.KINDS, *findings.KINDS)}

FATES = tuple(kind.name for kind in fates.KINDS)
#: Fates that break a promise.
WRONG_FATES = tuple(kind.name for kind in fates.KINDS if kind.is_violation)
#: Violations, in the order in which they are counted and shown.
VIOLATIONS = tuple(name for name, kind in KINDS.items() if kind.is_violation)
FINDINGS = tuple(kind.name for kind in findings.KINDS)
#: Findings that need no action.
NOTES = frozenset(name for name, kind in KINDS.items() if kind.sort is Sort.NOTE)
#: Kinds that lack evidence when a topic has lost records.
NEEDING = tuple((name, kind.needs) for name, kind in KINDS.items() if kind.needs is not None)
#: What a violation or finding beside the fate says.
SAYS: Mapping[str, str] = {rule.kind.name: rule.says for rule in (*violations.RULES, *findings.RULES)}
