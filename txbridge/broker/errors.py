"""What can go wrong between a worker and Kafka, by what has to follow."""

from __future__ import annotations

from dataclasses import dataclass

from txbridge.errors import TxBridgeError


class FencedError(TxBridgeError):
    """Another worker has taken the partition: this one must stop at once."""


class IndefiniteError(TxBridgeError):
    """Nobody can tell whether Kafka has committed: ask the topics, after the fence was set anew."""


class TakeOverRefusedError(TxBridgeError):
    """The topics are not those that the progress was written for: going on could lose or double messages."""


class LogGoneError(TxBridgeError):
    """The log was cut, recreated or emptied below a reader."""


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record that Kafka did not take. `half_offset` is None when it was not a real record."""

    half_offset: int | None
    topic: str
    reason: str
    #: Whether nobody answered at all, which says more about the topic than about the record.
    timed_out: bool = False


class RecordsRefusedError(TxBridgeError):
    """The Kafka transaction was aborted because Kafka did not take some of its records."""

    def __init__(self, failures: list[RecordFailure]) -> None:
        self.failures = failures
        first = failures[0]
        super().__init__(f"{len(failures)} record(s) were not taken, the first for {first.topic}: {first.reason}")


class AbortedError(TxBridgeError):
    """The Kafka transaction was aborted and nothing of it is visible; it can be tried again."""
