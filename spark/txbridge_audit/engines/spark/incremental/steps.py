"""The steps of a continued audit: each makes a new state from the old one and from newer records.

A step takes the same cuts as a full audit (gather.py). It joins the rows between the last cuts and these with the rows
of all transactions that were open (working_set.py), and applies the same rules. Each cut lies at or above the same cut
of the step before. So a step knows the same records as a full audit with its cuts, except those of closed transactions
(closing.py). Their rows are in archives, and are read again when a new record names one of them.

So the report after a step is that of a full audit. It has more facts where retention or compaction has removed records
since they were read. An archive is deleted when retention has removed its half messages from HALF. A record that names
one of them later proves no more than it does in a full audit.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import attrgetter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cluster.facts import check_partitions
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.cluster.seen import edges_of
from txbridge_audit.engines.spark.incremental import working_set
from txbridge_audit.engines.spark.incremental.between import FEW_IN_MEMORY, Carried, Materialise, reader
from txbridge_audit.engines.spark.incremental.closing import with_closed
from txbridge_audit.engines.spark.incremental.state import Archive, AuditState, thinned
from txbridge_audit.engines.spark.incremental.store import Store
from txbridge_audit.engines.spark.judge import evaluate, ledger, loss_evidence, summary
from txbridge_audit.engines.spark.judge.evaluate import Judgement
from txbridge_audit.engines.spark.judge.mentions import KEY
from txbridge_audit.engines.spark.judge.summary import COUNTED, VIOLATIONS, Counts, Key, Listed
from txbridge_audit.engines.spark.ledger import delta, parquet
from txbridge_audit.engines.spark.read.beside import beside
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.frames import TABLES, Frames, pack, unpack
from txbridge_audit.engines.spark.read.gather import Gathered, gather
from txbridge_audit.engines.spark.read.kafka_source import AuditSource
from txbridge_audit.engines.spark.read.spark_session import FEW
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.alarms import Alarm, AuditStep, Raise
from txbridge_audit.report.formats import LedgerFormat, refuse_other_format
from txbridge_audit.report.model import AuditReport


@dataclass(frozen=True, slots=True)
class _Reopened:
    """Closed transactions that a new record names."""

    #: One table of all rows, as working_set.py makes it.
    rows: DataFrame
    counted: Counts
    #: Those that have a violation or a finding.
    listed: frozenset[Key]


class Increments:
    """The steps of one ledger."""

    def __init__(
        self, source: AuditSource, path: str, store: Store, state: AuditState, form: LedgerFormat = LedgerFormat.PARQUET
    ) -> None:
        self._source, self._path, self._store, self._format = source, path, store, form
        self.state = state
        #: The rows that the last step has left, if this process made that step.
        self._carried: Carried | None = None

    @classmethod
    def open(cls, source: AuditSource, path: str, form: LedgerFormat = LedgerFormat.PARQUET) -> Increments:
        """Continue the ledger, or begin it. Raises CouldNotAuditError when it cannot be continued."""
        store, namespace = Store(source.spark, path), source.names.namespace
        refuse_other_format(path, form, store.names_beside())
        state = store.last_state()
        if state is None:
            parquet.refuse_existing(source.spark, path)
            state = AuditState(secrets.token_hex(8), namespace)
            store.commit_state(state)  # its name identifies the alarms of a first step that fails
        if state.namespace != namespace:
            raise CouldNotAuditError(
                f"the ledger in {path} is about the namespace {state.namespace!r}, not {namespace!r}: "
                "check --namespace, or give --ledger another folder",
            )
        return cls(source, path, store, state, form)

    def has_news(self) -> bool:
        """Whether since the last step a known topic was written to or deleted, or a check topic created."""
        source, known = self._source, self.state.positions
        source.cluster.forget_leaders()
        there = source.cluster.partition_counts()
        if any(topic not in there for topic, _ in known):
            return True
        internal = (key for keys in source.partitions.values() for key in keys)
        keys = {*known, *internal, *check_partitions(source.names, there)}
        # Not the stable offsets: records that an open Kafka transaction hides are news, too.
        return any(known.get(key) != end for key, end in source.cluster.high_watermarks(keys).items())

    def step(self, plan: Plan, *, closing: bool = True, alarm: Raise | None = None) -> AuditStep:
        """Make one step. With `closing` it writes the ledger, and no longer carries the rows of closed transactions.

        Raises CouldNotAuditError. Then the step does not count.
        """
        with FrameCache(self._source.spark) as cache:
            return self._make_step(cache, plan, alarm, closing=closing)

    def _make_step(self, cache: FrameCache, plan: Plan, alarm: Raise | None, *, closing: bool) -> AuditStep:
        source, number = self._source, self.state.step + 1
        state = self._of_these_topics()
        gathered = gather(source, cache, plan, state.seen if state.step else None)
        is_small = self._carried is not None and gathered.size + self._carried.size <= FEW_IN_MEMORY
        materialise = Materialise(source.spark, cache, in_memory=is_small)
        frames, rows, reopened = self._join_rows(cache, materialise, state, gathered, number)
        strays: Callable[[], evaluate.Strays] = partial(evaluate.strays, source, gathered, frames, rows)
        if state.step and gathered.size <= FEW:
            # Searched while the verdicts are planned, so that an alarm comes sooner. Most steps find none.
            strays = beside(source.spark, strays)
        anchors = (*thinned(state.anchors, gathered.starts), *loss_evidence.anchors(rows))
        judged = with_closed(evaluate.with_verdicts(source.spark, gathered, rows, anchors))
        judged = materialise(judged, self._store.verdicts_path(number))
        judgement = evaluate.sum_up(source, cache, gathered, frames, judged, strays)
        gathered.refuse_moved(source.cluster)
        alarms = self._new_alarms(state, judgement)
        # Alarms come before all writing, which takes seconds. A step that is repeated raises none twice.
        raised_to = state.alarms if alarm is None else alarm(number, alarms)
        packed = working_set.carried(
            source.spark,
            source.names,
            frames,
            judged,
            gathered.facts.before,
            with_strays=bool(judgement.counted.strays),
        )
        packed = cache.hold(packed) if is_small else cache.keep(packed)
        new = dataclasses.replace(self._next_state(state, gathered, judgement, reopened, number), alarms=raised_to)
        source.say("writing the state")
        if closing:
            # A step that is repeated after a failure writes to the same places as before.
            table = parquet.ledger_rows(source.names, judged, frames, new.stray_entries)
            if self._format is LedgerFormat.DELTA:
                delta.merge(table, self._path, number)
            else:
                parquet.write(table, self._store.ledger_path(number))
            archive = self._write_archive(number, judged.where("closed"), packed.where("closed"))
            new = dataclasses.replace(
                new,
                ledger_at=plan.now,
                anchors=thinned(anchors, gathered.starts),
                archives=(*new.archives, archive) if archive else new.archives,
                closed=new.closed + summary.counts(judged.where("closed")),
                listed=tuple(summary.in_order([*new.listed, *(one for one in judgement.listed if one.closed)])),
            )
        left = (packed.where(~F.col("closed")) if closing else packed).drop("closed")
        self._in_few_files(left).write.mode("overwrite").parquet(self._store.rows_path(number))
        report = self._make_report(state, gathered, judgement, reopened, plan)
        if not is_small:
            left = reader(source.spark, left.schema).parquet(self._store.rows_path(number))
        # Counted now, after the alarms, which must not wait for it.
        tables = working_set.tables_in(left)
        self._store.commit_state(new)
        if self._carried is not None:
            self._carried.let_go()
        held = cache.hand_over(packed) if is_small else None
        self.state, self._carried = new, Carried(left, tables, sum(tables.values()), held)
        self._store.delete_unneeded(new)
        return AuditStep(report, alarms, judgement.counted.transactions)

    # Facts and rows

    def _of_these_topics(self) -> AuditState:
        """The state without its entries about real topics that were deleted and created again since."""
        state, cluster, internal = self.state, self._source.cluster, self._source.partitions
        there = cluster.partition_counts()
        ids = cluster.topic_ids([topic for topic in state.topic_ids if topic in there]) if state.topic_ids else {}
        other = {topic for topic, known in state.topic_ids.items() if ids.get(topic) != known}
        for topic in sorted(other & set(internal)):
            raise CouldNotAuditError(
                f"{topic} was deleted and created again since the last audit: what the ledger in {self._path} says "
                "belongs to other transactions; begin a new ledger",
            )
        return dataclasses.replace(
            state,
            positions={key: at for key, at in state.positions.items() if key[0] not in other},
            anchors=tuple(anchor for anchor in state.anchors if anchor.real_topic not in other),
        )

    def _join_rows(
        self, cache: FrameCache, materialise: Materialise, state: AuditState, gathered: Gathered, number: int
    ) -> tuple[Frames, DataFrame, _Reopened | None]:
        """The frames of old and new rows, their ledger, and the closed transactions among them."""
        tasks = self._source.spark.sparkContext.defaultParallelism
        rows = materialise(pack(gathered.frames), self._store.new_path(number), tasks)
        there = working_set.may_be_new(self._source.names, gathered.spans)
        if self._carried is not None:
            rows = rows.unionByName(self._carried.rows)
            there |= self._carried.tables.keys()
        elif state.step:
            before = self._source.spark.read.parquet(self._store.rows_path(state.step))
            rows = rows.unionByName(before)
            there |= working_set.tables_in(before).keys()
        frames = self._unexpired_frames(gathered, rows, there)
        known = self._build_ledger(materialise, gathered, frames, self._store.facts_path(number))
        reopened = self._find_reopened(cache, state, known)
        if reopened is None:
            return frames, known, None
        frames = self._unexpired_frames(gathered, rows.unionByName(reopened.rows), TABLES)
        return frames, self._build_ledger(materialise, gathered, frames, self._store.again_path(number)), reopened

    def _unexpired_frames(self, gathered: Gathered, rows: DataFrame, there: Collection[str]) -> Frames:
        frames = unpack(rows, gathered.frames, there)
        return working_set.unexpired(frames, self._source.names, gathered.starts)

    def _build_ledger(self, materialise: Materialise, gathered: Gathered, frames: Frames, path: str) -> DataFrame:
        return materialise(ledger.build(self._source.spark, self._source.names, frames, gathered.facts), path)

    def _find_reopened(self, cache: FrameCache, state: AuditState, rows: DataFrame) -> _Reopened | None:
        """The closed transactions that a new record names. Most steps have none and read no archive."""
        if not state.archives:
            return None
        missing = rows.where(~F.col("present") & (F.col("half") >= F.col("half_start"))).select(*KEY)
        spans = missing.groupBy("partition").agg(F.min("half").alias("low"), F.max("half").alias("high")).collect()
        steps = [
            archive.step
            for archive in state.archives
            if any(
                span.low <= archive.highest.get(span.partition, -1)
                and span.high >= archive.lowest.get(span.partition, span.high + 1)
                for span in spans
            )
        ]
        if not steps:
            return None
        spark = self._source.spark

        def stored(path: Callable[[int], str]) -> DataFrame:
            many = (spark.read.parquet(path(step)).withColumn("step", F.lit(step)) for step in steps)
            return reduce(DataFrame.unionByName, many)

        candidates = stored(self._store.closed_verdicts_path).join(missing, KEY, "left_semi")
        # If a transaction was closed more than once, its last archive has all of its rows.
        last = cache.keep(candidates.groupBy(*KEY).agg(F.max("step").alias("step")))
        if not last.count():
            return None
        judged = cache.keep(candidates.join(last, [*KEY, "step"], "left_semi"))
        packed = stored(self._store.closed_path).join(F.broadcast(last), [*KEY, "step"], "left_semi")
        odd = F.col("fate").isin(*VIOLATIONS) | (F.size("breaches") > 0) | (F.size("findings") > 0)
        return _Reopened(
            rows=packed.drop("step"),
            counted=summary.counts(judged),
            listed=frozenset((row.partition, row.half) for row in judged.where(odd).select(*KEY).collect()),
        )

    # State for the next step

    def _next_state(
        self, state: AuditState, gathered: Gathered, judgement: Judgement, reopened: _Reopened | None, number: int
    ) -> AuditState:
        """The state after this step, if it closes nothing."""
        cluster, half = self._source.cluster, self._source.names.half
        positions = {key: span.end for key, span in gathered.spans.items()}
        starts = {partition: gathered.starts[half, partition] for _, partition in self._source.partitions[half]}
        held = {(one.entry.kind, one.key) for one in judgement.listed if one.entry.kind in VIOLATIONS}

        def still_there(key: Key) -> bool:
            return key[1] is None or key[1] >= starts[key[0]]

        return dataclasses.replace(
            state,
            step=number,
            positions=dict(state.positions) | positions,
            topic_ids=cluster.topic_ids({topic for topic, _ in gathered.spans}),
            checkpoints=gathered.checkpoints,
            edges={fact.partition: edges_of(fact) for fact in gathered.facts.partitions},
            checks_since=gathered.facts.checks_since or {},
            named=gathered.named,
            closed=state.closed - reopened.counted if reopened else state.closed,
            strays=_sum(state.strays, judgement.strays),
            stray_entries=tuple(
                summary.first_of_each([*state.stray_entries, *judgement.stray_entries], attrgetter("kind"))
            ),
            listed=tuple(_still_closed(state, reopened)),
            archives=tuple(
                archive
                for archive in state.archives
                if any(highest >= starts.get(partition, 0) for partition, highest in archive.highest.items())
            ),
            raised=frozenset(one for one in state.raised | held if one in held or still_there(one[1])),
        )

    def _in_few_files(self, rows: DataFrame) -> DataFrame:
        """The rows in a few partitions, so that writing few rows takes few tasks and files."""
        return rows.coalesce(self._source.spark.sparkContext.defaultParallelism)

    def _write_archive(self, number: int, judged: DataFrame, packed: DataFrame) -> Archive | None:
        """Write the rows of the transactions that this step closes."""
        edges = judged.groupBy("partition").agg(F.min("half").alias("low"), F.max("half").alias("high")).collect()
        if not edges:
            return None
        self._in_few_files(judged.select(*KEY, *COUNTED)).write.mode("overwrite").parquet(
            self._store.closed_verdicts_path(number)
        )
        self._in_few_files(packed.drop("closed")).write.mode("overwrite").parquet(self._store.closed_path(number))
        return Archive(number, {row.partition: row.low for row in edges}, {row.partition: row.high for row in edges})

    # Report and alarms

    def _make_report(
        self, state: AuditState, gathered: Gathered, judgement: Judgement, reopened: _Reopened | None, plan: Plan
    ) -> AuditReport:
        counted = state.closed + judgement.counted
        if reopened is not None:
            counted -= reopened.counted
        listed = summary.in_order([*_still_closed(state, reopened), *judgement.listed])
        strays = summary.first_of_each([*state.stray_entries, *judgement.stray_entries], attrgetter("kind"))
        return evaluate.report_of(
            self._source.names,
            gathered,
            plan.selection,
            counted,
            dict(counted.kinds) | _sum(state.strays, judgement.strays) | dict(judgement.others),
            [*(one.entry for one in listed), *strays, *judgement.other_entries],
        )

    def _new_alarms(self, state: AuditState, judgement: Judgement) -> list[Alarm]:
        half = self._source.names.half
        wrong = [one for one in judgement.listed if one.entry.kind in VIOLATIONS]
        new = [one for one in wrong if (one.entry.kind, one.key) not in state.raised]
        alarms = [Alarm(f"{one.entry.kind} {half}/{one.key[0]}@{one.key[1]}", one.entry) for one in new]
        for entry in judgement.stray_entries:
            if entry.kind in VIOLATIONS:
                place = entry.evidence[0]
                alarms.append(Alarm(f"{entry.kind} {place.topic}/{place.partition}@{place.offset}", entry))
        return alarms


def _still_closed(state: AuditState, reopened: _Reopened | None) -> list[Listed]:
    return [one for one in state.listed if reopened is None or one.key not in reopened.listed]


def _sum(some: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {kind: some.get(kind, 0) + more.get(kind, 0) for kind in {**some, **more}}
