"""Findings: refusals that worked, odd records, missing traces. They break no promise."""

from __future__ import annotations

from txbridge_audit.judge import fates, violations
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.rule import Rule, Sort, VerdictKind
from txbridge_audit.protocol.mentions import COMMIT


def _kind(name: str, means: str, do: str = "", sort: Sort = Sort.FINDING) -> VerdictKind:
    return VerdictKind(name, sort, means, do)


CONTRADICTION = _kind("CONTRADICTION", "a later decision said the opposite and was refused")
REPEAT = _kind("REPEAT", "the same decision was sent again and refused")
LATE = _kind("LATE", "decided after it had been discarded, and refused")
WRONG_TRANSACTION_ID = _kind("WRONG_TRANSACTION_ID", "an END named it with another transaction id")
WRONG_GROUP = _kind("WRONG_GROUP", "an END of another producer group named it")
NO_HALF_MESSAGE = _kind("NO_HALF_MESSAGE", "an END names coordinates where no half message is")
OUTCOME_WITHOUT_HALF = _kind("OUTCOME_WITHOUT_HALF", "OP names coordinates where no half message is")
OUTCOME_WITHOUT_DECISION = _kind("OUTCOME_WITHOUT_DECISION", "OP names an outcome that nobody decided")
UNRECORDED = _kind("UNRECORDED", "visible, but OP does not name it, and the checkpoint has not passed its decision")
DISCARDED_TWICE = _kind("DISCARDED_TWICE", "more than one discard record, with no resume between")
NOT_IN_TOPIC = _kind(
    "NOT_IN_TOPIC",
    "recorded as committed and not visible, nor is any older one: was the real topic deleted and created again?",
)
HELD_LONG = _kind(
    "HELD_LONG", "committed hours ago, its real topic is there, and it is not delivered: `txbridge pending` says why"
)
BY_HAND = _kind("BY_HAND", "an operator decided, resumed or abandoned it, or tried to", sort=Sort.NOTE)
FOREIGN_COPY = _kind("FOREIGN_COPY", "somebody forwarded the delivered record to another topic", sort=Sort.NOTE)

# Findings that do not come from a transaction.
MALFORMED = _kind("MALFORMED", "a record of HALF or END that is not ours or breaks a rule; it has no effect")
COPY = _kind("COPY", "a half message that its producer has sent twice; the first one counts")
OTHER_NAMESPACE = _kind(
    "OTHER_NAMESPACE", "a visible record that belongs to a half message of another namespace", sort=Sort.NOTE
)
HALF_GONE = _kind("HALF_GONE", "a visible record whose half message retention has removed", sort=Sort.NOTE)
HALF_GONE_ELSEWHERE = _kind(
    "HALF_GONE_ELSEWHERE",
    "a visible record that claims a half message which retention may have removed from another namespace; nothing "
    "there proves that it existed",
)
UNREADABLE_OP = _kind("UNREADABLE_OP", "a record of OP that cannot be read")
OPEN_TRANSACTION = _kind("OPEN_TRANSACTION", "a Kafka transaction stayed open; what it may hide is not judged")
HALF_RANGE_GONE = _kind(
    "HALF_RANGE_GONE",
    "retention removed half messages that the checkpoint had not passed; their fates are not known",
)
RIGHT_MISSING = _kind("RIGHT_MISSING", "a right on a real topic is missing, so that no loss can be proved there")
BLIND = _kind("BLIND", "a rule could judge nothing at all: its evidence was deleted")


def _is_nowhere(case: Case) -> bool:
    """Whether no half message is at coordinates in the range that was read."""
    return not case.is_present and (case.transaction.half or 0) >= case.about.half_start


def _is_unrecorded(case: Case) -> bool:
    return (
        case.message is not None
        and case.is_visible_before
        and case.is_decided(COMMIT)
        and not case.is_recorded
        and case.parked is None
        and case.about.op_settled
        and case.is_history_known
        and case.are_parked_known
        and not violations.is_passed_without_trace(case)
    )


def _is_discarded_twice(case: Case) -> bool:
    if case.message is None or len(case.discards) < 2:
        return False
    return case.resumed_at is None or (bool(case.discard_ends) and case.resumed_at < case.discard_ends[0])


def _is_not_in_topic(case: Case) -> bool:
    if case.fate != fates.UNVERIFIABLE.name or not case.is_named("commit"):
        return False
    return bool(case.may_prove(whole=True))


RULES: tuple[Rule, ...] = (
    Rule(
        CONTRADICTION,
        CONTRADICTION.means,
        lambda case: case.contrary is not None and case.fate not in {None, fates.WRONG_WINNER.name},
    ),
    Rule(
        REPEAT,
        REPEAT.means,
        lambda case: len(case.decisions) - (case.contrary is not None) > 1,
    ),
    Rule(LATE, LATE.means, lambda case: bool(case.late)),
    Rule(WRONG_TRANSACTION_ID, WRONG_TRANSACTION_ID.means, lambda case: bool(case.wrong_ids)),
    Rule(WRONG_GROUP, WRONG_GROUP.means, lambda case: bool(case.wrong_groups)),
    Rule(
        NO_HALF_MESSAGE,
        NO_HALF_MESSAGE.means,
        lambda case: bool(case.transaction.ends) and _is_nowhere(case),
        "HALF is cut after END, and a half message is acknowledged before an END can name it.",
    ),
    Rule(
        OUTCOME_WITHOUT_HALF,
        OUTCOME_WITHOUT_HALF.means,
        lambda case: case.is_recorded and not case.transaction.ends and _is_nowhere(case),
        "HALF is cut after OP.",
    ),
    Rule(
        OUTCOME_WITHOUT_DECISION,
        OUTCOME_WITHOUT_DECISION.means,
        lambda case: (
            case.message is not None
            and case.winner is None
            and case.are_ends_known
            and any(map(case.is_named, ("commit", "rollback", "abandon")))
        ),
        "END is cut after OP.",
    ),
    Rule(
        UNRECORDED,
        UNRECORDED.means,
        _is_unrecorded,
        "OP is cut after the earlier cut of the real topics, and is settled.",
    ),
    Rule(DISCARDED_TWICE, DISCARDED_TWICE.means, _is_discarded_twice),
    Rule(
        NOT_IN_TOPIC,
        NOT_IN_TOPIC.means,
        _is_not_in_topic,
        "Not where compaction or retention may be the reason. A topic that was deleted and created again leaves no "
        "trace.",
    ),
    Rule(
        HELD_LONG,
        HELD_LONG.means,
        lambda case: case.pending_state == fates.HELD and case.is_held_long,
    ),
    Rule(BY_HAND, BY_HAND.means, lambda case: bool(case.by_hand)),
    Rule(FOREIGN_COPY, FOREIGN_COPY.means, lambda case: bool(case.foreign)),
)

#: All of them, in the order in which they are counted and shown.
KINDS = (
    *(rule.kind for rule in RULES),
    *(MALFORMED, COPY, OTHER_NAMESPACE, HALF_GONE, HALF_GONE_ELSEWHERE, UNREADABLE_OP, OPEN_TRANSACTION),
    *(HALF_RANGE_GONE, RIGHT_MISSING, BLIND),
)
