"""Evidence that is gone, and what a rule needs of it. Without evidence there is no violation, and no audit is clean.

A rule can judge a transaction if the records that prove or disprove its violation are still there. Each transaction has
a set of bits for its records that are gone (`Case.missing_evidence`). Each kind of violation says which of them it
needs (`VerdictKind.needs`) of a case. So what is not judged follows from the table of rules.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Evidence about a transaction that may be gone, one bit each.
END, OP, DISCARD, COPY, PARKED, CHECKPOINT, CHECKS, CHECKS_AGED, CHECK_TOPIC, OPEN, ABANDON = (
    1 << place for place in range(11)
)
#: Evidence of all decisions; and of the one that counted: no discard is missing that makes later ones count less.
DECISIONS = END | COPY
WINNER = DECISIONS | DISCARD

#: By bit, in the order in which they are named: the first that a rule lacks is its reason.
REASONS: Mapping[int, str] = {
    END: "END_GONE",
    OP: "OP_GONE",
    DISCARD: "DISCARD_GONE",
    ABANDON: "DISCARD_GONE",
    COPY: "COPY_GONE",
    CHECKPOINT: "CHECKPOINT_GONE",
    PARKED: "PARKED_GONE",
    CHECKS: "CHECKS_GONE",
    CHECK_TOPIC: "NO_CHECK_TOPIC",
    CHECKS_AGED: "CHECKS_AGED",
    OPEN: "OPEN_TRANSACTION",
}
REAL_TOPIC, HALF_GONE, OUTBOX_GONE = "REAL_TOPIC", "HALF_GONE", "OUTBOX_GONE"

SAYS: Mapping[str, str] = {
    "END_GONE": "END no longer holds all decisions of their time",
    "OP_GONE": "OP no longer holds all outcomes of their time",
    "DISCARD_GONE": "OP names a discard or an abandon, and the discard topic no longer holds its record",
    "COPY_GONE": "the discard topic no longer says which of two half messages with the same id is the copy",
    "CHECKPOINT_GONE": "OFFSET holds no checkpoint of the half partition, and workers have written there",
    "PARKED_GONE": "OFFSET has lost its beginning, and parked entries with it",
    "CHECKS_GONE": "the check topic of the group has lost requests that are less than an hour old",
    "NO_CHECK_TOPIC": "the group has no check topic",
    "CHECKS_AGED": "decided more than an hour ago, which is how long check topics keep requests",
    "OPEN_TRANSACTION": "a Kafka transaction that stayed open hides what became of them",
    REAL_TOPIC: "compaction, retention or the deletion of the real topic may have removed the record",
    HALF_GONE: "HALF no longer holds the half message",
    OUTBOX_GONE: "OUTBOX does not hold the progress of a relay's batch: it was removed, or is another namespace's",
}

#: Time for which check topics keep requests by the protocol, ms. Older requests do not count as missing.
CHECKS_KEPT_MS = 3_600_000

#: Reasons for which a rule that judges nothing is no finding. The protocol or the policy of a real topic lets the
#: evidence go. An open Kafka transaction is a finding of its own. Without a check topic no worker could send a check.
BY_DESIGN = frozenset({"CHECKS_AGED", "NO_CHECK_TOPIC", "OPEN_TRANSACTION", REAL_TOPIC, OUTBOX_GONE})


def reason_for(needed: int | str, lacking: int) -> str:
    """The reason why a rule cannot judge; empty when it can."""
    if isinstance(needed, str):
        return needed
    gone = needed & lacking
    return next((text for bit, text in REASONS.items() if gone & bit), "") if gone else ""
