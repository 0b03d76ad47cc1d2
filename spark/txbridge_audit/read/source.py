"""The source of one audit: the internal topics of a namespace, on a cluster, read through a Spark session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from txbridge.core.names import Names
from txbridge_audit.read import kafka_source
from txbridge_audit.read.cuts import Ends, TopicPartition, ranges
from txbridge_audit.read.kafka_admin import Cluster
from txbridge_audit.read.kafka_config import KafkaSettings
from txbridge_audit.read.spark_session import Progress


@dataclass(frozen=True, slots=True)
class Source:
    """Where an audit reads."""

    spark: SparkSession
    cluster: Cluster
    settings: KafkaSettings
    names: Names
    #: Of each internal topic.
    partitions: Mapping[str, Sequence[TopicPartition]]
    #: Is told, in words, what is going on.
    say: Progress

    def read(self, starts: Ends, ends: Ends, isolation: str, *, may_vanish: bool = False) -> DataFrame:
        """Records of the partitions in `ends`, from `starts`. Lazy; see kafka_source.py."""
        return kafka_source.read(self.spark, self.settings, ranges(starts, ends), isolation, may_vanish=may_vanish)
