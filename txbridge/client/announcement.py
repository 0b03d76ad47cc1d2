"""Announcements: the `tx` in the block of `announce`, and what the block's end means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from txbridge.client.answers import G, LocalTransactionState, RolledBackByCheck, SendStatus, Stage
from txbridge.client.base.contained import is_called_by
from txbridge.client.errors import OutcomeUnknownError, PrepareError
from txbridge.client.listener import COMMIT, STORED
from txbridge.client.message import NO_MESSAGE, Message, MessageExt
from txbridge.client.message_batch import joined
from txbridge.client.outbox_values import check_for_outbox
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.flow.undecided import Undecided
    from txbridge.client.listener import Opened
    from txbridge.client.options import ClientOptions


class Announcement(Generic[G]):
    """A transaction that is announced. Read it in the block of `announce`, and afterwards."""

    def __init__(self, attempt: Undecided) -> None:
        self._attempt = attempt
        self._opened: Opened[G] | None = None

    @property
    def _message(self) -> MessageExt:
        return self._attempt.given if self._opened is None else self._opened.message

    @property
    def transaction_id(self) -> str:
        """Name of the transaction, 32 characters. Anyone who knows it can decide the transaction, so keep it secret.

        If its messages are stored, only the table txbridge_transactions has it: no half message does.
        """
        return self._message.transaction_id

    @property
    def half_partition(self) -> int:
        """Partition of the half message in HALF; -1 if the message is stored."""
        return self._message.half_partition

    @property
    def half_offset(self) -> int:
        """Offset of the half message in that partition; -1 if the message is stored."""
        return self._message.half_offset

    @property
    def is_committed(self) -> bool | None:
        """Whether it is committed. None in the block, and if nobody knows: then a check will find out."""
        outcome = self._attempt.outcome
        if outcome is None or outcome.state is LocalTransactionState.UNKNOWN:
            return None
        return outcome.state is LocalTransactionState.COMMIT_MESSAGE

    @property
    def send_status(self) -> SendStatus:
        """STORED if its messages are rows of the outbox, because the bridge has no Kafka, or Kafka is away."""
        return SendStatus.SEND_OK if self._message.has_half else SendStatus.STORED

    @property
    def session(self) -> G:
        """The session of the transaction, for a bridge with a sessionmaker. It ends with the block."""
        if self._opened is None or not self._opened.given:
            raise UsageError("this bridge has no session or connection: one of txbridge_sqlalchemy has")
        return self._opened.given[0]

    @property
    def connection(self) -> G:
        """The connection of the transaction, for a bridge with an engine. It ends with the block."""
        return self.session

    def add(self, *messages: Message) -> None:
        """Store messages as rows of the outbox, in the transaction. They are written at the end of the block.

        Raises UsageError if the bridge has no outbox, no relay could send one of them, or the block is over.
        """
        added = None if self._opened is None else self._opened.added
        if added is None:
            raise UsageError(
                "tx.add needs a bridge with an outbox: name the message at announce, or give the bridge an outbox"
            )
        if self._attempt.outcome is not None:
            raise UsageError("tx.add was called after the end of the announcement")
        for message in messages:
            check_for_outbox(message)
        added += messages

    def begin_body(self, opened: Opened[G]) -> Announcement[G]:
        """Take the open transaction. The body of the block comes next."""
        self._opened = opened
        return self

    def end_body(self) -> None:
        """Note that the transaction is committed."""
        self._attempt.outcome = COMMIT if self._message.has_half else STORED

    def error_of(self, error: Exception) -> Exception:
        """Return what the block raises for this error: the same one, if the outcome is certain."""
        if isinstance(error, RolledBackByCheck):
            # Before the body was run.
            return PrepareError(str(error))
        is_certain = self._attempt.given.course.stage is Stage.ROLLED_BACK or self.is_committed is not None
        # A mistake in the program has to be read, whatever became of the transaction.
        return error if is_certain or isinstance(error, UsageError) else OutcomeUnknownError(self.transaction_id)


def announced(bridge: object, messages: tuple[Message, ...], options: ClientOptions) -> Message:
    """Return the messages of an announcement as one to send. Raises UsageError if they cannot be sent.

    Also in the block of another announcement of the bridge: one could be committed, and the other rolled back.
    """
    if messages:
        message = joined(messages if len(messages) > 1 else messages[0], options.names)
    elif options.has_kafka:
        raise UsageError("name the messages at announce: this bridge prepares them before the block")
    else:
        message = NO_MESSAGE
    if is_called_by(bridge):
        raise UsageError(
            "announce was called in the block of an announcement, whose transaction would be another one: name all "
            "messages of one transaction at its announce"
        )
    return message
