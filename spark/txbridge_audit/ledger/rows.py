"""The ledger: its rows as plain values, its columns in Arrow's types, and its files.

Violations whose half message HALF does not hold (PHANTOM, EXPIRED) have rows without a fate.

No row holds a whole transaction id, because the id is the right to decide an undecided transaction. `transaction` is
the part of it that logs show. `id_sha256` finds the row of a known id.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

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


# Columns and files

_TIME = pa.timestamp("us", tz="UTC")
_PLACE = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_DECISION = pa.struct(
    [
        *(("end", pa.int64()), ("line", pa.int32()), ("at", _TIME), ("decision", pa.int32()), ("source", pa.string())),
        *(("client", pa.string()), ("group", pa.string()), ("check", pa.int64()), ("remark", pa.string())),
        ("ruling", pa.string()),
    ]
)
_DISCARD = pa.struct(
    [
        *(("at", _TIME), ("partition", pa.int32()), ("offset", pa.int64()), ("reason", pa.string())),
        *(("end", pa.int64()), ("checks", pa.int64())),
    ]
)
#: The columns. Those of notebook.TRANSACTIONS are made of them.
SCHEMA: Any = pa.schema(
    [
        *(("partition", pa.int32()), ("half", pa.int64()), ("transaction", pa.string()), ("id_sha256", pa.string())),
        *(("group", pa.string()), ("real_partition", pa.int32()), ("prepared_at", _TIME), ("fate", pa.string())),
        *(("pending_state", pa.string()), ("violations", pa.list_(pa.string())), ("findings", pa.list_(pa.string()))),
        *(("decision", pa.string()), ("decided_by", pa.string()), ("decided_at", _TIME), ("decided_end", pa.int64())),
        *(("prepare_to_decision_ms", pa.int64()), ("delivered_at", _TIME), ("decision_to_delivery_ms", pa.int64())),
        *(("entries", pa.int64()), ("decisions", pa.list_(_DECISION)), ("checks_sent", pa.int64())),
        *(("held_since", _TIME), ("held_ms", pa.int64()), ("held_why", pa.string()), ("copies", pa.int64())),
        *(("delivered", pa.list_(_PLACE)), ("op_commit_offset", pa.int64()), ("op_rollback_offset", pa.int64())),
        *(("op_discard_offset", pa.int64()), ("op_abandon_offset", pa.int64())),
        *(("messages", pa.int32()), ("next_at", _TIME)),
        *(("discard_records", pa.list_(_DISCARD)), ("resumed_end", pa.int64())),
        *(("real_topic", pa.string()), ("day", pa.date32())),
    ]
)
#: Rows of a batch.
_BATCH = 1_000
#: Batches that are kept until a file of each day is written: up to 100,000 rows.
_KEPT = 100


def batches_of(rows: Iterable[LedgerRow]) -> Iterator[Any]:
    """The rows as Arrow batches of these columns."""
    rest = iter(rows)
    while some := list(itertools.islice(rest, _BATCH)):
        yield from pa.Table.from_pylist(some, schema=SCHEMA).to_batches()


def write_batches(batches: Iterable[Any], folder: Path) -> None:
    """Write files without Java into a folder that has none."""
    # Only here: it loads the library that writes Parquet, which no task of Spark needs.
    from pyarrow import dataset  # noqa: PLC0415

    rest, numbers = iter(batches), itertools.count()
    while some := list(itertools.islice(rest, _KEPT)):
        dataset.write_dataset(
            pa.Table.from_batches(some, SCHEMA),
            folder,
            format="parquet",
            # Not by real topic, too: readers would take a topic that is named 007 for the number 7.
            partitioning=dataset.partitioning(pa.schema([SCHEMA.field("day")]), flavor="hive"),
            basename_template=f"part-{next(numbers):05}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
            max_partitions=100_000,
        )
