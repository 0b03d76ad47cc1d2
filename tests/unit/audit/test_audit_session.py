"""The Spark sessions that the audit uses."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import PySparkException
from txbridge_audit.engines.spark.spark_session import CONNECTOR, PARALLELISM, spark_session
from txbridge_audit.errors import CouldNotAuditError

LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
THEIRS = {"spark.sql.session.timeZone": "Asia/Tokyo", LARGE: "true"}


class Conf(dict[str, Any]):
    """The settings of a session."""

    set, unset = dict.__setitem__, dict.__delitem__


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A session of Spark Connect. It has no SparkContext, and no second session."""
    monkeypatch.setattr("txbridge_audit.engines.spark.spark_session.F.spark_partition_id", lambda: None)
    made = MagicMock(spec=["conf", "range"], conf=Conf(THEIRS))
    made.range.return_value.select.return_value.distinct.return_value.count.return_value = 7
    return made


def session_of(remote: MagicMock) -> Any:
    return spark_session(remote, lambda _: None)


def test_a_session_of_spark_connect_has_our_settings_during_an_audit(remote: MagicMock) -> None:
    with session_of(remote) as session:
        assert session is remote
        assert (remote.conf["spark.sql.session.timeZone"], remote.conf[PARALLELISM]) == ("UTC", "7")
        assert remote.conf[LARGE] == "false"
    assert remote.conf == THEIRS


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (
            "Failed to find data source: kafka. Please deploy the application as per the deployment section of",
            f"this Spark lacks Kafka's connector: start it with --packages {CONNECTOR}",
        ),
        # The connector for another Scala.
        (
            "java.util.ServiceConfigurationError: Provider org.apache.spark.sql.kafka010.KafkaSourceProvider not found",
            f"are not those of this Spark, or are missing on its executors: .* --packages {CONNECTOR}",
        ),
        ("java.lang.ClassNotFoundException: org.apache.spark.sql.kafka010.KafkaBatchInputPartition", CONNECTOR),
        (
            "ModuleNotFoundError: No module named 'pyarrow'",
            r"lacks pyarrow or NumPy: .* --conf spark\.pyspark\.python=\.\.\.",
        ),
        ("MissingExtraError: txbridge_audit needs pyarrow: pip install 'txbridge[audit]'", "executors lacks pyarrow"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11",
            r"executors have another Python than 3\.\d+: name one of this version with --conf spark\.pyspark\.python",
        ),
        ("Cannot fetch record for offset 7 in 20000 milliseconds", "Kafka did not answer for 20000 ms"),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", "give it more .spark-submit --driver-memory"),
        ("Some data may have been lost because they are not available", "retention removed records"),
        (
            "Not authorized to access topics: [orders]",
            r"missing right READ on topic orders: give it to the audit's user",
        ),
        ("boom\nCaused by: java.io.IOException: No space left on device", "failed: java.io.IOException: No space left"),
    ],
)
def test_a_failure_of_spark_is_one_sentence_that_says_what_to_do(remote: MagicMock, said: str, means: str) -> None:
    with pytest.raises(CouldNotAuditError, match=means) as refused, session_of(remote):
        raise PySparkException(said)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("; see Spark's log")


def test_a_jvm_that_has_ended_is_named(remote: MagicMock) -> None:
    with pytest.raises(CouldNotAuditError, match="Spark's JVM has ended"), session_of(remote):
        raise ConnectionRefusedError(111, "Connection refused")
