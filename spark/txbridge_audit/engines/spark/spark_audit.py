"""One audit by Spark, in a session of its own or in the one that is given.

The mentions of each transaction are brought together once, and judged in the tasks, whose code is sent as a zip file.
The ledger is Parquet, wherever Spark can write to.
"""

from __future__ import annotations

import marshal
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics, Reading, gather
from txbridge_audit.engines.local.run import until_leaders_stay
from txbridge_audit.engines.records import refuse_unknown_version
from txbridge_audit.engines.reporting import complete_sums, report_on
from txbridge_audit.engines.spark import tasks
from txbridge_audit.engines.spark.intake import SparkIntake
from txbridge_audit.engines.spark.spark_session import PARALLELISM, elections, own_folder, spark_session
from txbridge_audit.judge.evidence import Evidence
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.ledger.place import SUMMARY, ledger_exists
from txbridge_audit.ledger.rows import LedgerRow, phantom_row
from txbridge_audit.ledger.schema import SCHEMA, table_of
from txbridge_audit.protocol.mentions import AsideMention, CopyMention, HalfMention, UnreadableMention, from_row
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.overview import OverviewSums
from txbridge_audit.report.sums import OddRecords, Sums

#: What the tasks import (tasks.py) is among this. A test compares.
_PARTS = {
    "txbridge": (
        *("__init__.py", "errors.py", "extras.py", "masking.py", "murmur2.py", "text.py"),
        *("core/__init__.py", "core/names.py"),
    ),
    "txbridge_audit": ("**/*.py",),
}
#: The sessions that have it.
_SHIPPED: set[str] = set()
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
#: Rows of one task: enough to be worth a task, few enough to be sorted in memory.
_ROWS_OF_A_TASK = 200_000

#: Those whose names differ.
_SQL_TYPES = {"int32": "int", "int64": "bigint", "date32[day]": "date", "timestamp[us, tz=UTC]": "timestamp"}


def _sql_type(kind: Any) -> str:
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_sql_type(field.type)}' for field in kind)}>"
    return _SQL_TYPES.get(str(kind), str(kind))


#: The columns of ledger/schema.py as Spark declares them.
COLUMNS = ", ".join(f"{field.name} {_sql_type(field.type)}" for field in SCHEMA)


def spark_audit(
    source: AuditedTopics, plan: Plan, *, spark: SparkSession | None, ledger_path: str | None, with_overview: bool
) -> AuditReport:
    """See `txbridge_audit.audit.run_audit`."""
    with spark_session(spark, source.say) as session:
        if ledger_path is not None:
            _refuse_existing(session, ledger_path)

        def attempt() -> AuditReport:
            with elections():
                return _audit(session, source, plan, ledger_path=ledger_path, with_overview=with_overview)

        report = until_leaders_stay(source.say, attempt)
        if ledger_path is not None:
            _write_summary(session, report.to_json(), ledger_path)
    return report


def ship(spark: SparkSession) -> None:
    """Send the code to the executors of a session, once."""
    # Spark Connect keeps files for each session, and the audit uses the one that is given.
    name = str(getattr(spark, "session_id", None) or spark.conf.get("spark.app.id"))
    if name in _SHIPPED:
        return
    _SHIPPED.add(name)
    # Executors fetch it when they start, at any time: it is there as long as the session, or this process.
    folder = own_folder(spark)
    if folder is None:
        _FOLDERS.append(tempfile.TemporaryDirectory(prefix="txbridge-audit-"))
        folder = Path(_FOLDERS[-1].name)
    file = folder / "txbridge_audit_tasks.zip"
    write_zip(file)
    spark.addArtifacts(str(file), pyfile=True)


def write_zip(file: Path) -> None:
    """Write the zip file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for package, patterns in _PARTS.items():
            found = find_spec(package)
            assert found is not None
            root = Path(str(found.origin)).parent
            for pattern in patterns:
                for path in sorted(root.glob(pattern)):
                    out.write(path, f"{package}/{path.relative_to(root)}")


def _audit(
    spark: SparkSession, source: AuditedTopics, plan: Plan, *, ledger_path: str | None, with_overview: bool
) -> AuditReport:
    """Make one audit of everything that the topics hold, with a ledger and an overview if they are asked for.

    Raises CouldNotAuditError.
    """
    ship(spark)
    intake = SparkIntake(spark, source.settings, source.names)
    try:
        reading = gather(source, plan, intake)
        size = sum(span.end - span.start for span in reading.spans.values())
        number = max(int(str(spark.conf.get(PARALLELISM))), size // _ROWS_OF_A_TASK)
        rows = intake.rows().repartition(number, "partition", "block").sortWithinPartitions("partition", "block")
        rows.persist()
        try:
            facts = _facts_with_evidence(reading, rows, odd := OddRecords(source.names))
            source.say("judging")
            sums, phantoms, overview = _sums(source, plan, facts, rows, with_overview=with_overview)
            source.cluster.refuse_moved({*reading.spans, *facts.before})
            if ledger_path is not None:
                source.say("writing the ledger")
                table = rows.mapInArrow(partial(tasks.ledger_rows, facts, plan.selection), COLUMNS)
                _write_ledger(table, [phantom_row(copy) for copy in phantoms], ledger_path)
            report = report_on(source, plan, reading, facts, sums, odd, engine="spark")
            return replace(report, overview=overview.overview()) if with_overview else report
        finally:
            rows.unpersist()
    finally:
        intake.close()


def _facts_with_evidence(reading: Reading, rows: DataFrame, odd: OddRecords) -> Facts:
    """The facts with what all transactions prove about each other. Odd records are added to `odd`."""
    evidence = Evidence()
    for what, packed, _ in _asked(rows, tasks.evidence_of):
        if what == tasks.ODD:
            mention = from_row(marshal.loads(packed))
            assert isinstance(mention, HalfMention | UnreadableMention | AsideMention)
            if isinstance(mention, UnreadableMention):
                refuse_unknown_version(mention)
            odd.add_record(mention)
        elif what == tasks.ANCHOR:
            place, anchor = marshal.loads(packed)
            evidence.add_anchor((place[0], place[1], place[2]), (anchor[0], anchor[1], anchor[2]))
        else:
            partition, identity, half = marshal.loads(packed)
            evidence.unexplained.setdefault((partition, identity), set()).add(half)
    return evidence.add_to(reading.facts, reading.truncated)


def _sums(
    source: AuditedTopics, plan: Plan, facts: Facts, rows: DataFrame, *, with_overview: bool
) -> tuple[Sums, Sequence[CopyMention], OverviewSums]:
    """The sums over all verdicts, and the phantoms."""
    sums, overview = Sums(source.names), OverviewSums()
    entries: list[tuple[str, int, int, Entry]] = []
    ask = partial(tasks.verdicts_on, source.names, facts, plan.selection, with_overview)
    for what, packed, number in _asked(rows, ask):
        if what == tasks.SUM:
            sums.count_alike(marshal.loads(packed), number)
        elif what == tasks.ENTRY:
            kind, partition, half, told = marshal.loads(packed)
            entries.append((kind, partition, half, Entry.from_dict(told)))
        elif what == tasks.OVERVIEW:
            overview.add_sums(pickle.loads(packed))  # noqa: S301 - our own tasks have made it
        else:
            stray = from_row(marshal.loads(packed))
            assert isinstance(stray, CopyMention)
            sums.strays.append(stray)
    for *_, entry in sorted(entries, key=lambda one: one[:3]):
        sums.entries.list_entry(entry)
    labelled = complete_sums(source, facts, sums)
    return sums, [copy for copy, kind in labelled if kind == PHANTOM.name], overview


def _asked(rows: DataFrame, ask: Callable[[Iterable[Any]], Iterable[tasks.Answer]]) -> Iterator[tasks.Answer]:
    """The answers of all tasks."""
    frame = rows.mapInArrow(partial(tasks.answered, ask), tasks.ANSWERS)
    return ((row.what, bytes(row.told), row.n) for row in frame.toLocalIterator(prefetchPartitions=True))


def _refuse_existing(spark: SparkSession, path: str) -> None:
    """Raise CouldNotAuditError when there is anything at the path: writing the ledger would delete it."""
    try:
        # The names of the files alone: a file of another format is no error.
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path).select("path")
        if files.head() is None:
            return
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return
        raise
    raise ledger_exists(path)


def _write_ledger(judged: DataFrame, phantoms: Sequence[LedgerRow], path: str) -> None:
    """Write the rows, partitioned by the day of birth (UTC).

    There was no ledger at the start. One that is there now comes from an attempt that was repeated: it is replaced.
    """
    rows = judged
    if phantoms:
        table: Any = table_of(phantoms)
        rows = judged.union(judged.sparkSession.createDataFrame(table, judged.schema))
    rows.write.mode("overwrite").partitionBy("day").parquet(path)


def _write_summary(spark: SparkSession, text: str, path: str) -> None:
    """Write the JSON form of the report beside the ledger. A ledger without it is not complete."""
    line = spark.createDataFrame([(text.replace("\n", " "),)], "value string")
    line.coalesce(1).write.mode("overwrite").text(f"{path}/{SUMMARY}")
