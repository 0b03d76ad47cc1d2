"""The form of an entry in the table of rules (table.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from txbridge_audit.judge.case import Case


class Sort(StrEnum):
    """What a verdict of a kind is."""

    #: What became of a transaction. Each has exactly one.
    FATE = "fate"
    #: A fate that breaks a promise: it is a violation, too.
    WRONG_FATE = "wrong fate"
    #: A violation beside the fate.
    VIOLATION = "violation"
    #: No violation, and to be looked at: `--strict` counts it as an error.
    FINDING = "finding"
    #: A finding that needs no action. It comes from other users' records, or from retention.
    NOTE = "note"


#: What a rule needs to judge a transaction whose fate is known: evidence (bits of lacking.py), or the reason why it
#: cannot judge it in any case. None if the transaction cannot break the rule. That must follow from records that are
#: there: what a record that is gone could change is evidence that is needed.
Needs = Callable[[Case], int | str | None]


def if_lacking(case: Case, bits: int) -> int | None:
    """The evidence if any of it is gone. With all of it, the transaction cannot break the rule."""
    return bits if case.missing_evidence & bits else None


@dataclass(frozen=True, slots=True)
class VerdictKind:
    """A kind of verdict."""

    name: str
    sort: Sort
    #: In a few words, for people.
    means: str
    #: What a person does about it; empty where nothing is to be done.
    do: str = ""
    #: The evidence without which a violation is not judged; None for one that needs nothing but its own records.
    needs: Needs | None = None

    @property
    def is_violation(self) -> bool:
        return self.sort in {Sort.WRONG_FATE, Sort.VIOLATION}

    @property
    def remedy(self) -> str:
        """What a person does about it, as a sentence."""
        return f"{self.do[0].upper()}{self.do[1:]}." if self.do else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition under which a verdict of a kind holds. A kind may have several."""

    kind: VerdictKind
    #: What it found, in a sentence.
    says: str
    #: Whether it holds for a transaction.
    holds: Callable[[Case], bool]
    #: The cut that makes it sound, and why. Empty where a rule concludes from nothing that is missing.
    sound: str = ""
