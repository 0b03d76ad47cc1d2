"""A Spark session with Kafka's connector: a local one of our own, or the one that the audit runs in."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge_audit.cluster.plan import Progress
from txbridge_audit.errors import CouldNotAuditError, ElectionError

#: The newest PySpark that the audit is tested with (docs/compatibility.md).
_TESTED = "4.1.1"
#: The connector must have Spark's own version, because it uses Spark's internals.
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"

#: How many tasks run at once, in the sessions that are made here: Spark's own setting for what it reads.
PARALLELISM = "spark.sql.leafNodeDefaultParallelism"
#: Settings of the audit's queries, whatever the session's defaults are.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # As in a ledger of the local engine. Spark's own type for times tells other readers of no time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # All but `kafka`: its newer source makes Spark's own rows directly. The older one copies each record twice more.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Kept frames are read three times at most. Compressing them took a tenth of the time of all tasks.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A batch of 10,000 records of the largest size would not fit into an Arrow array (2 GiB).
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864",
    # Arrow does not join texts of the large types with others, as columns.py does.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # spark_audit.py knows how many tasks there are to be.
    "spark.sql.adaptive.enabled": "false",
}
_TASK_ATTEMPTS = 4
#: The last one is of a JVM that is gone.
_FAILURES = (PySparkException, Py4JError, ConnectionError)
#: The JVM of our own session. Nobody waits for an answer meanwhile, so pauses for garbage collection may be long. The
#: optimising compiler pays from some four million transactions on. Without it 20,000 took 24 s of processor time
#: instead of 47 (`make corruption`), and a million in a warm JVM 45 s instead of 48 (`make bench ARGS=audit`).
_JVM_OPTIONS = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC -XX:TieredStopAtLevel=1"
#: Seconds for the JVM to end after its session. It only has to delete its temporary files.
_JVM_EXIT_TIMEOUT = 10.0
#: The folders of the sessions that were started here and have not ended, with their JVMs.
_own: dict[Path, subprocess.Popen[bytes] | None] = {}


@contextmanager
def spark_session(spark: SparkSession | None, progress: Progress) -> Iterator[SparkSession]:
    """A session for one audit. Raises CouldNotAuditError when Spark cannot start or fails.

    A given session, or that of spark-submit or of the program, is used with a configuration of our own. Otherwise a
    local one is started, and stopped with its JVM at the end. The output of Ivy and Spark goes to a file, which is kept
    when something fails.
    """
    active, where = spark or SparkSession.getActiveSession(), "see Spark's log"
    if active is None and (SparkContext._active_spark_context or "PYSPARK_GATEWAY_PORT" in os.environ):  # noqa: SLF001
        # Spark would log the stack trace of each failed task, for a mistake that one sentence names.
        level, where = SparkConf().get("spark.log.level", "OFF"), "--conf spark.log.level=WARN shows Spark's log"
        active = SparkSession.builder.appName("txbridge audit").config("spark.log.level", str(level)).getOrCreate()
    if active is None:
        with _own_session(progress) as own, _configured(own) as session:
            yield session
        return
    with _explained(where), _configured(active) as session:
        yield session


def kill_session() -> None:
    """Kill the JVM of a session that was started here, and delete its files, for a program that is about to end.

    It may be called in any thread while the session works. A given session is left alone.
    """
    for folder, process in list(_own.items()):
        # A JVM that is being launched ends when this process does: it reads our end of a pipe.
        if process is not None:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def own_folder(spark: SparkSession) -> Path | None:
    """The folder of a session that was started here, which is deleted with it; None for a given session."""
    folder = Path(str(spark.conf.get("spark.local.dir", "")))
    return folder if folder in _own else None


@contextmanager
def _configured(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with our settings, beside the given one. Spark Connect has only the given one, so it is reset."""
    session = spark.newSession() if hasattr(spark, "newSession") else spark
    settings = {**_SETTINGS, PARALLELISM: str(_tasks_at_once(session))}
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield session
    finally:
        for name, former in before.items():
            if former is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, former)


def _tasks_at_once(spark: SparkSession) -> int:
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext.defaultParallelism
    # Spark Connect does not tell it, so count the tasks of a query.
    return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn failures of Spark into a CouldNotAuditError of one line. `where` says where the details are."""
    try:
        yield
    except _FAILURES as error:
        raise CouldNotAuditError(f"{_reason(error)}; {where}") from error


#: The retriable errors of Kafka's client that a reader meets.
_PASSING = re.compile(
    r"\borg\.apache\.kafka\.common\.errors\.((?:Timeout|Network|Disconnect|NotLeaderOrFollower|LeaderNotAvailable|"
    r"ReplicaNotAvailable|OffsetNotAvailable|KafkaStorage|CorruptRecord|(?:Fenced|Unknown)LeaderEpoch|"
    r"UnknownTopicOrPartition|(?:Unknown|Inconsistent|FetchSession)TopicId|FetchSessionIdNotFound|"
    r"InvalidFetchSessionEpoch|CoordinatorLoadInProgress|(?:Not)?Coordinator(?:NotAvailable)?|ListenerNotFound|"
    r"ThrottlingQuotaExceeded)Exception)\b"
)


@contextmanager
def elections() -> Iterator[None]:
    """Turn retriable errors of Kafka's client, in a task or in Spark's driver, into ElectionError."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = _PASSING.search(_text_of(error))
        if found is None:
            raise
        raise ElectionError(
            f"Kafka did not answer during the audit ({found[1]}: a broker is away, or a leader is being "
            "elected): check the brokers, run it again"
        ) from error


def _text_of(error: Exception) -> str:
    """What an error of Spark says. One of a task is in its text, one of the driver is a cause in the stack trace."""
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


#: What an error of Spark means, by what its text says. The first one that is found counts.
_REASONS = {
    r"Failed to find data source: kafka|DATA_SOURCE_NOT_FOUND": (
        f"this Spark lacks Kafka's connector: start it with --packages {CONNECTOR}"
    ),
    r"(?:NoClassDefFound|NoSuchMethod|NoSuchField|AbstractMethod|IncompatibleClassChange|ServiceConfiguration)Error|"
    r"ClassNotFoundException|InvalidClassException|LinkageError": (
        f"the jars of Kafka's connector are not those of this Spark, or are missing on its executors: remove them, and "
        f"start it with --packages {CONNECTOR}"
    ),
    # Where the tasks' code is imported first, it says so itself (txbridge/errors.py).
    r"No module named '(?:pyarrow|numpy)'|PACKAGE_NOT_INSTALLED|txbridge_audit needs (?:pyarrow|numpy)": (
        "the Python of Spark's executors lacks pyarrow or NumPy: install them there, or name another Python with "
        "--conf spark.pyspark.python=..."
    ),
    r"PYTHON_VERSION_MISMATCH": (
        f"Spark's executors have another Python than {sys.version_info.major}.{sys.version_info.minor}: name one of "
        "this version with --conf spark.pyspark.python=..."
    ),
    r"Some data may have been lost|OffsetOutOfRange|Cannot fetch offset": (
        "retention removed records while they were being read: run the audit again"
    ),
    r"OutOfMemoryError|Java heap space|Answer from Java side is empty|Connection refused": (
        "Spark's JVM has ended or has too little memory: give it more (spark-submit --driver-memory 8g)"
    ),
    r"Cannot fetch record for offset \d+ in (\d+) milliseconds": (
        r"Kafka did not answer for \1 ms during the audit: check the brokers, run it again"
    ),
    # Spark reads only topics that are known to exist, so no other right can be missing.
    r"Not authorized to access (topic|group)s?: \[?([^\]\s]*)": (
        r"missing right READ on \1 \2: give it to the audit's user (docs/security.md)"
    ),
}


def _reason(error: Exception) -> str:
    text = _text_of(error)
    for pattern, reason in _REASONS.items():
        if found := re.search(pattern, text):
            return found.expand(reason)
    cause = re.findall(r"^Caused by: (.*)$", text, re.MULTILINE) or text.strip().splitlines()[:1]
    return f"Spark failed: {(cause or [type(error).__name__])[-1].strip()}"


@contextmanager
def _own_session(progress: Progress) -> Iterator[SparkSession]:
    """A local session of our own."""
    folder = Path(tempfile.mkdtemp(prefix="txbridge-audit-"))
    _own[folder] = None
    log = folder / "spark.log"
    keep_log = False
    try:
        progress("starting Spark")
        try:
            spark = _start(folder, log)
        except (PySparkException, Py4JError) as error:
            raise CouldNotAuditError(f"{_diagnosis(log)}; see {log}") from error
        # Errors are explained before the session is stopped: their texts come from the JVM.
        try:
            with _explained(f"see {log}"):
                yield spark
        finally:
            # Interrupted in the middle of a request, PySpark warns that its JVM may be left behind.
            with suppress(*_FAILURES), warnings.catch_warnings(action="ignore"):
                spark.stop()
    except CouldNotAuditError as error:
        keep_log = str(log) in str(error)
        raise
    finally:
        _end(_own.pop(folder))
        if not keep_log:
            shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, log: Path) -> SparkSession:
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    settings = {
        "spark.app.name": "txbridge audit",
        # A read that a busy broker has not answered in time is repeated, as on a cluster. Else it would be fatal.
        "spark.master": f"local[{os.cpu_count() or 2},{_TASK_ATTEMPTS}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": _JVM_OPTIONS,
        "spark.jars.packages": CONNECTOR,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    conf = SparkConf().setAll(list(settings.items()))
    # Spark leaves files in its working directory, which must not be the user's.
    with log.open("wb") as out:
        gateway: Any = launch_gateway(conf, {"stdout": out, "stderr": out, "cwd": str(folder)})  # type: ignore[no-untyped-call]
    _own[folder] = gateway.proc
    # The tasks run in this Python, which has pyarrow, not in the first one of the user's PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    context: Any = SparkContext(conf=conf, gateway=gateway)
    # It would print a stack trace when the JVM is gone.
    context._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001
    # The last act of SparkContext's constructor is to set a handler of its own. That one sends the JVM a request
    # while another answer is being read, and both fail.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_ctrl_c)
    return SparkSession.builder.getOrCreate()


def _diagnosis(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "unresolved dependency" in text or "UNRESOLVED DEPENDENCIES" in text or "download failed" in text:
        return (
            f"Spark's Kafka connector ({CONNECTOR}) could not be fetched: check that a Maven "
            f"repository can be reached and has it, or name one with spark.jars.ivySettings in spark-defaults.conf. A "
            f"PySpark that was tested is installed by `pip install pyspark=={_TESTED}`"
        )
    if "JAVA_HOME is not set" in text or "UnsupportedClassVersionError" in text or "bin/java: " in text:
        return "Spark needs Java 17 or later (a full JDK or JRE): install it, or set JAVA_HOME"
    return "Spark did not start"


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End the JVM of our own session. PySpark would keep it for later sessions, and it logs into our file."""
    if process is None:
        return
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    if gateway is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_JVM_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
