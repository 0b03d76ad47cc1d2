"""The source of an audit by Spark: Kafka topics as Spark DataFrames, between fixed offsets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.engines.spark.spark_session import PARALLELISM
from txbridge_audit.judge.facts import TopicPartition

#: Columns of every raw frame with their types: those of Spark's Kafka source that are used.
_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
}
#: The same as text.
_SCHEMA = ", ".join(f"{name}: {kind}" for name, kind in _COLUMNS.items())

#: Time-out of Spark's poll, ms. A task fails when no record comes for so long before the end of its range. A broker on
#: an overloaded machine must answer within this time. The default of two minutes would hide a dead broker for too long.
#: Where only markers of Kafka transactions are left, Kafka's client returns once it is past them, without the time-out.
POLL_TIMEOUT_MS = 20_000

#: Spark requests the first and the last offset after every poll. With Kafka's 500 records a poll that costs more than
#: the records. The size of a poll is bounded in bytes, too, so large records make it smaller. Kafka's client requests
#: the next records before they are needed. At the end of a partition the broker would keep that request, and those
#: behind it, for 500 ms in each task.
_POLLS = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "20",
}

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


def read(
    spark: SparkSession,
    settings: KafkaSettings,
    spans: Mapping[TopicPartition, Range],
    isolation: str,
    *,
    may_vanish: bool = False,
) -> DataFrame:
    """Records of the spans (all of them, whatever their topic) with _COLUMNS. Lazy: nothing is read yet.

    If retention removes a record while we read, the job fails. With `may_vanish` it skips the record instead. Then only
    records that are there prove anything.
    """
    wanted = {key: span for key, span in spans.items() if not span.empty}
    if not wanted:
        return spark.createDataFrame([], _SCHEMA)
    partitions: dict[str, list[int]] = defaultdict(list)
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), span in sorted(wanted.items()):
        partitions[topic].append(partition)
        starts[topic][str(partition)] = span.start
        ends[topic][str(partition)] = span.end
    reader = spark.read.format("kafka").options(**_POLLS).options(**dict(settings.spark))
    return (
        reader.option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("kafka.isolation.level", isolation)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false" if may_vanish else "true")
        .option("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS))
        # So that a topic of one partition keeps every core busy. Order within a partition does not matter to us.
        .option("minPartitions", str(spark.conf.get(PARALLELISM)))
        .load()
        .select(*_COLUMNS)
    )
