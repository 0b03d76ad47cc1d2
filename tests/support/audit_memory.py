"""A log in memory for the unit tests of the audit: the records of audit_cases.py as Spark's raw and typed rows."""

from __future__ import annotations

import base64
import datetime as dt
from collections import Counter

from pyspark.sql import DataFrame, SparkSession
from txbridge_audit.engines.spark.read import decode, literals
from txbridge_audit.engines.spark.read.frames import Frames
from txbridge_audit.engines.spark.read.kafka_source import RAW_FIELDS
from txbridge_audit.judge.facts import Facts, HalfFacts, RealTopicFacts, TopicPartition

from tests.support.audit_terms import COMPACTED, FORWARDED, ORDERS, PASSED, PLAIN, Log, Record
from txbridge.core.names import Names

#: Timestamp of every half message (ms).
BORN = 1_700_000_000_000
DAY = 24 * 3_600_000


def encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


class Memory(Log):
    """A log in memory. Kafka transactions are atomic here, so there are no markers. Aborted transactions leave gaps."""

    def __init__(self) -> None:
        super().__init__(Names("unit"))
        self.recently = BORN - 60_000
        self.records: list[Record] = []
        self._next: Counter[TopicPartition] = Counter()

    def write(self, record: Record) -> None:
        key = (record.topic, record.partition)
        record.at.append(self._next[key])
        record.stamped.append(BORN if record.dated is None else record.dated)
        self._next[key] += 1
        self.records.append(record)

    def transaction(self, *written: Record) -> None:
        for record in written:
            self.write(record)

    def aborted(self, *written: Record) -> None:
        for record in written:
            self._next[record.topic, record.partition] += 1

    def end_of(self, topic: str, partition: int = 0) -> int:
        return self._next[topic, partition]

    def frame(self, spark: SparkSession, *topics: str) -> DataFrame:
        rows = [
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": dt.datetime.fromtimestamp(record.stamped[0] / 1000, tz=dt.UTC).isoformat(),
                "timestampType": int(record.dated is None),
                "key": encoded(record.key),
                "value": encoded(record.value),
                "headers": [{"key": name, "value": encoded(value)} for name, value in record.headers],
            }
            for record in self.records
            if record.topic in topics
        ]
        return literals.frame(spark, rows, RAW_FIELDS)

    def frames(self, spark: SparkSession, *, exactly: bool = False) -> Frames:
        names = self.names
        internal = {names.half, names.end, names.op, names.offset, names.discard}
        real = {record.topic for record in self.records} - internal - {names.check("billing")}
        ends = decode.decision_records(self.frame(spark, names.end), exactly=exactly)
        return Frames(
            halves=decode.halves(self.frame(spark, names.half)),
            entries=decode.entries(ends),
            bad_ends=decode.unreadable(ends),
            outcomes=decode.outcomes(decode.op_records(self.frame(spark, names.op))),
            parked=decode.parked(self.frame(spark, names.offset), names),
            discards=decode.discards(self.frame(spark, names.discard)),
            copies=decode.copies(self.frame(spark, *real), {ORDERS: 2, FORWARDED: 1, COMPACTED: 1}),
            checks=decode.checks(self.frame(spark, names.check("billing"))),
        )

    def facts(self, **changed: object) -> Facts:
        """Facts of a fully applied log without removed records, with all real records below the earlier cut."""
        partitions = [HalfFacts(p, half_start=0, applied_to=self.end_position[p], low=0) for p in (PLAIN, PASSED)]
        before = {(r.topic, r.partition): 1_000_000 for r in self.records}
        known: dict[str, object] = {
            "partitions": partitions,
            "topics": [RealTopicFacts(ORDERS), RealTopicFacts(COMPACTED, compacted=True), RealTopicFacts(FORWARDED)],
            "before": before,
            "now": BORN + DAY,
        }
        return Facts(**(known | changed))  # type: ignore[arg-type]
