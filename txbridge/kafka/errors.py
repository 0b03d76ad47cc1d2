"""Error codes of librdkafka by public names, where confluent-kafka has an underscore, and what they mean."""
# ruff: noqa: SLF001

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from txbridge.kafka.failures import TakeOverRefusedError

ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN
AUTHENTICATION = KafkaError._AUTHENTICATION
AUTO_OFFSET_RESET = KafkaError._AUTO_OFFSET_RESET
FAIL = KafkaError._FAIL
FATAL = KafkaError._FATAL
FENCED = KafkaError._FENCED
INVALID_DIFFERENT_RECORD = KafkaError._INVALID_DIFFERENT_RECORD
LOG_TRUNCATION = KafkaError._LOG_TRUNCATION
MAX_POLL_EXCEEDED = KafkaError._MAX_POLL_EXCEEDED
MSG_TIMED_OUT = KafkaError._MSG_TIMED_OUT
PARTITION_EOF = KafkaError._PARTITION_EOF
PURGE_INFLIGHT = KafkaError._PURGE_INFLIGHT
PURGE_QUEUE = KafkaError._PURGE_QUEUE
QUEUE_FULL = KafkaError._QUEUE_FULL
RESOLVE = KafkaError._RESOLVE
SSL = KafkaError._SSL
STATE = KafkaError._STATE
TIMED_OUT = KafkaError._TIMED_OUT
TRANSPORT = KafkaError._TRANSPORT
UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION
UNKNOWN_TOPIC = KafkaError._UNKNOWN_TOPIC

#: A partition has no leader for a moment when it is new or its broker restarts.
NO_LEADER = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
NO_LEADER |= {KafkaError.UNKNOWN_TOPIC_OR_PART, UNKNOWN_PARTITION}


#: librdkafka cannot unpack a batch of records, or read what is in it. It gives up at receive.message.max.bytes, 100 MB.
UNREADABLE = {KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG}

#: Answers that mean: this user lacks a right.
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def unreadable_batch(error: KafkaError, topic: str, partition: int) -> TakeOverRefusedError:
    """What a person has to know who is to pass such a batch. librdkafka's text names its offset."""
    return TakeOverRefusedError(
        f"{topic}[{partition}] has records that nobody can read ({error.str()}): they are damaged, or unpack to more "
        "than 100 MB. How to pass them: docs/incidents.md#a-batch-that-nobody-can-read"
    )


def is_missing_topic(error: BaseException | None) -> bool:
    """Whether this is a broker's answer that there is no such topic."""
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def is_denied(error: KafkaError) -> bool:
    return error.code() in DENIED


def missing_right(right: str, resource: str) -> str:
    """The text about a missing right; `resource` as in "topic orders"."""
    return f"missing right {right} on {resource}: grant it to the user of this connection (docs/security.md)"


def named(error: KafkaError, right: str, resource: str) -> KafkaError:
    """The same error with a text that names the missing right, which Kafka does not; any other one unchanged."""
    return KafkaError(error.code(), missing_right(right, resource)) if is_denied(error) else error
