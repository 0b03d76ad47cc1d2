"""One Spark for all tests of a process. The tests have few rows: compiling code would cost more than it saves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import txbridge_audit
from pyspark.sql import SparkSession
from txbridge_audit.engines.spark.spark_session import spark_session

INTERPRETED = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@contextmanager
def running_spark() -> Iterator[SparkSession]:
    """A JVM with Kafka's connector. It takes ten seconds to start and another ten to warm up."""
    with spark_session(None, lambda _: None) as session:
        yield session


@contextmanager
def interpreting_session(running: SparkSession, shuffle_partitions: int = 1) -> Iterator[SparkSession]:
    """A session of its own in the running Spark. Audits that get it interpret their queries, too."""
    settings = {**INTERPRETED, "spark.sql.shuffle.partitions": str(shuffle_partitions)}
    with pytest.MonkeyPatch.context() as patch, spark_session(running, lambda _: None) as session:
        for name, value in settings.items():
            patch.setitem(txbridge_audit.engines.spark.spark_session._SETTINGS, name, value)
            session.conf.set(name, value)
        yield session
