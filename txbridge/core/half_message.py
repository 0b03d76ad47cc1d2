"""The half message that a client prepares in HALF, and the records that a worker makes of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from txbridge.core import names
from txbridge.core.headers import MalformedRecordError, OurHeaders, decoded, whole_number
from txbridge.core.message_frames import FramedMessage, common_time, joined_topics, parse_frames
from txbridge.core.names import Headers, Names
from txbridge.core.states import TransactionState

#: Size of the caches for groups, topics and their headers. Millions of messages share a few of them.
_SHARED = 1_000
_VERSION_HEADER = (names.VERSION, names.PROTOCOL_VERSION)
_TRAN_MSG_HEADER = (names.TRAN_MSG, b"true")
#: Number of our headers in a half message without options. They are the last ones, as `half_headers` writes them.
PLAIN = 5
#: Bytes of the longest topic name. Group names are shorter.
LONGEST_NAME = 249
_is_id = re.compile(rb"[0-9A-F]{32}\Z").match


#: Bytes of Python's objects around the contents of a half message: measured for six to nine headers.
OBJECT_BYTES = 1_500


class HalfMessage(NamedTuple):
    """One valid record of HALF.

    A tuple, as one is made for every record. It holds its size, which is read seven times. A frozen dataclass that
    computes the size each time took half of a worker's processor time.
    """

    offset: int
    transaction_id: str
    group: str
    #: With frames: the topics of all messages (`names.topics_of`).
    real_topic: str
    #: Append time (ms); the client's clock plays no part.
    born: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: The headers that are not ours, and the bytes of key, value and all headers.
    users: Headers
    size: int
    real_partition: int | None = None
    #: Text of CHECK_IMMUNITY_TIME_IN_SECONDS as it came; the check policy interprets it.
    immunity: str | None = None
    #: BORN_TIMESTAMP, or None if that is 0: librdkafka takes 0 for "now", so it could never be delivered.
    user_timestamp: int | None = None
    #: Number of messages that the value holds as frames. None: the half message is a single message.
    messages: int | None = None
    #: TXB_DELIVER_AT: the earliest time (ms) at which a commit makes the message visible. If its messages name
    #: different times, the first one; None if some name none.
    deliver_at: int | None = None
    #: Whether a message in the frames names a partition.
    names_partitions: bool = False
    #: The last time (ms) of delivery in the frames, if they name different ones.
    last_time: int | None = None

    @classmethod
    def of(
        cls, *, key: bytes | None = None, value: bytes | None = None, headers: Headers = (), **fields: Any
    ) -> HalfMessage:
        """A half message with these fields. The user's headers and the size follow from them."""
        users = [header for header in headers if header[0] not in names.HALF_HEADERS]
        size = len(key or b"") + len(value or b"") + size_of(headers)
        return cls(key=key, value=value, headers=headers, users=users, size=size, **fields)

    @property
    def framed(self) -> list[FramedMessage]:
        """The messages in its frames. Parsed anew each time: if kept, they would take as much memory again."""
        return parse_frames(self.value, self.messages or 0)

    @property
    def delivered_id(self) -> str:
        """The id of its delivered messages. Readers of the first ones must not decide about the others."""
        return self.transaction_id if self.last_time is None else names.delivered_id(self.transaction_id)

    @property
    def delivered_timestamp(self) -> int:
        """The user's timestamp, else the time of birth: a message that had to wait does not look younger than it is."""
        return self.born if self.user_timestamp is None else self.user_timestamp


def size_of(headers: Headers) -> int:
    size = 0
    for name, text in headers:
        size += len(name) if text is None else len(name) + len(text)
    return size


def parse_half(
    offset: int, born: int, key: bytes | None, value: bytes | None, headers: Headers | None, topic_names: Names
) -> HalfMessage:
    """Read a record of HALF. Raises MalformedRecordError with the rule that it breaks."""
    if headers is not None and len(headers) >= PLAIN:
        half = _parse_plain(offset, born, key, value, headers, topic_names)
        if half is not None:
            return half
    return _parse_by_name(offset, born, key, value, headers, topic_names)


def _parse_by_name(
    offset: int, born: int, key: bytes | None, value: bytes | None, headers: Headers | None, topic_names: Names
) -> HalfMessage:
    ours = OurHeaders(headers)
    ours.require_version("half message")
    for name in ours.names_beside(names.HALF_HEADERS):
        if names.is_reserved_header(name):
            raise MalformedRecordError(f"header {name[:40]!r} is reserved")
    if ours.required_bytes(names.TRAN_MSG) != b"true":
        raise MalformedRecordError(f"header {names.TRAN_MSG} is not true")
    transaction_id = ours.require_text(names.UNIQ_KEY)
    if not names.is_transaction_id(transaction_id):
        raise MalformedRecordError(f"header {names.UNIQ_KEY} is not 32 digits of 0-9A-F")
    group = _group(ours.required_bytes(names.PGROUP))
    real_topic = _real_topic(ours.required_bytes(names.REAL_TOPIC))
    if topic_names.is_forbidden(real_topic):
        raise MalformedRecordError(f"sending to system topic {real_topic} is forbidden")
    real_partition = ours.optional_number(names.REAL_QID)
    if real_partition is not None and real_partition >= 2**31:
        raise MalformedRecordError(f"header {names.REAL_QID} cannot be a partition: {real_partition}")
    half = HalfMessage.of(
        offset=offset,
        transaction_id=transaction_id,
        group=group,
        real_topic=real_topic,
        born=born,
        key=key,
        value=value,
        headers=headers or (),
        real_partition=real_partition,
        immunity=ours.find_text(names.CHECK_IMMUNITY_TIME),
        user_timestamp=ours.optional_number(names.BORN_TIMESTAMP) or None,
        messages=ours.optional_number(names.MESSAGES),
        deliver_at=ours.optional_number(names.DELIVER_AT),
    )
    barrier_id = ours.find_text(names.BARRIER)
    if barrier_id is not None and not names.is_barrier_id(barrier_id):
        raise MalformedRecordError(f"header {names.BARRIER} is not the identity of a table: {barrier_id[:40]!r}")
    return half if half.messages is None else _of_several(half)


def _of_several(half: HalfMessage) -> HalfMessage:
    """The half message with the fields that follow from its frames. Raises MalformedRecordError if one is malformed."""
    messages = half.framed
    for name, value in ((names.REAL_QID, half.real_partition), (names.BORN_TIMESTAMP, half.user_timestamp)):
        if value is not None:
            raise MalformedRecordError(f"header {name} is there beside {names.MESSAGES}: each message has its own")
    if (half.real_topic, half.key) != (messages[0].topic, messages[0].key):
        raise MalformedRecordError(f"{names.REAL_TOPIC} or the key is not that of the first message")
    partitions = [message.partition for message in messages]
    half = half._replace(real_topic=joined_topics(messages), names_partitions=partitions.count(None) < len(partitions))
    return half if half.value is None or half.value[0] == 1 else _with_times(half, messages)


def _with_times(half: HalfMessage, messages: list[FramedMessage]) -> HalfMessage:
    if half.deliver_at is not None:
        raise MalformedRecordError(f"header {names.DELIVER_AT} is there, and each message has its own time")
    is_common, time = common_time(messages)
    if is_common:
        return half._replace(deliver_at=time)
    times = [message.deliver_at for message in messages]
    last = max(filter(None, times))
    return half._replace(deliver_at=None if None in times else min(filter(None, times)), last_time=last)


@lru_cache(_SHARED)
def _group(value: bytes) -> str:
    group = decoded(names.PGROUP, value)
    if not names.is_group(group):
        raise MalformedRecordError(f"header {names.PGROUP} cannot be a producer group: {group[:40]!r}")
    return sys.intern(group)


class Envelope(NamedTuple):
    """The content of our headers in a plain half message, without the id. Many messages share it."""

    group: str
    real_topic: str
    #: Bytes of these headers and of the id.
    size: int


def _parse_plain(
    offset: int, born: int, key: bytes | None, value: bytes | None, headers: Headers, topic_names: Names
) -> HalfMessage | None:
    """Read a half message that our client has written without options, for one message or for several.

    None if it is anything else. Most records are such messages. They differ only in the id and the user's headers. To
    read them takes a third of the time of looking each header up. Raises MalformedRecordError for malformed frames.
    """
    plain, count = headers, None
    if headers[-1][0] == names.MESSAGES:
        plain, count = headers[:-1], _number(headers[-1][1])
        # Each of several messages has the user's headers in its frame.
        if count is None or len(plain) != PLAIN:
            return None
    users, (id_name, transaction_id) = users_of_plain(plain), plain[-1]
    envelope = envelope_of(plain[-PLAIN:-1], topic_names.namespace)
    if envelope is None or id_name != names.UNIQ_KEY or transaction_id is None or _is_id(transaction_id) is None:
        return None
    for name, _ in users:
        if len(name) > LONGEST_NAME or _is_reserved(name):
            return None
    group, real_topic, size = envelope
    size += len(key or b"") + len(value or b"") + size_of(headers[:-PLAIN] if count is None else headers[-1:])
    half = HalfMessage(
        offset, transaction_id.decode(), group, real_topic, born, key, value, headers, users, size, messages=count
    )
    return half if count is None else _of_several(half)


def users_of_plain(headers: Headers) -> Headers:
    """The user's headers of a plain half message: those before ours, the first of which may be its barrier."""
    users = headers[:-PLAIN]
    if users and users[-1][0] == names.BARRIER:
        barrier_id = users[-1][1]
        # Cached values must be small, as in `envelope_of`.
        if barrier_id and len(barrier_id) <= LONGEST_NAME and _is_barrier_id(barrier_id):
            return users[:-1]
    return users


@lru_cache(_SHARED)
def _is_barrier_id(value: bytes) -> bool:
    return names.is_barrier_id(value.decode("ascii", "replace"))


@lru_cache(_SHARED)
def _number(value: bytes | None) -> int | None:
    """Number of messages in the half message; None if the value is not a number."""
    try:
        return OurHeaders([(names.MESSAGES, value)]).optional_number(names.MESSAGES)
    except MalformedRecordError:
        # `_parse_by_name` reports the error.
        return None


def envelope_of(headers: Headers, namespace: str) -> Envelope | None:
    """The content of these headers, if they are ours of a plain half message, without its id. Otherwise None."""
    if len(headers) != PLAIN - 1:
        return None
    version, tran_msg, (topic_name, topic), (group_name, group) = headers
    if (
        version != _VERSION_HEADER
        or tran_msg != _TRAN_MSG_HEADER
        or topic_name != names.REAL_TOPIC
        or group_name != names.PGROUP
        # Cached values must be small, and anyone may have written these.
        or not topic
        or len(topic) > LONGEST_NAME
        or not group
        or len(group) > LONGEST_NAME
    ):
        return None
    return _envelope(topic, group, namespace)


_is_reserved = lru_cache(_SHARED)(names.is_reserved_header)


@lru_cache(_SHARED)
def _envelope(real_topic: bytes, group: bytes, namespace: str) -> Envelope | None:
    """The content of plain headers with these values; None if they are not valid."""
    headers: Headers = [
        _VERSION_HEADER,
        _TRAN_MSG_HEADER,
        (names.REAL_TOPIC, real_topic),
        (names.PGROUP, group),
        (names.UNIQ_KEY, b"0" * 32),
    ]
    try:
        half = _parse_by_name(0, 0, None, None, headers, Names(namespace))
    except MalformedRecordError:
        # `_parse_by_name` reports the error.
        return None
    return Envelope(half.group, half.real_topic, size_of(headers))


@lru_cache(_SHARED)
def _real_topic(value: bytes) -> str:
    real_topic = decoded(names.REAL_TOPIC, value)
    if not names.is_topic(real_topic):
        raise MalformedRecordError(f"header {names.REAL_TOPIC} cannot be a topic: {real_topic[:40]!r}")
    return sys.intern(real_topic)


def half_headers(
    user_headers: Headers,
    *,
    transaction_id: str,
    group: str,
    real_topic: str,
    real_partition: int | None = None,
    immunity_seconds: int | None = None,
    user_timestamp: int | None = None,
    messages: int | None = None,
    deliver_at: int | None = None,
    barrier_id: str | None = None,
) -> list[tuple[str, bytes | None]]:
    """The headers of a half message: the user's, then ours."""
    headers = [
        *user_headers,
        *(() if barrier_id is None else (_header(names.BARRIER, barrier_id),)),
        _VERSION_HEADER,
        _TRAN_MSG_HEADER,
        _header(names.REAL_TOPIC, real_topic),
        _header(names.PGROUP, group),
        (names.UNIQ_KEY, transaction_id.encode()),
    ]
    if real_partition is not None:
        headers.append((names.REAL_QID, b"%d" % real_partition))
    if immunity_seconds is not None:
        headers.append((names.CHECK_IMMUNITY_TIME, b"%d" % immunity_seconds))
    if user_timestamp is not None:
        headers.append((names.BORN_TIMESTAMP, b"%d" % user_timestamp))
    if messages is not None:
        headers.append((names.MESSAGES, b"%d" % messages))
    if deliver_at is not None:
        headers.append((names.DELIVER_AT, b"%d" % deliver_at))
    return headers


@lru_cache(_SHARED)
def _header(name: str, text: str) -> tuple[str, bytes]:
    """A header that many messages share: that of a topic, a group or a barrier table."""
    return name, text.encode()


#: A record for a real topic: half offset, topic, value, key, partition (-1: by the key), timestamp and headers. A plain
#: tuple in the order in which confluent-kafka takes its arguments: one is made for every message.
Copy = tuple[int, str, Any, Any, int, int, list[tuple[str, bytes | None]]]


def coordinates(partition: int, offset: int) -> bytes:
    """Half coordinates as header TXB_HALF carries them."""
    return b"%d:%d" % (partition, offset)


def parse_coordinates(text: str) -> tuple[int, int]:
    """Partition and offset out of TXB_HALF. Raises MalformedRecordError."""
    partition, colon, offset = text.partition(":")
    if not colon:
        raise MalformedRecordError(f"{names.HALF_COORDINATES} is not <partition>:<offset>: {text[:40]!r}")
    return whole_number(partition, names.HALF_COORDINATES), whole_number(offset, names.HALF_COORDINATES)


def delivered_copies(half: HalfMessage, partition: int, due: Collection[int] | None = None) -> Iterator[Copy]:
    """Records that a commit delivers: one, or those of several messages of the transaction, in their order.

    `due`: indices of the messages, if these are not all of them. The records have the user's headers, an id and the
    half coordinates.
    """
    identity = (names.UNIQ_KEY, half.delivered_id.encode())
    where = (names.HALF_COORDINATES, coordinates(partition, half.offset))
    if half.messages is None:
        to = -1 if half.real_partition is None else half.real_partition
        headers = [*half.users, identity, where]
        yield half.offset, half.real_topic, half.value, half.key, to, half.delivered_timestamp, headers
        return
    messages = half.framed
    for index, (number, message) in enumerate(zip(_message_numbers(len(messages)), messages, strict=True)):
        if due is not None and index not in due:
            continue
        topic, key, value, users, real_partition, timestamp, _ = message
        headers = [*users, identity, where, number]
        to, when = -1 if real_partition is None else real_partition, half.born if timestamp is None else timestamp
        yield half.offset, topic, value, key, to, when, headers


@lru_cache(16)
def _message_numbers(count: int) -> Sequence[tuple[str, bytes]]:
    """Header TXB_MESSAGE of each of `count` messages. At most a thousand."""
    return [(names.MESSAGE_NUMBER, b"%d/%d" % (number, count)) for number in range(1, count + 1)]


def copy_headers(half: HalfMessage, partition: int, checks: int, end_position: int) -> list[tuple[str, bytes | None]]:
    """Headers of a discarded message: all of the half message's, then the history."""
    return [
        *half.headers,
        (names.CHECK_TIMES, b"%d" % checks),
        (names.HALF_COORDINATES, coordinates(partition, half.offset)),
        (names.END_POSITION, b"%d" % end_position),
    ]


def check_headers(half: HalfMessage, partition: int, checks: int, end_position: int) -> list[tuple[str, bytes | None]]:
    """Headers of a check request. They name the time of birth, because the record's timestamp is that of the check."""
    return [*copy_headers(half, partition, checks, end_position), (names.BORN, b"%d" % half.born)]


_UNKNOWN = "unknown"
_STATES = {_UNKNOWN: None, **{state.value: state for state in TransactionState}}


@dataclass(frozen=True, slots=True)
class Reply:
    """The state of a transaction after an END record, for its sender."""

    #: The name that the sender gave it.
    name: str
    #: None: the worker does not know such a transaction of the sender's group.
    state: TransactionState | None = None
    #: Half offset of a known one. Its partition is that of the END record.
    half_offset: int | None = None
    #: Of an abandoned one: number of messages that were delivered before. None: not known.
    delivered: int | None = None


def reply_headers(reply: Reply, partition: int) -> list[tuple[str, bytes | None]]:
    """Headers of a reply. `partition` is that of the END record."""
    state = _UNKNOWN if reply.state is None else reply.state.value
    headers: list[tuple[str, bytes | None]] = [
        (names.VERSION, names.PROTOCOL_VERSION),
        (names.REPLY, reply.name.encode()),
        (names.STATE, state.encode()),
    ]
    if reply.half_offset is not None:
        headers.append((names.HALF_COORDINATES, coordinates(partition, reply.half_offset)))
    if reply.delivered is not None:
        headers.append((names.DELIVERED, b"%d" % reply.delivered))
    return headers


def is_reply(headers: Headers) -> bool:
    """Whether a record of a check topic is a reply, and no check request."""
    return any(name == names.REPLY for name, _ in headers)


def parse_reply(headers: Headers) -> Reply:
    """Read a reply. Raises MalformedRecordError with the rule that it breaks."""
    ours = OurHeaders(headers)
    ours.require_version("reply")
    state = ours.require_text(names.STATE)
    if state not in _STATES:
        raise MalformedRecordError(f"header {names.STATE} is not one of {', '.join(_STATES)}: {state[:40]!r}")
    where = ours.find_text(names.HALF_COORDINATES)
    offset = None if where is None else parse_coordinates(where)[1]
    return Reply(ours.require_text(names.REPLY), _STATES[state], offset, ours.optional_number(names.DELIVERED))
