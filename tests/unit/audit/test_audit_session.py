"""Which Spark sessions the audit takes."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.read.beside import beside
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
