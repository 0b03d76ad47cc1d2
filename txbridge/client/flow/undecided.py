"""A transaction between its half message and its decision, in all APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from txbridge.client.listener import ListenerOutcome, execution_failed

if TYPE_CHECKING:
    from txbridge.client.decide.decision_batcher import Ticket
    from txbridge.client.flow.send_path import SendPath
    from txbridge.client.message import Message
    from txbridge.client.prepare.prepared import Prepared


class Undecided:
    """A transaction from its half message to its decision: where the send path is entered, and left.

    The block does the local transaction and sets `outcome`. Its end sends the decision: this one, or the one that an
    exception means.
    """

    __slots__ = ("_message", "_sends", "end", "given", "outcome", "prepared")

    def __init__(self, sends: SendPath | None, prepared: Prepared, message: Message) -> None:
        """Without a send path, Kafka has not answered yet, and the block stores the message."""
        self._sends = sends
        self._message = message
        self.prepared = prepared
        #: The message for the listener.
        self.given = prepared.for_listener(message)
        #: None until it is known.
        self.outcome: ListenerOutcome | None = None
        #: The way of the decision to Kafka, if there is one.
        self.end: Ticket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.outcome = execution_failed(self.given, error, is_raised=True)
        assert self.outcome is not None
        if self._sends is not None:
            self.end = self._sends.send_decision(self.prepared, self.outcome, self._message)
