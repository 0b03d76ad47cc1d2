"""A half message after its prepare, or what stands for it when its message goes into an outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txbridge.client.message import NO_HALF, Message, MessageExt, new_transaction_id, now_ms
from txbridge.core.decision_record import DecisionEntry

if TYPE_CHECKING:
    from txbridge.client.listener import ListenerOutcome


class Prepared(NamedTuple):
    """A half message that Kafka has acknowledged."""

    transaction_id: str
    partition: int
    offset: int
    #: Kafka's append time (ms since 1970-01-01 UTC).
    born: int
    #: Bytes of the user's key, value and headers.
    size: int

    @classmethod
    def without_half(cls) -> Prepared:
        """Return what stands for a half message when the local transaction stores the message in an outbox."""
        return cls(new_transaction_id(), NO_HALF, NO_HALF, now_ms(), 0)

    def for_listener(self, message: Message) -> MessageExt:
        """Return the message for the listener."""
        return MessageExt.for_execution(message, self.transaction_id, self.partition, self.offset, self.born)

    def entry_of(self, outcome: ListenerOutcome) -> DecisionEntry:
        """Return the decision for END."""
        return DecisionEntry(self.offset, self.transaction_id, outcome.decision, remark=outcome.remark)

    def __repr__(self) -> str:
        # Without the transaction id, because anyone who knows it may decide.
        return f"Prepared(partition={self.partition}, offset={self.offset}, born={self.born}, size={self.size})"
