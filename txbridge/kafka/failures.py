"""What can go wrong between a worker and Kafka, by what has to follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from txbridge.errors import TxBridgeError


class FencedError(TxBridgeError):
    """Another worker has taken the partition: this one must stop at once."""


class IndefiniteError(TxBridgeError):
    """Nobody can tell whether Kafka has committed: ask the topics, after the fence was set anew."""


class TakeOverRefusedError(TxBridgeError):
    """Only a person can put it right: topics or options with which going on could lose or double messages."""


class LogGoneError(TxBridgeError):
    """The log was cut, recreated or emptied below a reader."""


class HangingTransactionError(TxBridgeError):
    """A Kafka transaction was left open in a topic of ours and hides what stands behind it."""


class StoppedError(TxBridgeError):
    """The owner was told to stop while it waited for Kafka."""


class AbortedError(TxBridgeError):
    """The Kafka transaction was aborted and nothing of it is visible; it can be tried again."""


class OutdatedError(TxBridgeError):
    """OFFSET reaches further than its end was said to be, or OFFSET or OP has lost records. Nothing was written.

    What is in memory is not what the topics hold: they have to be read again.
    """


class UnnamedRecordsError(AbortedError):
    """Kafka did not take some records of it, and which ones is not known: write it again and have each one reported."""


class RecordKind(Enum):
    """What a record is to the Kafka transaction that writes it."""

    #: A user's message for its real topic.
    REAL = auto()
    #: A check request for a producer group.
    CHECK = auto()
    #: A discarded or malformed record.
    DISCARD = auto()
    #: OP, parked entries, checkpoint: without them nothing can be committed.
    INTERNAL = auto()


#: Which record: a half offset, or topic and offset of a malformed one; None for one of OP or OFFSET.
RecordName = int | tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record that Kafka did not take."""

    kind: RecordKind
    topic: str
    which: RecordName
    reason: str
    #: Whether nothing for this topic would be taken now: nobody answered, it is gone, it is forbidden.
    whole_topic: bool
    #: Whether this very record is at fault. Kafka refuses a whole batch for one bad record.
    alone: bool
    #: Whether it is its size, so that larger ones need not be tried.
    too_large: bool = False
    #: Whether nobody answered in time, which may be the link's fault as well as the topic's.
    timed_out: bool = False
    #: Whether other records of the same transaction were taken by its topic.
    in_part: bool = False


class RecordsRefusedError(TxBridgeError):
    """The Kafka transaction was aborted because Kafka did not take some of its records."""

    def __init__(self, failures: list[RecordFailure]) -> None:
        self.failures = failures
        first = failures[0]
        super().__init__(f"{len(failures)} record(s) were not taken, the first for {first.topic}: {first.reason}")
