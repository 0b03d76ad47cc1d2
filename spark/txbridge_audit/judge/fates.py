"""The fate of each transaction: the first rule that holds. Each rule says which cut makes it sound.

The order of the cuts is: real topics (`before`), OFFSET, OP, discard, END, HALF, real topics again. A rule may
conclude from a *missing* record only if that record would have been written before the cut that was searched.
"""

from __future__ import annotations

from txbridge_audit.judge.case import Case
from txbridge_audit.judge.lacking import ABANDON, CHECKPOINT, DECISIONS, OP, OPEN, PARKED, REAL_TOPIC, REASONS, WINNER
from txbridge_audit.judge.rule import Rule, Sort, VerdictKind
from txbridge_audit.protocol.mentions import COMMIT, ROLLBACK

#: States of a pending transaction, in the order in which they are tested.
HELD, SCHEDULED, IN_COMMIT, MOVING, UNREAD = "held", "scheduled", "in_commit", "moving", "decision_unread"
RESUMED, UNDECIDED = "resumed", "undecided"
PENDING_STATES = (HELD, SCHEDULED, IN_COMMIT, MOVING, UNREAD, RESUMED, UNDECIDED)


# Evidence


def _lost_needs(case: Case) -> int | str | None:
    # END tells whether somebody had given it up, and whether there was a commit.
    if case.fate in {"abandoned", "cancelled"}:
        return WINNER
    if case.is_visible and not (case.fate == "unverifiable" and case.is_named("commit")):
        return None
    if case.fate == "LOST":
        return 0
    if case.fate == "unverifiable" and case.is_named("commit"):
        return _proof_needs(case)
    if case.pending_state == IN_COMMIT:
        return REASONS[OPEN]
    # A held one is waiting, perhaps for the rest of its messages.
    if case.pending_state in {HELD, SCHEDULED}:
        return _proof_needs(case) if case.gaps else 0
    if case.is_decided(COMMIT):
        return WINNER | OP | PARKED | CHECKPOINT | OPEN
    # Without a commit it is lost if OP names it as abandoned or committed, whatever else OP names.
    return WINNER | OP


def _proof_needs(case: Case) -> int | str:
    """What tells which messages wait for their time, and proves the loss of the others."""
    # A commit in OP is proof enough where all messages have the same time.
    needed = 0 if case.is_named("commit") and not case.is_stepwise else WINNER | OP | PARKED | OPEN
    return REAL_TOPIC if case.gaps and not case.missing_evidence & needed else needed


def _partial_needs(case: Case) -> int | str | None:
    if not (case.is_several and case.is_visible):
        return None
    if case.fate == "PARTIAL" or not case.unseen:
        return 0
    if case.pending_state != IN_COMMIT and (case.gaps or case.is_stepwise):
        return _proof_needs(case)
    return OP | OPEN


def _leaked_needs(case: Case) -> int | None:
    if not case.is_visible:
        return None
    if case.fate == "LEAKED":
        return 0
    # OP may have named it as rolled back or abandoned, and the discard topic tells what was visible by then.
    return (WINNER if case.winner is not None else DECISIONS) | OP | ABANDON


# Kinds

DELIVERED = VerdictKind("delivered", Sort.FATE, "committed, one visible copy")
ROLLED_BACK = VerdictKind("rolled_back", Sort.FATE, "rolled back, not visible")
PENDING = VerdictKind("pending", Sort.FATE, "waiting", "`txbridge pending` says why")
DISCARDED = VerdictKind(
    "discarded",
    Sort.FATE,
    "undecided after the last check, can be resumed",
    "find out what the sender's database says, and resume it with `txbridge resolve`",
)
ABANDONED = VerdictKind("abandoned", Sort.FATE, "committed, given up by an operator")
CANCELLED = VerdictKind("cancelled", Sort.FATE, "committed, cancelled by the application")
UNVERIFIABLE = VerdictKind(
    "unverifiable",
    Sort.FATE,
    "the log no longer says",
    "audit more often than records expire (--continue), or keep END, OP and the real topics longer",
)
LOST = VerdictKind(
    "LOST",
    Sort.WRONG_FATE,
    "committed, not visible",
    "deliver it by hand: HALF still holds the message, unless a relay has sent it",
    _lost_needs,
)
PARTIAL = VerdictKind(
    "PARTIAL",
    Sort.WRONG_FATE,
    "some of its messages visible, some lost",
    "deliver the missing ones by hand: HALF still holds them",
    _partial_needs,
)
DUPLICATED = VerdictKind(
    "DUPLICATED",
    Sort.WRONG_FATE,
    "more than one visible copy",
    "consumers without an inbox have handled it twice: find who wrote the second copy",
)
LEAKED = VerdictKind(
    "LEAKED",
    Sort.WRONG_FATE,
    "visible though rolled back, undecided, discarded or abandoned",
    "undo what consumers have done with it, and find who wrote the copy",
    _leaked_needs,
)
WRONG_WINNER = VerdictKind(
    "WRONG_WINNER",
    Sort.WRONG_FATE,
    "a later decision prevailed over the first",
    "compare with the sender's database, and correct by hand what differs",
    lambda case: 0 if case.fate == "WRONG_WINNER" else WINNER | (OP if case.winner is not None else 0),
)

#: All fates, in the order in which they are counted and shown.
KINDS = (
    *(DELIVERED, ROLLED_BACK, PENDING, DISCARDED, ABANDONED, CANCELLED, UNVERIFIABLE),
    *(LOST, PARTIAL, DUPLICATED, LEAKED, WRONG_WINNER),
)


# Conditions


def _is_waiting(case: Case) -> bool:
    """Whether it is committed, and cannot be delivered yet, or not all of it."""
    return case.parked in {"held", "scheduled"}


def _is_discarded(case: Case) -> bool:
    told = case.is_named("discard") or bool(case.discards) or case.parked == "discarded"
    return told and not case.is_reopened


def _is_rolled_back_and_visible(case: Case) -> bool:
    if not case.is_visible:
        return False
    if case.is_named("rollback") and not case.is_named("commit"):
        return True
    decided = case.has_all(WINNER) and case.is_decided(ROLLBACK)
    return decided and (case.is_applied or case.is_visible_before)


def _is_rolled_back(case: Case) -> bool:
    if case.is_visible:
        return False
    is_in_time = case.has_all(WINNER) or not case.is_named("discard")
    return case.is_named("rollback") or (case.is_decided(ROLLBACK) and case.is_applied and is_in_time)


def _is_passed_over(case: Case) -> bool:
    return (
        not case.is_visible
        and not case.is_named("commit")
        and not case.is_named("abandon")
        and case.is_decided(COMMIT)
        and case.is_applied
        and not _is_waiting(case)
        and case.about.op_settled
        and case.has_all(WINNER | OP | PARKED)
    )


def _is_forgotten(case: Case) -> bool:
    return (
        not case.is_visible
        and not case.has_all(WINNER | OP | PARKED)
        and case.winner is None
        and not case.is_named("commit")
        and case.is_below_watermark
        and case.parked is None
    )


RULES: tuple[Rule, ...] = (
    Rule(
        WRONG_WINNER,
        "a later decision prevailed over the first valid one",
        lambda case: (
            case.contrary is not None
            and case.has_all(WINNER)
            and case.is_named("rollback" if case.is_decided(COMMIT) else "commit")
        ),
        "OP is cut before END: the END behind an outcome in OP was read. The first valid decision in a prefix of END "
        "stays the first, because END is append-only and applied in order.",
    ),
    Rule(
        LEAKED,
        "rolled back, yet visible",
        _is_rolled_back_and_visible,
        "At any cut of the real topics for an outcome in OP. The same holds for a first decision `rollback` that the "
        "checkpoint has passed: it never changes (as for WRONG_WINNER), and a discard before it is in the discard cut. "
        "If it is not applied yet, the rule is sound only below the earlier cut: a discard and a resume that we do not "
        "see may have come between.",
    ),
    Rule(
        LEAKED,
        "visible without a decision to commit",
        lambda case: case.is_visible_before and case.has_all(DECISIONS) and case.winner is None,
        "Only below the earlier cut of the real topics: a record visible there had its END in the log already, and "
        "discard and END were cut later. Above that cut the decision may lie above the cut of END. A discard that is "
        "not known could only take decisions away.",
    ),
    Rule(
        LEAKED,
        "abandoned, yet visible",
        lambda case: case.is_seen_after_abandon,
        "At any cut: a worker that has abandoned a message never tries to deliver it again. Of several messages with "
        "different times of delivery some may have been delivered before: the record of the abandon says which.",
    ),
    Rule(
        WRONG_WINNER,
        "rolled back by the first valid decision, and recorded as abandoned",
        lambda case: case.is_named("abandon") and case.has_all(WINNER) and case.is_decided(ROLLBACK),
        "OP is cut before END: the decision and the command behind an outcome in OP were read.",
    ),
    Rule(
        LOST,
        "recorded as abandoned, though nobody has given a committed message up",
        lambda case: case.is_named("abandon") and case.has_all(WINNER) and case.given_up_by is None,
        "OP is cut before END: the decision and the command behind an outcome in OP were read.",
    ),
    Rule(
        DUPLICATED,
        "more than one visible copy",
        lambda case: case.copies > 1,
        "At any cut: every copy that is counted is committed and visible. Copies in other topics are not counted.",
    ),
    Rule(
        LOST,
        "recorded as delivered, but not visible",
        lambda case: not case.is_visible and case.is_settled and case.is_loss_proved,
        "The real topics were cut again after OP, once every Kafka transaction that had written by then was decided "
        "(settled). The real record that belongs to the OP record is below that cut, or was never written. Where "
        "compaction, retention, or a topic deleted and created again could explain it, it is `unverifiable` instead.",
    ),
    Rule(
        LOST,
        "decided to commit and applied, but neither delivered, held nor scheduled",
        _is_passed_over,
        "The checkpoint (OFFSET) is cut before OP, and OP is settled. The Kafka transaction that moved it past this "
        "END also named the outcome in OP, or parked the message as held or scheduled. Both are below our cuts. So "
        "END, OP and OFFSET must be whole.",
    ),
    Rule(
        UNVERIFIABLE,
        "recorded as committed and not visible; compaction, retention or deletion of the real topic may be why",
        lambda case: not case.is_visible and case.is_named("commit") and case.is_settled,
    ),
    Rule(
        PARTIAL,
        "of its messages some are visible and some were never written, or are no longer in their topic",
        lambda case: case.copies == 1 and case.is_settled and case.is_loss_proved,
        "As LOST that is recorded as delivered, for the message that is not visible. Below the earlier cut, those with "
        "the same time as a visible one, or an earlier time, are missing, too: their Kafka transactions ended before.",
    ),
    Rule(
        CANCELLED,
        "committed, and cancelled by the application",
        lambda case: case.is_named("abandon") and not case.is_named("commit") and case.given_up_by == "cancel",
    ),
    Rule(
        ABANDONED,
        "committed, and given up by an operator",
        lambda case: case.is_named("abandon") and not case.is_named("commit"),
    ),
    Rule(
        UNVERIFIABLE,
        "some of its messages are not visible; compaction, retention or deletion of their topics may be why",
        lambda case: case.copies == 1 and bool(case.unseen) and case.is_named("commit") and case.is_settled,
    ),
    Rule(
        DELIVERED,
        "committed and delivered once",
        lambda case: case.copies == 1 and not case.unseen and (case.is_named("commit") or case.is_decided(COMMIT)),
    ),
    Rule(
        UNVERIFIABLE,
        "visible once; whether it was committed is no longer known",
        lambda case: case.copies == 1 and not case.has_all(WINNER) and not _is_waiting(case),
        "Without its evidence there is no violation.",
    ),
    Rule(
        ROLLED_BACK,
        "rolled back and not visible",
        _is_rolled_back,
        "If OP names a discard whose record is gone, the rollback may have come too late: then OP must name it, too.",
    ),
    Rule(
        DISCARDED,
        "set aside undecided; an operator may resume it",
        lambda case: (
            not case.is_visible
            and _is_discarded(case)
            and not case.is_named("commit")
            and (case.winner is None or not case.has_all(WINNER | OP))
        ),
    ),
    Rule(
        UNVERIFIABLE,
        "finished so long ago that retention has removed how",
        _is_forgotten,
        "Finished according to the low watermark, and retention has removed every trace of the outcome.",
    ),
    Rule(PENDING, "waiting", lambda _: True),
)


def pending_state(case: Case) -> str:
    """Why a pending transaction waits."""
    if case.parked == "held":
        return HELD
    if case.parked == "scheduled":
        return SCHEDULED
    if case.is_named("commit"):
        return IN_COMMIT
    if case.is_visible:
        return MOVING
    if case.winner is not None:
        return UNREAD
    return RESUMED if case.is_reopened else UNDECIDED
