"""The work of both engines: records become mentions, and mentions of a transaction are judged.

The local engine calls these functions in its own process. Spark's executors get them and what they import as a zip file
(spark_audit.py): nothing of txbridge is installed there, only pyarrow, which PySpark's Arrow functions need, and NumPy.
"""

from __future__ import annotations

import itertools
import marshal
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from txbridge.core.names import HALF_COORDINATES, OUTBOX_BATCH, Names
from txbridge_audit.engines import columns
from txbridge_audit.engines.blocks import MentionBlock, block_of, cut, unpacked
from txbridge_audit.engines.columns import SCHEMAS
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import AuditSelection, Facts
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.judge.verdict import judge
from txbridge_audit.ledger.rows import batches_of, row_of
from txbridge_audit.protocol import client_records, relay_records, worker_records
from txbridge_audit.protocol.mentions import AsideMention, Mention, NamedMention, UnreadableMention, from_row, to_row
from txbridge_audit.protocol.record import HIDDEN, KafkaRecord, records_of
from txbridge_audit.protocol.relay_records import ProgressStep
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import LEFT_OUT, Sums, contribution_of

#: What a row is: a mention of a transaction or of a relay's row; an odd record; a real topic that a message names; a
#: checkpoint; a record of a relay's progress.
#: A row with any other name is a piece of a block (blocks.py), and the name is the kind of its mentions.
MENTION, ODD, NAMED, CHECKPOINT, PROGRESS = "mention", "odd", "named", "checkpoint", "progress"
#: Rows that only the driver needs, for the next cut.
FOR_CUTS = frozenset({NAMED, CHECKPOINT, PROGRESS})
#: Rows that the driver looks at.
LOOKS = FOR_CUTS | {ODD}
_KIND_OF: Mapping[str, type[Mention]] = {kind.__name__: kind for kind in SCHEMAS}
#: `block` is -1 where a mention names no offset, and in rows that are no mention.
ROWS = "what string, partition bigint, block bigint, row binary"
#: A row as a task makes it. Its last field is plain values, packed by Python for Python of the same version.
Told = tuple[str, int, int, bytes]
_ROWS: Any = pa.schema([("what", pa.string()), ("partition", pa.int64()), ("block", pa.int64()), ("row", pa.binary())])

#: What a task sends to the driver: its answer, pickled.
ANSWERS = "answer binary"
#: Blocks, with the odd records among their rows.
Blocks = Iterable[tuple[MentionBlock, list[Mention]]]
#: Rows of an Arrow batch that is made here.
_BATCH = 1_000
#: Lines of columns that are gathered before they are cut into blocks. Copies of many half partitions may lie in one
#: real partition, and each piece costs as much as a hundred lines.
_GATHERED = 50_000


# Records to mentions


def offset_mentions(
    names: Names, checkpoints: dict[int, AuditCheckpoint], records: Iterable[KafkaRecord]
) -> Iterator[Mention]:
    """The parked entries of OFFSET. The last checkpoint of each partition goes into `checkpoints`.

    A record of a worker whose version is not known is an UnreadableMention with that version.
    """
    ours = f"{names.half}@".encode()
    for record in records:
        if (record.key or b"").startswith(ours) and (version := worker_records.unknown_version(record)):
            yield UnreadableMention(record.partition, None, record.offset, record.topic, "a newer version", version)
        told = worker_records.offset_mention(record, names)
        if isinstance(told, AuditCheckpoint):
            checkpoints[record.partition] = replace(told, follows=record.partition in checkpoints)
        elif told is not None:
            yield told


def progress_mentions(
    steps: list[ProgressStep], named: set[str], records: Iterable[KafkaRecord]
) -> Iterator[NamedMention | UnreadableMention]:
    """The rows that OUTBOX names. What it says of the batches goes into `steps`, and their real topics into `named`."""
    for record in records:
        told = relay_records.progress_of(record)
        if isinstance(told, UnreadableMention):
            yield told
        else:
            steps.append(told[0])
            named.update(row.topic for row in told[1])
            yield from told[1]


def other_mentions(
    names: Names, counts: Mapping[str, int], asides: SetAside, exactly: bool, records: Iterable[KafkaRecord]
) -> Iterator[Mention]:
    """The mentions of records of END, OP and real topics. See engines/gather.py for `counts` and `exactly`."""
    for record in records:
        if record.topic == names.end:
            yield from asides.mentions_that_count(client_records.end_mentions(record, exactly=exactly))
        elif record.topic == names.op:
            yield from worker_records.outcome_mentions(record)
        elif not record.has_headers:
            # It may claim a half message. So it is not passed over without a word.
            yield UnreadableMention(record.partition, None, record.offset, record.topic, HIDDEN)
        elif HALF_COORDINATES in (text := record.texts()):
            yield worker_records.copy_mention(record, text, counts[record.topic])
        elif OUTBOX_BATCH in text:
            yield relay_records.row_mention(record, text)


def parsed(parse: Callable[[Iterable[Any]], Iterable[Told]], batches: Iterable[Any]) -> Iterator[Any]:
    """The records of Arrow batches as rows."""
    rest = iter(parse(batches))
    while some := list(itertools.islice(rest, _BATCH)):
        columns = (list(column) for column in zip(*some, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ROWS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ROWS)


def answered(ask: Callable[[Blocks], object], batches: Iterable[Any]) -> Iterator[Any]:
    """The answer to sorted batches of rows, pickled."""
    answer = pickle.dumps(ask(blocks_of(rows_in(batches))))
    yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], ["answer"])


def _told(names: Names, mentions: Iterable[Mention]) -> Iterator[Told]:
    for mention in mentions:
        packed = marshal.dumps(to_row(mention))
        if isinstance(mention, UnreadableMention | AsideMention):
            yield ODD, mention.partition, -1, packed
        if isinstance(mention, UnreadableMention):
            continue
        if not isinstance(mention, AsideMention) or mention.source_topic == names.half:
            yield MENTION, mention.partition, block_of(mention), packed


def _in_shape(
    names: Names,
    batches: Iterable[Any],
    take: Callable[[str, Any], columns.Taken],
    read: Callable[[Iterable[KafkaRecord]], Iterable[Mention]],
) -> Iterator[Told]:
    """The pieces of the records that have a usual shape, and the mentions of the others."""
    waiting: dict[type[Mention], list[Any]] = {}
    for topic, batch in columns.by_topic(batches):
        found, left = take(topic, batch)
        if found is not None:
            kind, lines = found
            waiting.setdefault(kind, []).append(lines)
            if sum(map(len, waiting[kind])) >= _GATHERED:
                yield from cut(kind, waiting.pop(kind))
        if left.any():
            yield from _told(names, read(records_of([batch.filter(pa.array(left))])))
    for kind, some in waiting.items():
        yield from cut(kind, some)


def halves(names: Names, batches: Iterable[Any]) -> Iterator[Told]:
    named: set[str] = set()

    def take(_: str, batch: Any) -> columns.Taken:
        (kind, found), left = columns.take_halves(batch)
        named.update(found.column("real_topic").unique().to_pylist())
        return (kind, found), left

    def read(given: Iterable[KafkaRecord]) -> Iterator[Mention]:
        for half in map(client_records.half_mention, given):
            named.update(message.topic for message in half.messages if half.fault is None)
            yield half

    yield from _in_shape(names, batches, take, read)
    yield from ((NAMED, 0, -1, marshal.dumps(topic)) for topic in named)


def offsets(names: Names, batches: Iterable[Any]) -> Iterator[Told]:
    last: dict[int, AuditCheckpoint] = {}
    yield from _told(names, offset_mentions(names, last, records_of(batches)))
    for partition, seen in last.items():
        values = [partition, seen.applied_to, seen.low, seen.applied_entry, seen.stamp, dict(seen.topics), seen.follows]
        yield CHECKPOINT, partition, -1, marshal.dumps(values)


def progress(names: Names, batches: Iterable[Any]) -> Iterator[Told]:
    steps: list[ProgressStep] = []
    named: set[str] = set()
    yield from _told(names, progress_mentions(steps, named, records_of(batches)))
    yield from ((NAMED, 0, -1, marshal.dumps(topic)) for topic in named)
    yield from ((PROGRESS, 0, -1, marshal.dumps(tuple(step))) for step in steps)


def discards(names: Names, batches: Iterable[Any]) -> Iterator[Told]:
    return _told(names, filter(None, map(worker_records.discard_mention, records_of(batches))))


def others(
    names: Names, counts: Mapping[str, int], asides: SetAside, exactly: bool, batches: Iterable[Any]
) -> Iterator[Told]:
    def take(topic: str, batch: Any) -> columns.Taken:
        if topic == names.end:
            return columns.take_ends(asides, batch)
        return columns.take_outcomes(batch) if topic == names.op else columns.take_copies(counts[topic], batch)

    return _in_shape(names, batches, take, partial(other_mentions, names, counts, asides, exactly))


def checks(names: Names, batches: Iterable[Any]) -> Iterator[Told]:
    return _told(names, filter(None, map(worker_records.check_mention, records_of(batches))))


# Mentions to verdicts


def rows_in(batches: Iterable[Any]) -> Iterator[Told]:
    """The rows of Arrow batches."""
    names = ("what", "partition", "block", "row")
    return (row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True))


def blocks_of(rows: Iterable[Told]) -> Blocks:
    """The blocks one after the other, with the odd records among their rows. The rows are sorted."""
    for (_, number), of_one in itertools.groupby(rows, key=itemgetter(1, 2)):
        by_what: dict[str, list[bytes]] = {}
        for what, _, _, packed in of_one:
            by_what.setdefault(what, []).append(packed)
        odd, mentions = ([from_row(marshal.loads(row)) for row in by_what.pop(what, ())] for what in (ODD, MENTION))
        found = {
            _KIND_OF[what]: [unpacked(_KIND_OF[what], piece) for piece in there] for what, there in by_what.items()
        }
        yield MentionBlock(number, found, mentions), odd


def mentions_in(what: str, packed: bytes) -> list[Mention]:
    """The mentions in a row."""
    if what in {MENTION, ODD}:
        return [from_row(marshal.loads(packed))]
    kind: Any = _KIND_OF[what]
    return [kind(**line) for line in unpacked(kind, packed).to_pylist()]


def evidence_of(blocks: Blocks) -> tuple[Evidence, list[Mention]]:
    """The evidence, and the odd records."""
    evidence, found = Evidence(), list[Mention]()
    for block, odd in blocks:
        found += odd
        block.plain.add_evidence(evidence)
        for transaction in block.other_transactions():
            evidence.see_transaction(transaction)
            found += [half for half in transaction.halves if half.fault is not None]
    return evidence, found


def verdicts_on(names: Names, facts: Facts, selection: AuditSelection, with_overview: bool, blocks: Blocks) -> Sums:
    sums = Sums(names)
    for block, _ in blocks:
        sums.strays += block.find_strays(facts)
        for lines in block.plain.group_alike(facts, selection):
            # One of them speaks for all: of plain ones there is nothing to list.
            verdict = judge(block.plain.make_transaction(lines[0]), facts)
            if selection.takes(verdict.case.message):
                sums.count_alike(contribution_of(verdict), len(lines))
                if with_overview:
                    sums.overview.take_alike(verdict, *block.plain.times_of(lines))
        for transaction in block.other_transactions():
            verdict = judge(transaction, facts)
            sums.strays += verdict.case.strays
            message = verdict.case.message
            if selection.takes(message):
                sums.take_verdict(verdict)
                if with_overview:
                    sums.overview.take_verdict(verdict)
            elif message is not None and selection.leaves_out(message):
                sums.counts[LEFT_OUT] += 1
    return sums


def ledger_rows(facts: Facts, selection: AuditSelection, blocks: Blocks) -> Iterator[Any]:
    """The rows of the ledger, as Arrow batches."""
    transactions = (one for block, _ in blocks for one in block.all_transactions())
    taken = (judge(one, facts) for one in transactions)
    rows = (row_of(verdict) for verdict in taken if selection.takes(verdict.case.message))
    return batches_of(row for row in rows if row is not None)
