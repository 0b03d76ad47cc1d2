"""Writer of END commands by hand, with operator and reason, up to Kafka's acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from txbridge.core.decision_record import Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.denied import named
from txbridge.kafka.errors import MSG_TIMED_OUT
from txbridge.kafka.fence import guarded
from txbridge.operations.actions import ActionRule
from txbridge.operations.connection import Connection, kafka_errors
from txbridge.operations.model import OpenMessage

#: Most characters of an operator's name, which is in a header of every record.
_LONGEST_OPERATOR = 200
#: A little longer (s) than message.timeout.ms, after which librdkafka gives a record up and reports that.
_FLUSH_TIMEOUT_S = kafka_config.END_MESSAGE_TIMEOUT_MS / 1000 + 5


def check_words(reason: str, operator: str) -> tuple[str, str]:
    """Return reason and operator without surrounding blanks. Raises UsageError when they cannot be recorded."""
    reason, operator = reason.strip(), operator.strip()
    if not reason:
        raise UsageError("a reason is needed: it is recorded with the decision (--reason)")
    if not operator:
        raise UsageError("an operator is needed: the name is recorded with the decision (--operator)")
    if len(operator) > _LONGEST_OPERATOR:
        raise UsageError(f"the operator's name is longer than {_LONGEST_OPERATOR} characters")
    # The encoding cuts long remarks of exceptions; a person's reason must be recorded in full.
    sample = DecisionEntry(0, "0" * 32, Decision.UNKNOWN, None, reason)
    value, headers = encode_end([sample], "group", Source.OPERATOR, None)
    if parse_end(0, value, headers).entries[0].remark != reason:
        raise UsageError("the reason is too long, or not text: at most 2,048 characters, percent-encoded as UTF-8")
    return reason, operator


def write_end(
    connection: Connection, messages: Sequence[OpenMessage], rule: ActionRule, reason: str, operator: str
) -> int:
    """Write one END record about these messages of one partition and group; returns its offset.

    The operator is its CLIENT_ID, the reason the remark of each entry (docs/protocol.md).
    Raises EnvironmentProblemError when Kafka has not acknowledged it, KafkaUnreachableError.
    """
    partition, group = messages[0].partition, messages[0].group
    entries = [DecisionEntry(one.half_offset, one.transaction_id, rule.decision, None, reason) for one in messages]
    value, headers = encode_end(entries, group, rule.source, operator)
    topic = connection.names.end
    reports: list[tuple[KafkaError | None, Message]] = []
    producer = kafka_config.create(Producer, kafka_config.end_producer_config(connection.kafka))
    with kafka_errors(f"writing to {topic}[{partition}]"):
        producer.produce(
            topic,
            value=value,
            partition=partition,
            headers=list(headers),
            on_delivery=lambda error, message: reports.append((error, message)),
        )
        try:
            guarded(producer.flush, _FLUSH_TIMEOUT_S)
        except KafkaException as failure:
            # Kafka gives not even a producer id to a user without any right to write.
            raise KafkaException(named(failure.args[0], "WRITE", f"topic {topic}")) from failure
        if not reports:
            raise EnvironmentProblemError(_unknown(topic, partition, "no answer"))
        error, message = reports[0]
        if error is None:
            offset = message.offset()
            assert offset is not None
            return offset
        if error.code() == MSG_TIMED_OUT:
            raise EnvironmentProblemError(_unknown(topic, partition, error.str()))
        raise KafkaException(named(error, "WRITE", f"topic {topic}"))


def _unknown(topic: str, partition: int, why: str) -> str:
    return (
        f"Kafka did not acknowledge the command in {topic}[{partition}] ({why}). It may be stored: check with "
        f"`txbridge pending` before you repeat it"
    )
