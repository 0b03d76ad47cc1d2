"""Delivery reports of one Kafka transaction, and the failures that they show, of a record or of a whole topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from confluent_kafka import KafkaError, Message

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

#: Errors that follow from another error of the same transaction, or that concern the producer and not the record.
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
#: Errors which say that the topic takes no records now.
_WHOLE_TOPIC = frozenset(
    {
        MSG_TIMED_OUT,
        UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    },
)
#: Errors which say that this record is at fault, whatever else was in its batch.
_THIS_RECORD = frozenset({UNKNOWN_PARTITION})


def _failure_of(
    kind: RecordKind, topic: str, which: RecordName, error: KafkaError, *, alone: bool, in_part: bool
) -> RecordFailure:
    """The failure of one record. `alone`: it went out without others. `in_part`: the topic took another record."""
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


class Reports:
    """The delivery reports of one Kafka transaction; complete when everything was flushed."""

    def __init__(self) -> None:
        self._failed: list[tuple[RecordKind, str, RecordName, KafkaError, list[int]]] = []
        # Topics that took a record with a report of its own.
        self._taken: set[str] = set()
        self._incomplete = False
        # By topic, one message for each kind of error, and under None one that was stored. A method of a dict takes
        # these reports: a function in Python would cost a third as much as the whole delivery of a record.
        self._unnamed: dict[str, dict[KafkaError | None, Message]] = {}

    def of_topic(self, topic: str) -> Callable[[KafkaError | None, Message], None]:
        """Return a callback for reports of a topic's records. It keeps the errors, but not which records had them."""
        reports = self._unnamed[topic] = {}
        return reports.__setitem__

    def delivered(
        self,
        kind: RecordKind,
        which: RecordName,
        together: list[int],
        on_stored: Callable[[Message], None] | None,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        """Take the report of one record. `together[0]` is the number of records that went out together."""
        if error is None:
            self._taken.add(message.topic() or "")
            if on_stored is not None:
                on_stored(message)
        elif error.code() in CONSEQUENCES:
            # Not stored. So the transaction must not be committed, even if librdkafka would do it.
            self._incomplete = True
        else:
            self._failed.append((kind, message.topic() or "", which, error, together))

    def refused(self, kind: RecordKind, topic: str, which: RecordName, error: KafkaError) -> None:
        """Note a record that librdkafka did not accept."""
        self._failed.append((kind, topic, which, error, [1]))

    @property
    def are_good(self) -> bool:
        """Whether every reported record was stored."""
        return not (self._failed or self._incomplete or any(error is not None for error in self._errors()))

    @property
    def failures(self) -> list[RecordFailure]:
        """The failures of records that Kafka did not take. Unnamed records that timed out share one for each topic."""
        named_ones = [
            _failure_of(kind, topic, which, error, alone=together[0] == 1, in_part=topic in self._taken)
            for kind, topic, which, error, together in self._failed
        ]
        return named_ones + [
            RecordFailure(
                kind=RecordKind.REAL,
                topic=topic,
                which=None,
                reason=error.str(),
                whole_topic=True,
                alone=False,
                timed_out=True,
                in_part=None in reports,
            )
            for topic, reports in self._unnamed.items()
            for error in reports
            if error is not None and error.code() == MSG_TIMED_OUT
        ]

    @property
    def failed_unnamed(self) -> bool:
        """Whether an unnamed record failed for a reason that makes it necessary to know which one it is."""
        harmless = CONSEQUENCES | {MSG_TIMED_OUT}
        return any(error is not None and error.code() not in harmless for error in self._errors())

    def _errors(self) -> Iterator[KafkaError | None]:
        return chain.from_iterable(self._unnamed.values())
