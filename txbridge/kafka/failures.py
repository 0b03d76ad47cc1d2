"""Failures between a worker and Kafka, by the reaction that each one needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from txbridge.errors import TxBridgeError


class FencedError(TxBridgeError):
    """Another worker has taken the partition: this one must stop at once."""


class IndefiniteError(TxBridgeError):
    """It is unknown whether Kafka has committed. Read the topics to learn it, after taking the fence again."""


class TakeOverRefusedError(TxBridgeError):
    """Topics or options with which going on could lose or duplicate messages. Only a person can correct them."""


class LogGoneError(TxBridgeError):
    """The log was cut, recreated or emptied below the position of a reader."""


class UnansweredError(TxBridgeError):
    """Kafka has not answered a question. It can be asked again: nothing was decided or written."""


class HangingTransactionError(TxBridgeError):
    """A Kafka transaction was left open in an internal topic and hides the records behind it."""


class UnendedTransactionError(HangingTransactionError):
    """Kafka cannot end the partition's last transaction, so that there can be no other one."""


class ReadStoppedError(TxBridgeError):
    """The owner was asked to stop while it waited for Kafka."""


class AbortedError(TxBridgeError):
    """The Kafka transaction was aborted and nothing of it is visible; it can be tried again."""


class OutdatedError(TxBridgeError):
    """OFFSET goes beyond the end that was reported, or OFFSET or OP has lost records. Nothing was written.

    The state in memory differs from the topics, so they have to be read again.
    """


class RecordKind(Enum):
    """The purpose of a record in the Kafka transaction that writes it."""

    #: A user's message for its real topic.
    REAL = auto()
    #: A check request for a producer group.
    CHECK = auto()
    #: The reply to an END record. It is left out where Kafka does not take it.
    REPLY = auto()
    #: A discarded or malformed record.
    DISCARD = auto()
    #: OP, parked entries, checkpoint: without them nothing can be committed.
    INTERNAL = auto()


#: The name of a record: a half offset, or topic and offset of a malformed one. None for a record of OP or OFFSET, and
#: for records that had no reports of their own.
RecordName = int | tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record that Kafka did not take."""

    kind: RecordKind
    topic: str
    which: RecordName
    reason: str
    #: Whether the topic takes no record at all now: it does not answer, is gone, or is forbidden.
    whole_topic: bool
    #: Whether this very record is at fault. Kafka refuses a whole batch for one bad record.
    is_culprit: bool
    #: Whether its size is the reason, so that larger records need not be tried.
    too_large: bool = False
    #: Whether no answer came in time; the connection may be the cause as well as the topic.
    timed_out: bool = False
    #: Whether other records of the same transaction were taken by its topic.
    in_part: bool = False


class RecordsRefusedError(TxBridgeError):
    """The Kafka transaction was aborted because Kafka did not take some of its records."""

    def __init__(self, failures: list[RecordFailure]) -> None:
        self.failures = failures
        first = failures[0]
        super().__init__(f"{len(failures)} record(s) were not taken, the first for {first.topic}: {first.reason}")
