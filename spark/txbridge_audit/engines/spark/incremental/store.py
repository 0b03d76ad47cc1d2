"""The place of a continued audit's state: `_state` in the ledger's folder, on a file system with an atomic rename.

A step writes its rows under its own number. Then it writes its state as `<number>.json`, atomically and only if there
is none. So an unfinished step does not count, and of two audits that continue the same ledger one fails.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from txbridge_audit.cluster.cuts import Ends
from txbridge_audit.engines.spark.incremental.state import AuditState
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.report.filesystems import refuse_without_rename
from txbridge_audit.report.formats import local_folder

#: Kinds of folders that only the step itself needs.
_WITHIN = frozenset({"new", "facts", "again", "verdicts"})
#: Folder of the state in the ledger's folder. Readers of Parquet ignore names that begin with an underscore.
_FOLDER = "_state"
#: Digits of a step's number, so that the names of files sort like the numbers.
_DIGITS = 9


class Store:
    """The state of one ledger."""

    def __init__(self, spark: SparkSession, ledger: str) -> None:
        self._ledger = ledger.rstrip("/")
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001  (there is no other way to Hadoop's file systems)
        self._spark = spark
        root = self._hadoop_path(self.folder)
        self._files = root.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
        # The file system of a plain path comes from Hadoop's configuration (fs.defaultFS).
        refuse_without_rename(str(self._files.getUri().getScheme()).lower())
        # The file system qualifies the path, so that relative paths mean the same as in Spark.
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            root.makeQualified(self._files.getUri(), self._files.getWorkingDirectory()).toUri(),
            context._jsc.hadoopConfiguration(),  # noqa: SLF001
        )

    @property
    def folder(self) -> str:
        """The folder of the state."""
        return f"{self._ledger}/{_FOLDER}"

    def rows_path(self, step: int) -> str:
        """The rows that a step leaves to the next one."""
        return self._path_of("rows", step)

    def new_path(self, step: int) -> str:
        """The records that a step has read, so that none of its jobs reads Kafka again."""
        return self._path_of("new", step)

    def facts_path(self, step: int) -> str:
        """The facts that a step judges. A dozen jobs read them, and are planned quickly because they begin here."""
        return self._path_of("facts", step)

    def again_path(self, step: int) -> str:
        """The facts after closed transactions were added again. The first facts are still read meanwhile."""
        return self._path_of("again", step)

    def verdicts_path(self, step: int) -> str:
        """The facts with verdicts."""
        return self._path_of("verdicts", step)

    def closed_path(self, step: int) -> str:
        """The rows of the transactions that a step has closed."""
        return self._path_of("closed", step)

    def closed_verdicts_path(self, step: int) -> str:
        """The columns COUNTED of the transactions that a step has closed."""
        return self._path_of("closed_verdicts", step)

    def _path_of(self, kind: str, step: int) -> str:
        return f"{self.folder}/{kind}-{step:0{_DIGITS}}"

    def ledger_path(self, step: int) -> str:
        """The rows of the ledger that a step writes; readers of Parquet see the number as a column."""
        return f"{self._ledger}/step={step}"

    def names_beside(self) -> list[str]:
        """Names of the files and folders in the ledger's folder."""
        root = self._hadoop_path(self._ledger)
        if not self._files.exists(root):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(root)]

    def last_state(self) -> AuditState | None:
        """The state after the last step; None before the first. Raises CouldNotAuditError when it cannot be read."""
        numbers = self._step_numbers()
        if not numbers:
            return None
        (row,) = self._spark.read.text(self._state_path(max(numbers)), wholetext=True).collect()
        return AuditState.from_json(row.value)

    def commit_state(self, state: AuditState) -> None:
        """Make a step count. Raises CouldNotAuditError when another audit has made the same step."""
        target, unfinished = (
            self._hadoop_path(self._state_path(state.step)),
            self._hadoop_path(f"{self._state_path(state.step)}.new"),
        )
        stream = self._files.create(unfinished, True)  # Java: overwrite
        try:
            stream.write(bytearray(state.to_json(), "utf-8"))
        finally:
            stream.close()
        gateway: Any = self._spark.sparkContext._gateway  # noqa: SLF001
        options = gateway.new_array(getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 0)
        try:
            self._context.rename(self._qualify_path(unfinished), self._qualify_path(target), options)
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" not in str(error.java_exception):
                raise
            raise CouldNotAuditError(
                f"another audit has continued the ledger in {self._ledger} at the same time: let one run at a time",
            ) from error

    def delete_unneeded(self, state: AuditState) -> None:
        """Delete files that no step needs any more. A deletion that fails is repeated after a later step."""
        archives = {archive.step for archive in state.archives}
        for status in self._files.listStatus(self._hadoop_path(self.folder)):
            path = status.getPath()
            kind, _, rest = path.getName().partition("-")
            number = rest if rest.isdigit() else path.getName().partition(".")[0]
            if not number.isdigit():
                continue
            needed = archives if kind in {"closed", "closed_verdicts"} else set() if kind in _WITHIN else {state.step}
            # Higher numbers belong to a step that another audit is making.
            if int(number) <= state.step and int(number) not in needed:
                with suppress(Py4JError):
                    self._files.delete(path, True)  # Java: recursive

    def _step_numbers(self) -> list[int]:
        root = self._hadoop_path(self.folder)
        if not self._files.exists(root):
            return []
        names = (status.getPath().getName() for status in self._files.listStatus(root))
        return [int(name.removesuffix(".json")) for name in names if name.endswith(".json")]

    def _state_path(self, step: int) -> str:
        return f"{self.folder}/{step:0{_DIGITS}}.json"

    def _hadoop_path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)

    def _qualify_path(self, path: Any) -> Any:
        return self._files.makeQualified(path)


def positions_before_spark(ledger: str) -> Ends:
    """Offsets up to which the last step has read. Empty if only Spark can read the state, or if there is none."""
    folder = local_folder(ledger)
    states = [] if folder is None else sorted((folder / _FOLDER).glob("*.json"))
    if not states:
        return {}
    try:
        text = states[-1].read_text("utf-8")
    except OSError:  # Spark explains it, or another audit of this ledger has deleted the file after its own step.
        return {}
    return AuditState.from_json(text).positions
