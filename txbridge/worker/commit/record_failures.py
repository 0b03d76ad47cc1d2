"""What Kafka's answer about one record says: of the record, of its topic, or only of the Kafka transaction."""

from __future__ import annotations

from confluent_kafka import KafkaError

from txbridge.kafka.denied import named
from txbridge.kafka.endtxn_watch import FENCED_CODES
from txbridge.kafka.errors import (
    FATAL,
    MSG_TIMED_OUT,
    PURGE_INFLIGHT,
    PURGE_QUEUE,
    STATE,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
)
from txbridge.kafka.failures import RecordFailure, RecordKind, RecordName

#: What follows from another error of the same transaction, or concerns the producer and not the record.
CONSEQUENCES = FENCED_CODES | {
    PURGE_QUEUE,
    PURGE_INFLIGHT,
    STATE,
    FATAL,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.CONCURRENT_TRANSACTIONS,
}
#: Says that the topic as a whole takes nothing now.
_WHOLE_TOPIC = frozenset(
    {
        MSG_TIMED_OUT,
        UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    },
)
#: Says that it is this record, whatever else was in its batch.
_THIS_RECORD = frozenset({UNKNOWN_PARTITION})


def failure_of(
    kind: RecordKind, topic: str, which: RecordName, error: KafkaError, *, alone: bool, in_part: bool
) -> RecordFailure:
    """`alone`: nothing else went out with it. `in_part`: the topic took another record."""
    code = error.code()
    return RecordFailure(
        kind=kind,
        topic=topic,
        which=which,
        reason=named(error, "WRITE", f"topic {topic}").str(),
        whole_topic=code in _WHOLE_TOPIC,
        alone=alone or code in _THIS_RECORD,
        too_large=code == KafkaError.MSG_SIZE_TOO_LARGE,
        timed_out=code == MSG_TIMED_OUT,
        in_part=in_part,
    )
