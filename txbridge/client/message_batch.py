"""Several messages in one transaction, sent as one half message that holds all of them."""

from __future__ import annotations

from collections.abc import Iterable

from txbridge.client.message import Message, check_message
from txbridge.core.message_frames import MOST_MESSAGES, MOST_TOPICS, common_time, encode_frames
from txbridge.core.names import Headers, Names
from txbridge.errors import UsageError


class MessageBatch(Message):
    """The message that becomes the half message: topic and key of the first message, and all messages as the value."""

    def __init__(self, messages: tuple[Message, ...], check_immunity_time: int | None, headers: Headers = ()) -> None:
        first = messages[0]
        # Different times are in the frames.
        _, deliver_at = common_time(messages)
        super().__init__(
            first.topic,
            encode_frames(messages),
            first.key,
            headers,
            check_immunity_time=check_immunity_time,
            deliver_at=deliver_at,
        )
        self.__dict__["_batch"] = messages


def with_headers(message: Message, headers: Headers, unless: str) -> Message:
    """Return the message with more headers, unless it has one with the name `unless`. Each of several gets them."""
    if isinstance(message, MessageBatch):
        messages = tuple(with_headers(one, headers, unless) for one in message.messages)
        return MessageBatch(messages, message.check_immunity_time, headers)
    if any(name == unless for name, _ in message.headers):
        return message
    # A plain one, because a subclass may take other arguments.
    made = Message.__new__(Message)
    made.__dict__.update(message.__dict__, headers=(*message.headers, *headers))
    return made


def joined(messages: Message | Iterable[Message], names: Names) -> Message:
    """Return one message, or several as one to send. Raises UsageError if no cluster could take them."""
    if isinstance(messages, Message):
        check_message(messages, names)
        return messages
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise UsageError(f"a Message, or a list of them, is needed, not {type(messages).__name__}")
    all_of_them = tuple(messages)
    if not 1 <= len(all_of_them) <= MOST_MESSAGES:
        raise UsageError(f"a transaction has 1 to {MOST_MESSAGES} messages, not {len(all_of_them)}")
    for message in all_of_them:
        check_message(message, names)
    topics = {message.topic for message in all_of_them}
    if len(topics) > MOST_TOPICS:
        raise UsageError(f"the messages of a transaction go to at most {MOST_TOPICS} real topics, not {len(topics)}")
    immunity = {message.check_immunity_time for message in all_of_them} - {None}
    if len(immunity) > 1:
        raise UsageError(
            "the messages of a transaction are checked together: give check_immunity_time to one of them, or the same "
            "to all"
        )
    return MessageBatch(all_of_them, immunity.pop() if immunity else None)
