"""A Spark session with Kafka's connector: a local one of our own, or the one that the audit runs in."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from txbridge_audit.engines.spark.read import delta_lake
from txbridge_audit.engines.spark.read.jvm_names import remember
from txbridge_audit.errors import CouldNotAuditError, ElectionError

Progress = Callable[[str], None]

#: The newest PySpark that the audit is tested with (docs/compatibility.md).
_TESTED = "4.1.1"
#: The connector must have Spark's own version, because it uses Spark's internals.
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"

#: Settings of the audit's queries, whatever the session's defaults are.
_SEMANTICS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # If a JSON object repeats a name, the last one counts.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    # All but `kafka`: its newer source makes Spark's own rows directly. The older one copies each record twice more.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Kept frames are read once or twice. Compressing them took a tenth of the time of all tasks.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A small map before the large one helps when keys repeat within a task. Keys of transactions do not.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    # HotSpot never compiles a method of more than 8,000 bytes. Above this limit Spark compiles operators one by one.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # The ledger is aggregated in the order of its key. Hash aggregation would sort it once more.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    # Planning again after every stage cost more than the stages of 300,000 transactions. `suit` knows the sizes.
    "spark.sql.adaptive.enabled": "false",
    # Spark writes each plan as text for its web page, which nobody reads.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
    # A check for developers of Spark's optimiser, made on every plan after each of a hundred rules.
    "spark.sql.lightweightPlanChangeValidation": "false",
}
#: Rows of one task of a shuffle. More do not fit together into a small memory, and fewer are not worth a task.
_ROWS_AT_MOST, _ROWS_AT_LEAST = 250_000, 10_000
#: Up to this many rows Spark interprets its expressions. Compiling code for them costs more than it saves.
FEW = 50_000
#: Rules of Spark's optimiser that save work for each row. Spark tries them on plans of hundreds of columns until
#: nothing changes any more. That costs more than a few rows do.
_NOT_FOR_FEW = ",".join(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in (
        *("CollapseRepartition", "CollapseWindow", "CombineConcats", "ConstantPropagation"),
        *("CostBasedJoinReorder", "DecimalAggregates", "EliminateAggregateFilter", "EliminateLimits"),
        *("EliminateMapObjects", "EliminateOffsets", "EliminateOuterJoin", "EliminateSerialization", "EliminateSorts"),
        *("EliminateWindowPartitions", "FoldablePropagation", "GenerateOptimization", "InferFiltersFromConstraints"),
        *("InferFiltersFromGenerate", "LikeSimplification", "LimitPushDown", "LimitPushDownThroughWindow"),
        *("NullDownPropagation", "NullPropagation", "ObjectSerializerPruning", "OptimizeCsvJsonExprs", "OptimizeIn"),
        *("OptimizeJoinCondition", "OptimizeRand", "OptimizeRepartition", "OptimizeUpdateFields"),
        *("OptimizeWindowFunctions", "PushDownLeftSemiAntiJoin", "PushFoldableIntoBranches"),
        *("PushLeftSemiLeftAntiThroughJoin", "PushProjectionThroughUnion"),
        *("RemoveNoopOperators", "RemoveRedundantAggregates", "RemoveRedundantAliases", "ReorderAssociativeOperator"),
        *(
            "ReorderJoin",
            "ReplaceNullWithFalseInPredicate",
            "SimplifyBinaryComparison",
            "SimplifyCaseConversionExpressions",
            "SimplifyCasts",
        ),
        *("SimplifyConditionals", "SimplifyExtractValueOps", "TransposeWindow", "UnwrapCastInBinaryComparison"),
    )
)
_TASK_ATTEMPTS = 4
_JAVA = 17
#: HotSpot's optimising compiler took 40 % of all processor time of an audit of 337,000 transactions.
#: Without it HotSpot's cache for code is smaller, and when that is full nothing is compiled any more.
_QUICK_START = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
#: A follower plans the same queries for days. With HotSpot's own limits the planning is optimised within some steps.
_FOR_DAYS = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC"
#: With more to read, optimised code pays off if it runs once per record. All other code, above all planning, runs some
#: ten thousand times. With HotSpot's own limits, a thirtieth of these, most of the optimised code was of that kind.
#: Nobody waits for an answer meanwhile, so pauses for garbage collection may be long.
_LATER_OPTIMISED = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC -XX:Tier4InvocationThreshold=150000 "
    "-XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=450000 -XX:Tier4BackEdgeThreshold=1200000"
)
#: Seconds for the JVM to end after its session. It only has to delete its temporary files.
_JVM_EXIT_TIMEOUT = 10.0
#: The folders of the sessions that were started here and have not ended.
_own_folders: set[Path] = set()


@contextmanager
def spark_session(
    spark: SparkSession | None,
    progress: Progress,
    *,
    connector: bool = True,
    small: bool = False,
    for_days: bool = False,
    with_delta: bool = False,
) -> Iterator[SparkSession]:
    """A session for one audit. Raises CouldNotAuditError when Spark cannot start or fails.

    A given session, or that of spark-submit or of the program, is used with a configuration of our own (`newSession`).
    Otherwise a local one is started, and stopped with its JVM at the end. The output of Ivy and Spark goes to a file,
    which is kept when something fails.

    `small` says that the session ends before optimised code would pay off, `for_days` that it runs for long.
    `with_delta` says that a ledger is written as a Delta Lake table.
    """
    active = spark or SparkSession.getActiveSession()
    if active is None and (SparkContext._active_spark_context or "PYSPARK_GATEWAY_PORT" in os.environ):  # noqa: SLF001
        active = SparkSession.builder.appName("txbridge audit").getOrCreate()
    if active is not None:
        with _explained("see Spark's log"):
            yield _configured(active, progress, connector=connector, with_delta=with_delta)
        return
    workdir = Path(tempfile.mkdtemp(prefix="txbridge-audit-"))
    _own_folders.add(workdir)
    log = workdir / "spark.log"
    keep_log = True
    try:
        with _hearing_interrupts() as hear:
            with _explained(f"see {log}"):
                packages = [CONNECTOR] * connector + [delta_lake.PACKAGE] * with_delta
                options = _QUICK_START if small else _FOR_DAYS if for_days else _LATER_OPTIMISED
                own = _start(workdir, log, progress, hear, packages, options)
            try:
                # Errors are explained before the session is stopped: their texts come from the JVM.
                with _explained(f"see {log}"):
                    yield _configured(own, progress, connector=connector, with_delta=with_delta)
            finally:
                _stop(own)
        keep_log = False
    except CouldNotAuditError as error:
        keep_log = str(log) in str(error)
        raise
    except KeyboardInterrupt:
        keep_log = False
        raise
    finally:
        _own_folders.discard(workdir)
        if not keep_log:
            shutil.rmtree(workdir, ignore_errors=True)


def kill_session() -> None:
    """Kill the JVM of a session that was started here, and delete its files, for a program that is about to end.

    It may be called in any thread while the session works. A given session is left alone.
    """
    for folder in list(_own_folders):
        process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
        if process is not None:
            process.kill()
        # A JVM that is being launched ends when this process does: it reads our end of a pipe.
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _hearing_interrupts() -> Iterator[Callable[[], None]]:
    """Keep the handler of Ctrl-C that was set before Spark starts, without log lines of Py4J when it is interrupted.

    Yields a function that sets the handler again after Spark has replaced it. A handler that is set later is kept.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield lambda: None
        return
    wanted = _interrupt_quietly if before is signal.default_int_handler else before
    disabled = logging.root.manager.disable

    def hear() -> None:
        signal.signal(signal.SIGINT, wanted)

    hear()
    try:
        yield hear
    finally:
        logging.disable(disabled)
        if signal.getsignal(signal.SIGINT) is _interrupt_quietly:
            signal.signal(signal.SIGINT, before)


def _interrupt_quietly(_signal: int, _frame: FrameType | None) -> None:
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt


@contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block. PySpark, interrupted while its JVM starts, would never end that JVM."""
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not _interrupt_quietly
    ):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _interrupt_quietly)
    if came:
        _interrupt_quietly(came[0], None)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn failures of Spark into a CouldNotAuditError of one line. `where` says where the details are."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise CouldNotAuditError(f"{_reason(error)}; {where}") from error


_KAFKAS_EXCEPTION = re.compile(r"\borg\.apache\.kafka\.[\w.$]+Exception\b")
_RETRIABLE = "org.apache.kafka.common.errors.RetriableException"


@contextmanager
def elections(spark: SparkSession) -> Iterator[None]:
    """Turn retriable errors of Kafka's client, in a task or in Spark's driver, into ElectionError.

    Kafka's own classes tell which errors are retriable.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        name = next((name for name in _classes_of(error) if _is_retriable(spark, name)), None)
        if name is None:
            raise
        raise ElectionError(
            f"Kafka did not answer during the audit ({name.rpartition('.')[2]}: a broker is away, or a leader is being "
            "elected): check the brokers, run it again",
        ) from error


def _classes_of(error: Exception) -> list[str]:
    """Names of Kafka's exceptions in an error: a task's are in its text, the driver's are its causes."""
    names = _KAFKAS_EXCEPTION.findall(str(error))
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    while cause is not None:
        names += _KAFKAS_EXCEPTION.findall(str(cause.toString()))
        cause = cause.getCause()
    return names


def _is_retriable(spark: SparkSession, name: str) -> bool:
    context: Any = spark.sparkContext
    loader = spark._jsparkSession.sharedState().jarClassLoader()  # noqa: SLF001  (the connector's classes are there)
    load = context._jvm.java.lang.Class.forName  # noqa: SLF001
    try:
        return bool(load(_RETRIABLE, False, loader).isAssignableFrom(load(name, False, loader)))  # Java: initialise
    except Py4JError:  # no class of that name
        return False


def _reason(error: Exception) -> str:
    text = str(error)
    lost = re.search(r"Some data may have been lost|OffsetOutOfRange|Cannot fetch offset", text)
    if lost:
        return "retention removed records while they were being read: run the audit again"
    timeout = re.search(r"Cannot fetch record for offset (\d+) in (\d+) milliseconds", text)
    if timeout:
        return f"Kafka did not answer for {timeout.group(2)} ms during the audit: check the brokers, run it again"
    denied = re.search(r"Not authorized to access (topic|group)s?: \[?([^\]\s]*)", text)
    if denied:
        # Spark reads only topics that are known to exist, so no other right can be missing.
        return f"missing right READ on {denied[1]} {denied[2]}: give it to the audit's user (docs/security.md)"
    cause = (
        re.findall(r"^Caused by: (.*)$", text, re.MULTILINE) or text.strip().splitlines()[:1] or [type(error).__name__]
    )
    return f"Spark failed: {cause[-1].strip()}"


def _configured(spark: SparkSession, progress: Progress, *, connector: bool, with_delta: bool) -> SparkSession:
    # Spark Connect has no SparkContext. The driver takes the cuts, and its JVM's file systems hold the state.
    if not hasattr(spark, "sparkContext"):
        raise CouldNotAuditError(
            "the audit cannot run over Spark Connect: use spark-submit, or let it start a Spark of its own",
        )
    if with_delta:
        delta_lake.refuse_without(spark)
    session = spark.newSession()
    for name, value in _SEMANTICS.items():
        session.conf.set(name, value)
    if connector and not _has_connector(session):
        # The session was started without it (plain spark-submit): have Spark's own Ivy fetch it now.
        progress("fetching Spark's Kafka connector (~25 s the first time)")
        with suppress(PySparkException, Py4JError):
            session.sql(f"ADD JAR ivy://{CONNECTOR}")
        if not _has_connector(session):
            raise CouldNotAuditError(
                f"this Spark session lacks Kafka's connector: start it with --packages {CONNECTOR}"
            )
    return session


def _has_connector(spark: SparkSession) -> bool:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "unused:1").option("subscribe", "unused")
    try:
        reader.load()  # checks the options and reads nothing
    except PySparkException:
        return False
    return True


def suit(session: SparkSession, rows: int) -> None:
    """Configure the session's next queries for about this many rows. A wrong number only makes them slow."""
    parallelism = session.sparkContext.defaultParallelism
    partitions = max(1 + rows // _ROWS_AT_MOST, min(parallelism, 1 + rows // _ROWS_AT_LEAST))
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    compiled = rows > FEW
    session.conf.set("spark.sql.codegen.wholeStage", str(compiled).lower())
    # It infers filters for other columns. With hundreds of columns that takes longer than filtering few rows.
    session.conf.set("spark.sql.constraintPropagation.enabled", str(compiled).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if compiled else "NO_CODEGEN")
    session.conf.set("spark.sql.optimizer.excludedRules", "" if compiled else _NOT_FOR_FEW)


def _start(
    workdir: Path, log: Path, progress: Progress, hear: Callable[[], None], packages: Sequence[str], options: str
) -> SparkSession:
    _check_java()
    cores = os.cpu_count() or 2
    conf = SparkConf().setAll(
        [
            ("spark.app.name", "txbridge audit"),
            # A read that a busy broker has not answered in time is repeated, as on a cluster. Else it would be fatal.
            ("spark.master", f"local[{cores},{_TASK_ATTEMPTS}]"),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.driver.memory", "2g"),
            ("spark.ui.enabled", "false"),
            # Kept for the web page, which is off. A step has some twenty queries with large plans, and there are
            # steps for days.
            ("spark.sql.ui.retainedExecutions", "5"),
            ("spark.ui.retainedJobs", "50"),
            ("spark.ui.retainedStages", "50"),
            ("spark.ui.retainedTasks", "500"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.sql.shuffle.partitions", str(max(4, cores))),
            ("spark.sql.catalogImplementation", "in-memory"),
            # Both record where in the program a column was made, for texts of errors. That is as slow as making it.
            ("spark.python.sql.dataFrameDebugging.enabled", "false"),
            ("spark.sql.dataFrameQueryContext.enabled", "false"),
            ("spark.sql.warehouse.dir", str(workdir / "warehouse")),
            ("spark.local.dir", str(workdir)),
        ],
    )
    conf.set("spark.driver.extraJavaOptions", options)
    if packages:
        conf.set("spark.jars.packages", ",".join(packages))
        _announce_fetching(packages, progress)
    if delta_lake.PACKAGE in packages:
        conf.setAll([*delta_lake.SESSION.items()])
    progress("starting Spark")
    gateway = None
    try:
        # Spark leaves files in its working directory, which must not be the user's.
        with log.open("wb") as out, _interrupted_afterwards():
            gateway = launch_gateway(conf, {"stdout": out, "stderr": out, "cwd": str(workdir)})  # type: ignore[no-untyped-call]
        # The tasks run in this Python, which has pyarrow, not in the first one of the user's PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        context: Any = SparkContext(conf=conf, gateway=gateway)
        remember(context._jvm)  # noqa: SLF001
        # The last act of SparkContext's constructor is to set a handler of its own. That one sends the JVM a request
        # while another answer is being read, and both fail.
        hear()
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        if gateway is not None:
            _end(gateway)
        raise CouldNotAuditError(_diagnosis(log)) from error
    except KeyboardInterrupt:
        if gateway is not None:
            # The JVM holds nothing of value yet.
            gateway.proc.kill()
            gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
        raise


def _announce_fetching(packages: Sequence[str], progress: Progress) -> None:
    """Tell the user about a longer start, if Spark's Ivy has to fetch any of the packages."""
    missing = [
        "Delta Lake" if package == delta_lake.PACKAGE else "Spark's Kafka connector"
        for package in packages
        if not _fetched(package)
    ]
    if missing:
        progress(f"fetching {' and '.join(missing)} once (~25 s)")


def _fetched(package: str) -> bool:
    group, name, version = package.split(":")
    return any(Path.home().glob(f".ivy2*/jars/{group}_{name}-{version}.jar"))


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    need = f"the audit runs on Spark, which needs Java {_JAVA} or later (a full JDK or JRE)"
    if java is None:
        raise CouldNotAuditError(f"{need}: install it, or set JAVA_HOME")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CouldNotAuditError(f"{need}, and {java} does not run: install it, or set JAVA_HOME") from error
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version.group(1)) < _JAVA:
        found = version.group(1) if version else "of unknown version"
        raise CouldNotAuditError(f"{need}, and {java} is Java {found}: install it, or set JAVA_HOME")


def _diagnosis(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "unresolved dependency" in text or "UNRESOLVED DEPENDENCIES" in text or "download failed" in text:
        return (
            f"Spark's Kafka connector ({CONNECTOR}), or Delta Lake, could not be fetched: check that a Maven "
            f"repository can be reached and has it, or name one with spark.jars.ivySettings in spark-defaults.conf. A "
            f"PySpark that was tested is installed by `pip install pyspark=={_TESTED}`; see {log}"
        )
    return f"Spark did not start; see {log}"


def _stop(spark: SparkSession) -> None:
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    # Interrupted in the middle of a request, PySpark warns that its JVM may be left behind. It is ended below.
    with suppress(PySparkException, Py4JError), warnings.catch_warnings(action="ignore"):
        spark.stop()
    # PySpark keeps the JVM for later sessions. This one is ours and logs into our file, so it ends here.
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    _end(gateway)


def _end(gateway: Any) -> None:
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(_JVM_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
