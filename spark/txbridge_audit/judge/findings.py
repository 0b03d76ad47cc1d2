"""Findings: refusals that worked, odd records, missing traces. They break no promise."""

from __future__ import annotations

from collections.abc import Callable

from txbridge_audit.judge import fates, violations
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.lacking import DECISIONS, OP, PARKED, WINNER
from txbridge_audit.judge.rule import Rule, Sort, VerdictKind
from txbridge_audit.protocol.mentions import COMMIT

# Conditions


def _is_nowhere(case: Case) -> bool:
    """Whether no half message is at coordinates in the range that was read."""
    return case.half is None and (case.transaction.half or 0) >= case.about.half_start


def _is_unrecorded(case: Case) -> bool:
    return (
        case.is_seen_unrecorded
        and case.is_decided(COMMIT)
        and not case.is_recorded
        and case.about.op_settled
        and case.has_all(WINNER | OP | PARKED)
        and not violations.is_passed_without_trace(case)
    )


def _is_discarded_twice(case: Case) -> bool:
    if case.message is None or len(case.discards) < 2:
        return False
    return case.resumed_at is None or (bool(case.discard_ends) and case.resumed_at < case.discard_ends[0])


def _is_miscounted(case: Case) -> bool:
    # The number in parked entries only rises, and the record of the abandon repeats the last one.
    told = [discard.delivered for discard in case.transaction.discards if discard.is_abandon]
    return any(parked.delivered > min(told, default=parked.delivered) for parked in case.transaction.parked)


def _is_not_in_topic(case: Case) -> bool:
    if case.fate != fates.UNVERIFIABLE.name or not case.is_named("commit"):
        return False
    return any(case.may_prove(message, whole=True) for message in case.gaps)


# Entries, in the order in which they are counted and shown

_RULES: list[Rule] = []
_KINDS: list[VerdictKind] = []


def _finding(
    name: str,
    means: str,
    do: str = "",
    *,
    holds: Callable[[Case], bool] | None = None,
    sound: str = "",
    sort: Sort = Sort.FINDING,
) -> VerdictKind:
    """A finding with its rule, if it comes from a transaction."""
    kind = VerdictKind(name, sort, means, do)
    _KINDS.append(kind)
    if holds is not None:
        _RULES.append(Rule(kind, means, holds, sound))
    return kind


CONTRADICTION = _finding(
    "CONTRADICTION",
    "a later decision said the opposite and was refused",
    holds=lambda case: case.contrary is not None and case.fate not in {None, fates.WRONG_WINNER.name},
)
REPEAT = _finding(
    "REPEAT",
    "the same decision was sent again and refused",
    holds=lambda case: len(case.decisions) - (case.contrary is not None) > 1,
)
LATE = _finding("LATE", "decided after it had been discarded, and refused", holds=lambda case: bool(case.late))
WRONG_TRANSACTION_ID = _finding(
    "WRONG_TRANSACTION_ID", "an END named it with another transaction id", holds=lambda case: bool(case.wrong_ids)
)
WRONG_GROUP = _finding(
    "WRONG_GROUP", "an END of another producer group named it", holds=lambda case: bool(case.wrong_groups)
)
NO_HALF_MESSAGE = _finding(
    "NO_HALF_MESSAGE",
    "an END names coordinates where no half message is",
    holds=lambda case: bool(case.transaction.ends) and _is_nowhere(case),
    sound="HALF is cut after END, and a half message is acknowledged before an END can name it.",
)
OUTCOME_WITHOUT_HALF = _finding(
    "OUTCOME_WITHOUT_HALF",
    "OP names coordinates where no half message is",
    holds=lambda case: case.is_recorded and not case.transaction.ends and _is_nowhere(case),
    sound="HALF is cut after OP.",
)
OUTCOME_WITHOUT_DECISION = _finding(
    "OUTCOME_WITHOUT_DECISION",
    "OP names an outcome that nobody decided",
    holds=lambda case: (
        case.message is not None
        and case.winner is None
        and case.has_all(DECISIONS)
        and any(map(case.is_named, ("commit", "rollback", "abandon")))
    ),
    sound="END is cut after OP.",
)
UNRECORDED = _finding(
    "UNRECORDED",
    "visible, but neither OP nor a parked entry says so, and the checkpoint has not passed its decision",
    holds=_is_unrecorded,
    sound="OP is cut after the earlier cut of the real topics, and is settled.",
)
DISCARDED_TWICE = _finding(
    "DISCARDED_TWICE", "more than one discard record, with no resume between", holds=_is_discarded_twice
)
MISCOUNTED = _finding(
    "MISCOUNTED",
    "given up after more messages were delivered than the record of the abandon says",
    holds=_is_miscounted,
)
NOT_IN_TOPIC = _finding(
    "NOT_IN_TOPIC",
    "recorded as committed and not visible, nor is any older one: was the real topic deleted and created again?",
    holds=_is_not_in_topic,
    sound="Not where compaction or retention may be the reason. A topic that was deleted and created again leaves no "
    "trace.",
)
HELD_LONG = _finding(
    "HELD_LONG",
    "committed hours ago, its real topic is there, and it is not delivered: `txbridge pending` says why",
    holds=lambda case: case.pending_state == fates.HELD and case.is_held_long,
)
BY_HAND = _finding(
    "BY_HAND",
    "an operator decided, resumed or abandoned it, or tried to",
    holds=lambda case: bool(case.by_hand),
    sort=Sort.NOTE,
)
FOREIGN_COPY = _finding(
    "FOREIGN_COPY",
    "somebody forwarded the delivered record to another topic",
    holds=lambda case: bool(case.foreign),
    sort=Sort.NOTE,
)

# Those that do not come from a transaction
BATCH_OUT_OF_TURN = _finding(
    "BATCH_OUT_OF_TURN", "the progress of a relay leaves out a batch, or has one twice: it may have lost records"
)
MALFORMED = _finding("MALFORMED", "a record of HALF, END or OUTBOX that is not ours or breaks a rule; it has no effect")
COPY = _finding("COPY", "a half message that its producer has sent twice; the first one counts")
OTHER_NAMESPACE = _finding(
    "OTHER_NAMESPACE", "a visible record that belongs to a half message of another namespace", sort=Sort.NOTE
)
HALF_GONE = _finding("HALF_GONE", "a visible record whose half message retention has removed", sort=Sort.NOTE)
HALF_GONE_ELSEWHERE = _finding(
    "HALF_GONE_ELSEWHERE",
    "a visible record that claims a half message which retention may have removed from another namespace; nothing "
    "there proves that it existed",
)
UNREADABLE_OP = _finding("UNREADABLE_OP", "a record of OP that cannot be read")
OPEN_TRANSACTION = _finding("OPEN_TRANSACTION", "a Kafka transaction stayed open; what it may hide is not judged")
HALF_RANGE_GONE = _finding(
    "HALF_RANGE_GONE", "retention removed half messages that the checkpoint had not passed; their fates are not known"
)
RIGHT_MISSING = _finding("RIGHT_MISSING", "a right on a real topic is missing, so that no loss can be proved there")
LEFT_OUT = _finding("LEFT_OUT", "transactions to several topics, of which --only-topic names some: they are not judged")
BLIND = _finding("BLIND", "a rule could judge nothing at all, or a visible record cannot be read")

RULES, KINDS = tuple(_RULES), tuple(_KINDS)
