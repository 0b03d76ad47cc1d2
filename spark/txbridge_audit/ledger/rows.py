"""The rows of the ledger, as plain values.

Violations whose half message HALF does not hold (PHANTOM, EXPIRED) have rows without a fate.

No row holds a whole transaction id, because the id is the right to decide an undecided transaction. `transaction` is
the part of it that logs show. `id_sha256` finds the row of a known id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from txbridge.core.names import short_id
from txbridge.masking import masked
from txbridge.text import LAST_TIME
from txbridge_audit.judge import fates, violations
from txbridge_audit.judge.case import Case
from txbridge_audit.judge.verdict import Verdict
from txbridge_audit.protocol.mentions import COMMIT, CopyMention, EndMention

#: Number of decisions, copies and discards of one transaction that are kept: the first ones. A client that repeats a
#: decision a million times must not make a row that nobody can hold. `entries` and `copies` count all of them.
KEPT = 100
_DAY = 24 * 3600 * 1_000_000

LedgerRow = dict[str, Any]


def row_of(verdict: Verdict) -> LedgerRow | None:
    """The row of a verdict; None where there is no transaction and no violation."""
    if verdict.fate is not None:
        return _transaction_row(verdict)
    return _expired_row(verdict) if violations.EXPIRED.name in verdict.violations else None


def _transaction_row(verdict: Verdict) -> LedgerRow:
    case = verdict.case
    message, winner = case.message, case.winner
    assert message is not None  # It has a fate.
    held = [parked for parked in case.transaction.parked if parked.state == "held"]
    held_since = min((parked.stamp for parked in held), default=None)
    committed_at = case.committed_at
    return {
        "partition": message.partition,
        "half": message.half,
        **_named(message.id),
        "group": message.group,
        "real_partition": message.fixed_partition,
        "prepared_at": _time(message.born),
        "fate": verdict.fate,
        "pending_state": verdict.pending_state,
        "violations": list(verdict.violations),
        "findings": list(verdict.findings),
        "decision": None if winner is None else "commit" if winner.decision == COMMIT else "rollback",
        "decided_by": None if winner is None else winner.source,
        "decided_at": None if winner is None else _time(winner.stamp),
        "decided_end": None if winner is None else winner.at,
        "prepare_to_decision_ms": None if winner is None else winner.stamp - message.born,
        "delivered_at": _time(committed_at),
        "decision_to_delivery_ms": case.delivery_latency,
        "entries": len(case.transaction.ends),
        "decisions": [_decision(case, end) for end in sorted(case.transaction.ends, key=attrgetter("place"))[:KEPT]],
        "checks_sent": case.checks_sent,
        "held_since": _time(held_since),
        "held_ms": None if committed_at is None or held_since is None else committed_at - held_since,
        "held_why": max(held, key=lambda parked: parked.at).error if held else None,
        "copies": case.copies,
        "messages": len(case.messages),
        "next_at": _time(case.next_time) if verdict.pending_state == fates.SCHEDULED else None,
        "delivered": _places(copy.visible_at for copy in (*case.home, *case.foreign)),
        **{f"op_{outcome}_offset": case.op(outcome) for outcome in ("commit", "rollback", "discard", "abandon")},
        "discard_records": _discards(case),
        "resumed_end": case.resumed_at,
        "day": _day(message.born),
        "real_topic": message.real_topic,
    }


def _named(identity: str | None) -> LedgerRow:
    """The columns that may be shown instead of a transaction id."""
    return {
        "transaction": None if identity is None else short_id(identity),
        "id_sha256": None if identity is None else hashlib.sha256(identity.encode()).hexdigest(),
    }


def _decision(case: Case, end: EndMention) -> LedgerRow:
    """An entry of END with its ruling."""
    return {
        "end": end.at,
        "line": end.line,
        "at": _time(end.stamp),
        "decision": end.decision,
        "source": end.source,
        "client": end.client,
        "group": end.group,
        "check": end.checks,
        "remark": end.remark_text and masked(end.remark_text),
        "ruling": case.ruling_of(end),
    }


def _places(delivered: Iterable[tuple[str, int, int]]) -> list[LedgerRow]:
    first = sorted(delivered)[:KEPT]
    return [{"topic": topic, "partition": partition, "offset": at} for topic, partition, at in first]


def _discards(case: Case) -> list[LedgerRow]:
    discards = sorted(case.transaction.discards, key=lambda one: (one.stamp, one.place, one.at))
    return [
        {
            "at": _time(discard.stamp),
            "partition": discard.place,
            "offset": discard.at,
            "reason": discard.reason,
            "end": discard.end_position,
            "checks": discard.checks,
        }
        for discard in discards[:KEPT]
    ]


def _expired_row(verdict: Verdict) -> LedgerRow | None:
    """The row of a message that HALF no longer holds although it is open, as its parked entry tells."""
    case, parked = verdict.case, verdict.case.last_parked
    if parked is None:
        return None
    return {
        "partition": parked.partition,
        "half": parked.half,
        **_named(parked.id),
        "group": parked.group,
        "prepared_at": _time(parked.born),
        "violations": list(verdict.violations),
        "findings": list(verdict.findings),
        "checks_sent": case.checks_sent,
        "day": _day(parked.born),
        "real_topic": parked.topic,
    }


def phantom_row(copy: CopyMention) -> LedgerRow:
    """The row of a visible record without a half message, with the coordinates that it claims."""
    return {
        "partition": None if copy.half is None else copy.partition,
        "half": copy.half,
        "transaction": None if copy.id is None else short_id(copy.id),
        "violations": [violations.PHANTOM.name],
        "findings": [],
        "copies": 1,
        "delivered": _places([copy.visible_at]),
        "real_topic": copy.topic,
    }


def _time(ms: int | None) -> int | None:
    """Microseconds since 1970: Arrow takes 0.1 us for such a number, and 20 us for a datetime with its time zone."""
    # A record or a parked entry may state any number. That of another time has no column.
    return None if ms is None or not 0 <= ms <= LAST_TIME else ms * 1000


def _day(ms: int | None) -> int | None:
    """Days since 1970."""
    time = _time(ms)
    return None if time is None else time // _DAY
