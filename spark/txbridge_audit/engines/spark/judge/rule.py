"""The form of the rules for fates, violations and findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column


@dataclass(frozen=True, slots=True)
class JudgeRule:
    """A fate or a kind of violation or finding, its text, and its condition on rows of the ledger (null: not)."""

    kind: str
    says: str
    holds: Callable[[], Column]
