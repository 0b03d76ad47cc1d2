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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from txbridge_audit.cluster.plan import Progress
from txbridge_audit.engines.spark import delta_lake
from txbridge_audit.errors import CouldNotAuditError, ElectionError

#: The newest PySpark that the audit is tested with (docs/compatibility.md).
_TESTED = "4.1.1"
#: The connector must have Spark's own version, because it uses Spark's internals.
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"

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
    # judging.py knows how many tasks there are to be.
    "spark.sql.adaptive.enabled": "false",
}
_TASK_ATTEMPTS = 4
_JAVA = 17
#: HotSpot's optimising compiler works for long before it saves anything. Without it HotSpot's cache for code is
#: smaller, and when that is full nothing is compiled any more.
_QUICK_START = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
#: Nobody waits for an answer meanwhile, so pauses for garbage collection may be long.
_UNDISTURBED = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC"
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
    with_delta: bool = False,
) -> Iterator[SparkSession]:
    """A session for one audit. Raises CouldNotAuditError when Spark cannot start or fails.

    A given session, or that of spark-submit or of the program, is used with a configuration of our own (`newSession`).
    Otherwise a local one is started, and stopped with its JVM at the end. The output of Ivy and Spark goes to a file,
    which is kept when something fails.

    `small` says that the session ends before optimised code would pay off, `with_delta` that a ledger is written as a
    Delta Lake table.
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
        with _explained(f"see {log}"):
            packages = [CONNECTOR] * connector + [delta_lake.PACKAGE] * with_delta
            own = _start(workdir, log, progress, packages, _QUICK_START if small else _UNDISTURBED)
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


def own_folder(spark: SparkSession) -> Path | None:
    """The folder of a session that was started here, which is deleted with it; None for a given session."""
    folder = Path(str(spark.sparkContext.getConf().get("spark.local.dir", "")))
    return folder if folder in _own_folders else None


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn failures of Spark into a CouldNotAuditError of one line. `where` says where the details are."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
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
        # An error of a task is in the text, one of the driver is a cause in the stack trace.
        found = _PASSING.search(f"{error}\n{getattr(error, '_stackTrace', '')}")
        if found is None:
            raise
        raise ElectionError(
            f"Kafka did not answer during the audit ({found[1]}: a broker is away, or a leader is being "
            "elected): check the brokers, run it again",
        ) from error


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
    # Spark Connect has no SparkContext, which tells how many tasks run at once.
    if not hasattr(spark, "sparkContext"):
        raise CouldNotAuditError(
            "the audit cannot run over Spark Connect: use spark-submit, or let it start a Spark of its own",
        )
    if with_delta:
        delta_lake.refuse_without(spark)
    session = spark.newSession()
    for name, value in _SETTINGS.items():
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


def _start(workdir: Path, log: Path, progress: Progress, packages: Sequence[str], options: str) -> SparkSession:
    _check_java()
    on_ctrl_c = signal.getsignal(signal.SIGINT)
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
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.sql.catalogImplementation", "in-memory"),
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
        with log.open("wb") as out:
            gateway = launch_gateway(conf, {"stdout": out, "stderr": out, "cwd": str(workdir)})  # type: ignore[no-untyped-call]
        # The tasks run in this Python, which has pyarrow, not in the first one of the user's PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        SparkContext(conf=conf, gateway=gateway)
        # The last act of SparkContext's constructor is to set a handler of its own. That one sends the JVM a request
        # while another answer is being read, and both fail.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, on_ctrl_c)
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
