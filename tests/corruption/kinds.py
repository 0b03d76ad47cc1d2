"""Kinds of planted transactions: the whole history of each, and the verdict that the audit must reach, written by hand.

A transaction lives through three rounds. In each, its END entries are written first, and then its records in a Kafka
transaction together with those of all the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@dataclass(frozen=True)
class Round:
    """One round of a transaction."""

    #: Decision and source of an END entry.
    end: tuple[int, str] | None = None
    #: Whether the END entry states a wrong transaction id.
    forged: bool = False
    #: Number of visible copies.
    copies: int = 0
    #: Numbers (from 1) of the delivered messages, for a kind that holds several.
    parts: tuple[int, ...] = ()
    #: Part that is changed in the copies: key, value, timestamp or header; or a reserved header is added.
    altered: str | None = None
    #: Whether the copies are in another partition than their key belongs to.
    misplaced: bool = False
    #: Number of copies in an earlier Kafka transaction, which is aborted.
    aborted: int = 0
    #: True: OP names the range of ENDs that its Kafka transaction has applied. False: it names an empty range. None: it
    #: names the range exactly if this round has an END entry.
    in_turn: bool | None = None
    #: Outcome named in OP; a discard also writes its discard record, and so does an abandon, with the number of
    #: messages that were delivered before.
    op: str | None = None
    delivered: int = 0
    #: State of a parked entry, with fields of its value; None is a tombstone.
    parked: tuple[str | None, Mapping[str, object]] | None = None
    #: Whether a check request is sent, after the ENDs of this round were applied.
    check: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of transaction, with the verdict that the audit must reach."""

    name: str
    rounds: tuple[Round, ...]
    fate: str
    #: Violations and findings besides the fate.
    says: tuple[str, ...] = ()
    #: Changed headers of the half message.
    half: Mapping[str, str] = field(default_factory=dict)
    #: Number of messages, when it holds several, and their times of delivery (ms, -1 for none).
    messages: int = 0
    times: tuple[int, ...] = ()


def _kind(name: str, fate: str, *rounds: Round, says: tuple[str, ...] = (), **half: str) -> Kind:
    by_hand = any(step.end is not None and step.end[1] in {"operator", "resume", "abandon"} for step in rounds)
    return Kind(name, rounds, fate, (*says, *(["BY_HAND"] if by_hand else [])), half)


_GONE = (None, {})
_DISCARDED = Round(op="discard", parked=("discarded", {"reason": "MAX_CHECKS"}))
_HELD = Round(end=(COMMIT, "client"), parked=("held", {"error": "no such topic"}))
_ABANDONED = Round(end=(UNKNOWN, "abandon"), op="abandon", parked=_GONE)
_RESUMED = Round(end=(UNKNOWN, "resume"), parked=("pending", {}))

#: Times of delivery (ms): long ago, and long after any run.
_LONG_AGO, _FAR_AWAY = "1000000000000", "5000000000000"


def _scheduled(time: str) -> Round:
    return Round(end=(COMMIT, "client"), parked=("scheduled", {"next": int(time), "deliver": int(time)}))


def _in_steps(name: str, fate: str, times: tuple[int, ...], *rounds: Round, says: tuple[str, ...] = ()) -> Kind:
    """A kind that holds messages with these times of delivery."""
    made = _kind(name, fate, *rounds, says=says)
    return replace(made, messages=len(times), times=times)


def _step(due: str, delivered: int, *parts: int, **more: Any) -> Round:
    """A round that delivers these messages, so many in all, and schedules the others."""
    return Round(
        parts=parts, parked=("scheduled", {"next": int(due), "deliver": int(due), "delivered": delivered}), **more
    )


_FAR, _LONG = int(_FAR_AWAY), int(_LONG_AGO)
#: Times of three messages: at once, later, and at once; and each at its time.
_LAST, _EACH = (-1, _FAR, -1), (-1, _LONG, _LONG + 1)
_DECIDED = (COMMIT, "client")
_FIRST_STEP = _step(_FAR_AWAY, 2, 1, 3, end=_DECIDED)
_CANCELLED = Round(end=(UNKNOWN, "cancel"), op="abandon", delivered=2, parked=_GONE)

COMMITTED = _kind("committed", "delivered", Round(end=(COMMIT, "client"), copies=1, op="commit"))
ROLLED_BACK = _kind("rolled back", "rolled_back", Round(end=(ROLLBACK, "client"), op="rollback"))

#: Legal histories, some of them odd. The audit may report findings for them, and no violations.
LEGAL = (
    _kind(
        "answered a check",
        "delivered",
        Round(end=(UNKNOWN, "client"), parked=("pending", {"checks": 1}), check=True),
        Round(end=(COMMIT, "check"), copies=1, op="commit", parked=_GONE),
    ),
    _kind("long immunity", "pending", Round(parked=("pending", {})), CHECK_IMMUNITY_TIME_IN_SECONDS="86400"),
    _kind("held", "pending", Round(end=(COMMIT, "client"), parked=("held", {"error": "no such partition"}))),
    _kind(
        "held, then delivered",
        "delivered",
        Round(end=(COMMIT, "client"), parked=("held", {"error": "too large"})),
        Round(copies=1, op="commit", parked=_GONE),
    ),
    _kind("scheduled", "pending", _scheduled(_FAR_AWAY), TXB_DELIVER_AT=_FAR_AWAY),
    _kind(
        "scheduled, then delivered",
        "delivered",
        _scheduled(_LONG_AGO),
        Round(copies=1, op="commit", parked=_GONE),
        TXB_DELIVER_AT=_LONG_AGO,
    ),
    _kind("scheduled, then cancelled", "abandoned", _scheduled(_FAR_AWAY), _ABANDONED, TXB_DELIVER_AT=_FAR_AWAY),
    _kind("its time had passed", "delivered", *COMMITTED.rounds, TXB_DELIVER_AT=_LONG_AGO),
    _kind("aborted and done again", "delivered", Round(end=(COMMIT, "client"), aborted=1, copies=1, op="commit")),
    _kind("aborted, rolled back", "rolled_back", Round(end=(ROLLBACK, "client"), aborted=1, op="rollback")),
    _kind("abandoned", "abandoned", _HELD, _ABANDONED),
    _kind(
        "abandoned, decided again",
        "abandoned",
        _HELD,
        _ABANDONED,
        Round(end=(ROLLBACK, "check")),
        says=("CONTRADICTION",),
    ),
    _kind("abandoned too soon", "rolled_back", Round(end=(UNKNOWN, "abandon")), *ROLLED_BACK.rounds),
    _kind("discarded", "discarded", _DISCARDED),
    _kind("resumed", "pending", _DISCARDED, _RESUMED),
    _kind(
        "resumed and committed by hand",
        "delivered",
        _DISCARDED,
        _RESUMED,
        Round(end=(COMMIT, "operator"), copies=1, op="commit", parked=_GONE),
    ),
    _kind("late", "discarded", _DISCARDED, Round(end=(COMMIT, "client")), says=("LATE",)),
    _kind("late rollback", "discarded", _DISCARDED, Round(end=(ROLLBACK, "check")), says=("LATE",)),
    _kind("resumed though it waits", "delivered", Round(end=(UNKNOWN, "resume")), *COMMITTED.rounds),
    _kind(
        "late, then resumed",
        "delivered",
        _DISCARDED,
        Round(end=(ROLLBACK, "client")),
        Round(end=(UNKNOWN, "resume"), parked=("pending", {})),
        Round(end=(COMMIT, "check"), copies=1, op="commit", parked=_GONE),
        says=("LATE",),
    ),
    Kind("several", (Round(end=(COMMIT, "client"), parts=(1, 2, 3), op="commit"),), "delivered", messages=3),
    Kind("several, by topic", (Round(end=(COMMIT, "client"), parts=(2, 1, 3), op="commit"),), "delivered", messages=3),
    Kind("several, one in all", (Round(end=(COMMIT, "client"), parts=(1,), op="commit"),), "delivered", messages=1),
    Kind("several, rolled back", ROLLED_BACK.rounds, "rolled_back", messages=3),
    Kind(
        "several, scheduled, then delivered",
        (_scheduled(_LONG_AGO), Round(parts=(1, 2), op="commit", parked=_GONE)),
        "delivered",
        half={"TXB_DELIVER_AT": _LONG_AGO},
        messages=2,
    ),
    _in_steps("one waits for its time", "pending", _LAST, _FIRST_STEP),
    _in_steps(
        "each at its time",
        "delivered",
        _EACH,
        _step(_LONG_AGO, 1, 1, end=_DECIDED),
        _step(str(_LONG + 1), 2, 2),
        Round(parts=(3,), op="commit", parked=_GONE),
    ),
    _in_steps("the rest cancelled", "cancelled", _LAST, _FIRST_STEP, _CANCELLED),
    _kind("repeated", "delivered", *COMMITTED.rounds, Round(end=(COMMIT, "check")), says=("REPEAT",)),
    _kind("contradicted", "delivered", *COMMITTED.rounds, Round(end=(ROLLBACK, "check")), says=("CONTRADICTION",)),
    _kind(
        "forged first",
        "rolled_back",
        Round(end=(COMMIT, "client"), forged=True),
        Round(end=(ROLLBACK, "client"), op="rollback"),
        says=("WRONG_TRANSACTION_ID",),
    ),
)

#: Histories that break a promise.
CORRUPT = (
    _kind("recorded, not delivered", "LOST", Round(end=(COMMIT, "client"), op="commit")),
    _kind("passed over", "LOST", Round(end=(COMMIT, "client"))),
    _kind("delivered in an aborted transaction", "LOST", Round(end=(COMMIT, "client"), aborted=1, op="commit")),
    _kind("held, then lost", "LOST", _HELD, Round(op="commit", parked=_GONE)),
    _kind("resumed, then lost", "LOST", _DISCARDED, _RESUMED, Round(end=(COMMIT, "check"), op="commit", parked=_GONE)),
    _kind("rolled back instead", "LOST", Round(end=(COMMIT, "client"), op="rollback")),
    _kind("abandoned, delivered later", "LEAKED", _HELD, _ABANDONED, Round(copies=1)),
    _kind("abandoned by nobody", "LOST", _HELD, Round(op="abandon", parked=_GONE)),
    _kind("abandoned before it was committed", "LOST", Round(end=(UNKNOWN, "abandon")), _HELD, Round(op="abandon")),
    _kind(
        "abandoned though rolled back",
        "WRONG_WINNER",
        Round(end=(ROLLBACK, "client")),
        Round(op="abandon", parked=_GONE),
    ),
    Kind("one of several lost", (Round(end=(COMMIT, "client"), parts=(1, 3), op="commit"),), "PARTIAL", messages=3),
    Kind(
        "one of several twice", (Round(end=(COMMIT, "client"), parts=(1, 2, 2), op="commit"),), "DUPLICATED", messages=2
    ),
    Kind(
        "several that changed places",
        (Round(end=(COMMIT, "client"), parts=(3, 2, 1), op="commit"),),
        "delivered",
        says=("OUT_OF_ORDER",),
        messages=3,
    ),
    _in_steps("part of a step lost", "PARTIAL", _LAST, _step(_FAR_AWAY, 2, 1, end=_DECIDED)),
    _in_steps(
        "part of an earlier step lost",
        "PARTIAL",
        (-1, _LONG, -1),
        _step(_LONG_AGO, 2, 1, end=_DECIDED),
        Round(parts=(2,), op="commit", parked=_GONE),
    ),
    _in_steps(
        "a later step without an earlier one",
        "PARTIAL",
        (_LONG, _LONG + 1),
        _scheduled(_LONG_AGO),
        Round(parts=(2,)),
        says=("OVERDUE", "UNRECORDED"),
    ),
    _in_steps("a step twice", "DUPLICATED", _LAST, _step(_FAR_AWAY, 2, 1, 3, 3, end=_DECIDED)),
    _in_steps("a step after the cancel", "LEAKED", _LAST, _FIRST_STEP, _CANCELLED, Round(parts=(2,)), says=("EARLY",)),
    _in_steps(
        "a step before its time",
        "pending",
        (-1, _FAR, _FAR + 1),
        _step(_FAR_AWAY, 1, 1, end=_DECIDED),
        _step(_FAR_AWAY, 2, 2),
        says=("EARLY",),
    ),
    _in_steps(
        "the last step before its time",
        "delivered",
        _LAST,
        _FIRST_STEP,
        Round(parts=(2,), op="commit", parked=_GONE),
        says=("EARLY",),
    ),
    _in_steps("a step came and went", "pending", _EACH, _step(_LONG_AGO, 1, 1, end=_DECIDED), says=("OVERDUE",)),
    Kind("several lost", (Round(end=(COMMIT, "client"), op="commit"),), "LOST", messages=2),
    _kind("delivered twice", "DUPLICATED", Round(end=(COMMIT, "client"), copies=2, op="commit")),
    _kind("delivered again later", "DUPLICATED", Round(end=(COMMIT, "client"), copies=1, op="commit"), Round(copies=1)),
    _kind(
        "scheduled, then delivered twice",
        "DUPLICATED",
        _scheduled(_LONG_AGO),
        Round(copies=2, op="commit", parked=_GONE),
        TXB_DELIVER_AT=_LONG_AGO,
    ),
    _kind("rolled back, visible", "LEAKED", Round(end=(ROLLBACK, "client"), copies=1, op="rollback")),
    _kind("undecided, visible", "LEAKED", Round(copies=1, parked=("pending", {}))),
    _kind("discarded, visible", "LEAKED", _DISCARDED, Round(copies=1)),
    Kind("one of several leaked", (Round(end=(ROLLBACK, "client"), parts=(1,), op="rollback"),), "LEAKED", messages=2),
    _kind(
        "delivered by a late commit",
        "LEAKED",
        _DISCARDED,
        Round(end=(COMMIT, "client"), copies=1, op="commit", parked=_GONE),
        says=("LATE", "OUTCOME_WITHOUT_DECISION"),
    ),
    _kind(
        "delivered by a forged commit",
        "LEAKED",
        Round(end=(COMMIT, "client"), forged=True, copies=1, op="commit"),
        says=("WRONG_TRANSACTION_ID", "OUTCOME_WITHOUT_DECISION"),
    ),
    _kind(
        "delivered though not known",
        "LEAKED",
        Round(end=(UNKNOWN, "client"), copies=1, op="commit"),
        says=("OUTCOME_WITHOUT_DECISION",),
    ),
    _kind(
        "the later commit prevailed",
        "WRONG_WINNER",
        Round(end=(ROLLBACK, "client")),
        Round(end=(COMMIT, "check"), copies=1, op="commit"),
    ),
    _kind(
        "the later rollback prevailed",
        "WRONG_WINNER",
        Round(end=(COMMIT, "client")),
        Round(end=(ROLLBACK, "check"), op="rollback"),
    ),
    *(
        _kind(
            f"{what} altered",
            "delivered",
            Round(end=(COMMIT, "client"), copies=1, altered=what, op="commit"),
            says=("ALTERED",),
        )
        for what in ("key", "value", "timestamp", "header", "reserved header")
    ),
    _kind(
        "in another partition",
        "delivered",
        Round(end=(COMMIT, "client"), copies=1, op="commit"),
        says=("MISPLACED",),
        REAL_QID="7",
    ),
    _kind(
        "in another partition than its key belongs to",
        "delivered",
        Round(end=(COMMIT, "client"), copies=1, misplaced=True, op="commit"),
        says=("MISPLACED",),
    ),
    _kind(
        "delivered before its time",
        "delivered",
        _scheduled(_FAR_AWAY),
        Round(copies=1, op="commit", parked=_GONE),
        says=("EARLY",),
        TXB_DELIVER_AT=_FAR_AWAY,
    ),
    _kind(
        "delivered at once in spite of its time",
        "delivered",
        *COMMITTED.rounds,
        says=("EARLY",),
        TXB_DELIVER_AT=_FAR_AWAY,
    ),
    _kind("its time came and went", "pending", _scheduled(_LONG_AGO), says=("OVERDUE",), TXB_DELIVER_AT=_LONG_AGO),
    _kind(
        "delivered before its decision",
        "delivered",
        Round(end=(COMMIT, "client"), copies=1, op="commit", in_turn=False),
        says=("BEFORE_DECISION",),
    ),
    _kind(
        "overtaken",
        "delivered",
        Round(end=(COMMIT, "client")),
        Round(copies=1, op="commit", in_turn=True),
        says=("OVERTAKEN",),
    ),
    _kind("out of checks", "pending", Round(parked=("pending", {"checks": 15, "next": 1})), says=("STUCK",)),
    _kind(
        "checked after the decision",
        "delivered",
        *COMMITTED.rounds,
        Round(check=True),
        says=("CHECKED_AFTER_DECISION",),
    ),
    _kind("delivered, not recorded", "delivered", Round(end=(COMMIT, "client"), copies=1), says=("PROGRESS_AHEAD",)),
    _kind("finished without a trace", "rolled_back", Round(end=(ROLLBACK, "client")), says=("PROGRESS_AHEAD",)),
    _kind("forgotten", "pending", Round(), says=("PROGRESS_AHEAD",)),
)
