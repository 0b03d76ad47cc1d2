"""Which Spark sessions the audit takes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.read import decode
from txbridge_audit.read.beside import beside
from txbridge_audit.read.frame_cache import FrameCache
from txbridge_audit.read.jvm_names import remember
from txbridge_audit.read.kafka_source import RAW_FIELDS
from txbridge_audit.read.literals import frame
from txbridge_audit.read.once import once
from txbridge_audit.read.spark_session import FEW, spark_session, suit

pytestmark = [
    # py4j closes its sockets to the JVM in finalisers.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Remote:
    """Spark Connect's session, whose attributes of the JVM raise PySparkAttributeError."""

    def newSession(self) -> None:  # noqa: N802  Spark's name
        raise AssertionError


def test_spark_connect_is_refused_with_what_to_use_instead() -> None:
    refused = pytest.raises(CouldNotAuditError, match="cannot run over Spark Connect: use spark-submit")
    with refused, spark_session(cast(SparkSession, Remote()), lambda _: None):
        raise AssertionError


def test_rules_that_few_rows_do_without_are_rules_of_this_spark(spark: SparkSession) -> None:
    """Spark passes over a name that it does not know without a word."""
    context: Any = spark.sparkContext
    suit(spark, FEW)
    excluded = spark.conf.get("spark.sql.optimizer.excludedRules")
    assert excluded
    for name in excluded.split(","):
        # A rule is an object, or a class with settings.
        assert any(_is_there(context._jvm, name + mark) for mark in ("$", "")), name
    suit(spark, FEW + 1)
    assert spark.conf.get("spark.sql.optimizer.excludedRules") == ""


def _is_there(jvm: Any, name: str) -> bool:
    return jvm.org.apache.spark.util.Utils.classIsLoadable(name) is True


def test_a_job_beside_others_tells_what_it_has_found_and_what_it_has_raised(spark: SparkSession) -> None:
    here = threading.get_ident()
    found = beside(spark, lambda: (threading.get_ident() != here, spark.range(3).count()))
    assert found() == (True, 3)

    def fails() -> None:
        raise CouldNotAuditError("no")

    with pytest.raises(CouldNotAuditError, match=r"^no$"):
        beside(spark, fails)()


def test_columns_are_made_once_in_a_jvm_and_anew_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, str]] = []

    @once
    def column(number: int, *, name: str) -> object:
        made.append((number, name))
        return object()

    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    first = column(1, name="a")
    assert column(1, name="a") is first
    assert column(1, name="b") is not first
    assert made == [(1, "a"), (1, "b")]
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    assert column(1, name="a") is not first
    assert made == [(1, "a"), (1, "b"), (1, "a")]


def test_the_jvm_is_asked_once_for_a_function() -> None:
    asked: list[str] = []

    class Java:
        def __getattr__(self, name: str) -> str:
            asked.append(name)
            return name.upper()

    jvm = SimpleNamespace(functions=Java(), PythonUtils=Java(), PythonSQLUtils=Java())
    setattr(jvm, "org.apache.spark.sql.functions", Java())
    remember(jvm)
    assert [jvm.functions.col, jvm.functions.lit, jvm.functions.col] == ["COL", "LIT", "COL"]
    assert asked == ["col", "lit"]


def test_the_same_query_again_is_made_with_few_calls_into_the_jvm(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower makes the same queries in every step; a call takes longer than a record."""
    raw = frame(spark, [], RAW_FIELDS)
    decode.halves(raw)
    calls, send = [], GatewayClient.send_command

    def counted(client: GatewayClient, command: str, *others: object, **more: object) -> object:
        # "m" tells the JVM that Python has let go of something, whenever that was.
        if not command.startswith("m"):
            calls.append(command)
        return send(client, command, *others, **more)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    decode.halves(raw)
    # For each of 16 and 12 columns one, and a few for the two lists of them; to make the columns takes some hundred.
    assert len(calls) < 50


def test_what_is_held_is_read_as_often_as_one_likes_until_it_is_let_go(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    kept = context._jsc.getPersistentRDDs
    before = set(kept())
    with FrameCache(spark) as cache:
        three = cache.hold(spark.range(3))
        assert (three.count(), three.where("id > 0").count()) == (3, 2)
        assert set(kept()) - before
    assert set(kept()) <= before
