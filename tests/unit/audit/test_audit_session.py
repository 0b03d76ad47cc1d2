"""The Spark sessions that the audit uses."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from txbridge_audit.engines.spark.read import decode, delta_lake
from txbridge_audit.engines.spark.read.beside import beside
from txbridge_audit.engines.spark.read.frame_cache import FrameCache
from txbridge_audit.engines.spark.read.kafka_source import RAW_FIELDS
from txbridge_audit.engines.spark.read.literals import frame
from txbridge_audit.engines.spark.read.spark_session import CONNECTOR, FEW, _announce_fetching, spark_session, suit
from txbridge_audit.errors import CouldNotAuditError


class Remote:
    """Spark Connect's session, whose attributes of the JVM raise PySparkAttributeError."""

    def newSession(self) -> None:  # noqa: N802  Spark's name
        raise AssertionError


def test_spark_connect_is_refused_with_what_to_use_instead() -> None:
    refused = pytest.raises(CouldNotAuditError, match="cannot run over Spark Connect: use spark-submit")
    with refused, spark_session(cast(SparkSession, Remote()), lambda _: None):
        raise AssertionError


def test_rules_that_few_rows_do_without_are_rules_of_this_spark(spark: SparkSession) -> None:
    """Spark ignores an unknown rule name without a warning."""
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


def test_the_same_query_again_is_made_with_few_calls_into_the_jvm(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower makes the same queries in every step, and a call takes longer than a record."""
    raw = frame(spark, [], RAW_FIELDS)
    decode.halves(raw)
    calls, send = [], GatewayClient.send_command

    def counted(client: GatewayClient, command: str, *others: object, **more: object) -> object:
        # "m" tells the JVM that Python has deleted an object, at any time.
        if not command.startswith("m"):
            calls.append(command)
        return send(client, command, *others, **more)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    decode.halves(raw)
    # One call for each of 16 and 12 columns, and a few for the two lists of them. Making the columns takes some
    # hundred.
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


@pytest.mark.parametrize(
    ("fetched", "said"),
    [
        ([], ["fetching Spark's Kafka connector and Delta Lake once (~25 s)"]),
        ([CONNECTOR], ["fetching Delta Lake once (~25 s)"]),
        ([delta_lake.PACKAGE], ["fetching Spark's Kafka connector once (~25 s)"]),
        ([CONNECTOR, delta_lake.PACKAGE], []),
    ],
)
def test_the_packages_that_are_fetched_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fetched: list[str], said: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    jars = tmp_path / ".ivy2.5.2" / "jars"
    jars.mkdir(parents=True)
    for package in fetched:
        group, name, version = package.split(":")
        (jars / f"{group}_{name}-{version}.jar").touch()
    told: list[str] = []
    _announce_fetching([CONNECTOR, delta_lake.PACKAGE], told.append)
    assert told == said
