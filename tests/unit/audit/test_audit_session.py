"""The Spark sessions that the audit uses."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from txbridge_audit.engines.spark import delta_lake
from txbridge_audit.engines.spark.spark_session import CONNECTOR, _announce_fetching, spark_session
from txbridge_audit.errors import CouldNotAuditError


class Remote:
    """Spark Connect's session, whose attributes of the JVM raise PySparkAttributeError."""

    def newSession(self) -> None:  # noqa: N802  Spark's name
        raise AssertionError


def test_spark_connect_is_refused_with_what_to_use_instead() -> None:
    refused = pytest.raises(CouldNotAuditError, match="cannot run over Spark Connect: use spark-submit")
    with refused, spark_session(cast(SparkSession, Remote()), lambda _: None):
        raise AssertionError


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
