"""Which Spark sessions the audit takes."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.read.spark_session import spark_session


class Remote:
    """Spark Connect's session, whose attributes of the JVM raise PySparkAttributeError."""

    def newSession(self) -> None:  # noqa: N802  Spark's name
        raise AssertionError


def test_spark_connect_is_refused_with_what_to_use_instead() -> None:
    refused = pytest.raises(CouldNotAuditError, match="cannot run over Spark Connect: use spark-submit")
    with refused, spark_session(cast(SparkSession, Remote()), lambda _: None):
        raise AssertionError
