"""Authorization errors, with the missing right and its resource, which Kafka's own errors do not name."""

from __future__ import annotations

from confluent_kafka import KafkaError

#: Answers that mean: this user lacks a right.
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


def is_denied(error: KafkaError) -> bool:
    return error.code() in DENIED


def missing_right(right: str, resource: str) -> str:
    """The text about a missing right; `resource` as in "topic orders"."""
    return f"missing right {right} on {resource}: grant it to the user of this connection (docs/security.md)"


def named(error: KafkaError, right: str, resource: str) -> KafkaError:
    """The same error with a text that names the missing right; any other error is returned unchanged."""
    return KafkaError(error.code(), missing_right(right, resource)) if is_denied(error) else error
