"""Errors of one transaction. `txbridge.errors` has those of a call and of the cluster."""

from __future__ import annotations

from confluent_kafka import KafkaError

from txbridge.core.names import short_id
from txbridge.errors import TxBridgeError, UsageError
from txbridge.kafka.errors import LASTING


class PrepareError(TxBridgeError):
    """The attempt failed before its local transaction was run (RocketMQ's MQClientException).

    As a rule, Kafka did not acknowledge the half message. Sending again is always safe, because each attempt is a
    transaction of its own. If Kafka has stored this half message after all, its check is answered with rollback.
    """

    def __init__(self, message: str, cause: KafkaError | None = None) -> None:
        super().__init__(message)
        #: The error from librdkafka or the broker; None if there is none.
        self.cause = cause

    @property
    def passes(self) -> bool:
        """Whether Kafka may take the message later, without anybody's doing."""
        return self.cause is not None and self.cause.code() not in LASTING


class EndTransactionError(TxBridgeError):
    """Kafka did not acknowledge the END. The transaction is not lost: the worker will ask `check_local_transaction`."""

    def __init__(self, message: str, cause: KafkaError | None = None) -> None:
        super().__init__(message)
        #: The error from librdkafka or the broker; None if there is none, as when the producer was closed first.
        self.cause = cause


class OutcomeUnknownError(TxBridgeError):
    """An announcement has ended, and nobody knows its outcome: COMMIT was not answered, or the body has sent its own.

    A check of the worker decides it, so the message is delivered if and only if the data is there. Its cause is what
    went wrong.
    """

    def __init__(self, transaction_id: str) -> None:
        super().__init__(
            f"nobody knows the outcome of transaction {short_id(transaction_id)}: a check will find it. Before you "
            "repeat the request, look whether its data is there"
        )
        #: Name of the transaction. Anyone who knows it can decide it, so show no more than its first 8 characters.
        self.transaction_id = transaction_id


class AlreadyDoneError(TxBridgeError):
    """An announcement's key (`once`) was committed before. The block was not run, and nothing is announced again."""

    def __init__(self, transaction_id: str) -> None:
        super().__init__(f"transaction {short_id(transaction_id)} has done this before: nothing was done again")
        #: Name of the first transaction, which its block may have stored with its data. Keep it secret, as every one.
        self.transaction_id = transaction_id


#: What `announce` raises, and a web service has an answer to.
AnnouncementError = PrepareError | OutcomeUnknownError | AlreadyDoneError


def answer_of(error: AnnouncementError) -> tuple[int, dict[str, str], dict[str, str]]:
    """Return what a web service answers: status, body and headers."""
    if isinstance(error, AlreadyDoneError):
        # To a caller that had no answer, the repetition is the success that it has missed.
        return 200, {"done": "before", "transaction": short_id(error.transaction_id)}, {}
    if isinstance(error, OutcomeUnknownError):
        return 503, {"error": "not known yet", "transaction": short_id(error.transaction_id)}, {}
    # A second: shorter than most outages, and no burden.
    return 503, {"error": "nothing has happened: try again"}, {"Retry-After": "1"}


def closed() -> UsageError:
    """Return the error that a call after close() raises."""
    return UsageError("this client is closed; create a new one")


def started_before_a_fork() -> UsageError:
    """Return the error that a call in a forked child raises."""
    return UsageError("this client was started before a fork; create one in the child")
