"""The source of an audit: Kafka topics as Spark DataFrames, between fixed offsets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Ends, Range, ranges
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.engines.spark.read.literals import frame, nothing_like
from txbridge_audit.engines.spark.read.spark_session import Progress
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
#: The same as text, for `literals.frame`.
RAW_FIELDS = ", ".join(f"{name}: {kind}" for name, kind in _COLUMNS.items())

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


@dataclass(frozen=True, slots=True)
class AuditSource:
    """The source of one audit: the internal topics of a namespace, on a cluster, read through a Spark session."""

    spark: SparkSession
    cluster: AuditedCluster
    settings: KafkaSettings
    names: Names
    #: The partitions of each internal topic.
    partitions: Mapping[str, Sequence[TopicPartition]]
    #: Called with a short text for each phase.
    say: Progress
    #: Empty tables by name (`none_of`).
    _nothing: dict[str, DataFrame] = field(default_factory=dict, compare=False)

    def none_of(self, name: str, like: Callable[[], DataFrame]) -> DataFrame:
        """The empty table of that name. Made once, because planning takes as long for no records as for many."""
        if name not in self._nothing:
            self._nothing[name] = nothing_like(like())
        return self._nothing[name]

    def read(self, starts: Ends, ends: Ends, isolation: str, *, may_vanish: bool = False) -> DataFrame:
        """Records of the partitions in `ends`, from `starts`; see `read` below."""
        return read(self.spark, self.settings, ranges(starts, ends), isolation, may_vanish=may_vanish)


def read(
    spark: SparkSession,
    settings: KafkaSettings,
    spans: Mapping[TopicPartition, Range],
    isolation: str,
    *,
    may_vanish: bool = False,
) -> DataFrame:
    """Records of the spans (all of them, whatever their topic) as RAW_FIELDS. Lazy: nothing is read yet.

    If retention removes a record while we read, the job fails. With `may_vanish` it skips the record instead. Then only
    records that are there prove anything.
    """
    wanted = {key: span for key, span in spans.items() if not span.empty}
    if not wanted:
        return frame(spark, [], RAW_FIELDS)
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
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .load()
        .select(*_COLUMNS)
    )
