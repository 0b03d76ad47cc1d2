"""What an application sends, and what its listener is given."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import MalformedRecordError, whole_number
from txbridge.core.names import Names, is_reserved_header, is_topic
from txbridge.errors import UsageError
from txbridge.text import duration

if TYPE_CHECKING:
    from txbridge.topics.verify import Layout

Data = bytes | str | None

#: What a header costs in Kafka's record format beyond its name and value: two lengths of up to five bytes each.
_HEADER_BYTES = 10
#: Bytes of key and headers together. HALF has 64 KiB beyond the largest value: half of it is the user's, the rest is
#: for our headers (at most about 1 KiB) and for the history in copies of the message.
KEY_AND_HEADERS_LIMIT = 32 * 1024
#: Kafka numbers partitions with a signed 32-bit integer, and its times (ms) with one of 64 bits.
_LARGEST_PARTITION = 2**31 - 1
_LARGEST_TIMESTAMP = 2**63 - 1
#: RocketMQ's timerMaxDelaySec, and the worker's (ms).
DEFAULT_TIMER_MAX_DELAY_MS = 72 * 3_600_000


@dataclass(frozen=True, init=False)
class Message:
    """A message for a real topic, as its consumers will see it once it is committed.

    Args:
        topic: the real topic.
        value: bytes; text is encoded as UTF-8; None is a tombstone.
        key: decides the partition by the hash of Kafka's Java producer; without one, any. Text is encoded as UTF-8.
        headers: pairs of name and value in their order, names may repeat; or a mapping. Text values become UTF-8.
        timestamp: ms since 1970-01-01 UTC; None is the time at which Kafka stored the half message.
        partition: of the real topic, instead of the key's.
        check_immunity_time: seconds before the first check, instead of the worker's `transaction_timeout`
            (RocketMQ's CHECK_IMMUNITY_TIME_IN_SECONDS).
        deliver_at: when a committed message becomes visible, at the earliest, by the brokers' clock: a datetime with a
            time zone, or ms since 1970-01-01 UTC. A time that has passed is none.
        delay: the same, counted from now by the clock of this machine: a timedelta, or seconds. Not with `deliver_at`,
            which it becomes.

    Raises:
        UsageError: an argument has the wrong type, or text that UTF-8 cannot express. What it may hold is checked
            when it is sent.

    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    partition: int | None
    check_immunity_time: int | None
    #: ms.
    deliver_at: int | None

    def __init__(
        self,
        topic: str,
        value: Data,
        key: Data = None,
        headers: Iterable[tuple[str, Data]] | Mapping[str, Data] = (),
        timestamp: int | None = None,
        partition: int | None = None,
        check_immunity_time: int | None = None,
        deliver_at: datetime | int | None = None,
        delay: timedelta | float | None = None,
    ) -> None:
        if not isinstance(topic, str):
            raise UsageError(f"topic must be text, not {type(topic).__name__}")
        # Not by setattr, because the dataclass is frozen.
        self.__dict__.update(
            topic=topic,
            value=_data(value, "value"),
            key=_data(key, "key"),
            headers=_headers(headers),
            timestamp=_number(timestamp, "timestamp"),
            partition=_number(partition, "partition"),
            check_immunity_time=_number(check_immunity_time, "check_immunity_time"),
            deliver_at=_time_of_delivery(deliver_at, delay),
        )

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of its transaction, in the order in which they are delivered: this one, or several."""
        return (self,)

    @property
    def key_and_headers_size(self) -> int:
        """Bytes that key and headers take in a record, rounded up."""
        size = len(self.key or b"")
        for name, value in self.headers:
            size += len(name.encode()) + len(value or b"") + _HEADER_BYTES
        return size


@dataclass(frozen=True, init=False)
class MessageExt(Message):
    """The message with what is known of its transaction (RocketMQ's MessageExt); both listener methods get one.

    Of a transaction with several messages (`messages`) it has what the first one has.
    """

    #: 32 digits: the name of the transaction, and the right to decide it. Keep it with the local transaction's data,
    #: so that a check can find them; do not show it around.
    transaction_id: str = field(repr=False)
    #: Where the half message stands.
    half_partition: int
    half_offset: int
    #: ms; when Kafka stored the half message. None in a check whose worker does not tell.
    born_timestamp: int | None
    #: Number of this check, from 1; 0 when the local transaction is to be run.
    check_times: int

    #: Of a transaction with several messages.
    _several = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of the transaction, in the order in which they are delivered."""
        return self._several or (self,)

    def __init__(self) -> None:
        raise UsageError("txbridge makes these; an application sends a Message")

    @classmethod
    def prepared(cls, message: Message, transaction_id: str, partition: int, offset: int, born: int) -> Self:
        """The message whose half message was just acknowledged."""
        return cls._made(
            message.__dict__
            if type(message) is Message
            else _first_of(message.messages, message.check_immunity_time, message.deliver_at),
            transaction_id=transaction_id,
            half_partition=partition,
            half_offset=offset,
            born_timestamp=born,
            check_times=0,
        )

    @classmethod
    def checked(cls, half: HalfMessage, partition: int, check_times: int, born: int | None) -> Self:
        """The message of a check request: what the user sent, without the headers that are ours."""
        immunity = _immunity(half.immunity)
        if half.messages is None:
            fields: Mapping[str, object] = {
                "topic": half.real_topic,
                "value": half.value,
                "key": half.key,
                "headers": tuple((name, value) for name, value in half.headers if not is_reserved_header(name)),
                "timestamp": half.user_timestamp,
                "partition": half.real_partition,
                "check_immunity_time": immunity,
                "deliver_at": half.deliver_at,
            }
        else:
            several = tuple(
                Message(one.topic, one.value, one.key, one.headers, one.timestamp, one.partition) for one in half.framed
            )
            fields = _first_of(several, immunity, half.deliver_at)
        return cls._made(
            fields,
            transaction_id=half.transaction_id,
            half_partition=partition,
            half_offset=half.offset,
            born_timestamp=born,
            check_times=check_times,
        )

    @classmethod
    def _made(cls, message: Mapping[str, object], **more: object) -> Self:
        made = cls.__new__(cls)
        # At once: setting each of them, past what makes the dataclass frozen, would take several times as long.
        object.__setattr__(made, "__dict__", {**message, **more})
        return made


def _first_of(several: tuple[Message, ...], immunity: int | None, deliver_at: int | None) -> Mapping[str, object]:
    return {
        **several[0].__dict__,
        "check_immunity_time": immunity,
        "deliver_at": deliver_at,
        "_several": several,
    }


@dataclass(frozen=True, slots=True)
class Limits:
    """What the topics allow, learnt at start."""

    #: Bytes of the value.
    value: int
    #: Seconds.
    immunity: int
    #: ms from now until a message is delivered.
    delay: int = DEFAULT_TIMER_MAX_DELAY_MS

    @classmethod
    def of(cls, layout: Layout, timer_max_delay: int) -> Self:
        """What topics of this layout allow, and at most `timer_max_delay` ms of delay."""
        retention = layout.half_retention_ms
        if retention < 0:
            return cls(layout.max_message_size, 2**31 - 1, timer_max_delay)
        # HALF keeps a message no longer than this.
        return cls(layout.max_message_size, retention // 1000, min(timer_max_delay, retention))


def check_message(message: Message, names: Names) -> None:
    """Refuse what no cluster could take, with a UsageError that says why. It does not even start a client."""
    if not isinstance(message, Message):
        raise UsageError(f"a Message is needed, not {type(message).__name__}")
    if not message.topic:
        raise UsageError("the topic is empty")
    if not is_topic(message.topic):
        raise UsageError(
            f"{message.topic[:80]!r} cannot be a topic: it takes 1 to 249 characters of A-Z a-z 0-9 . _ -",
        )
    if names.is_forbidden(message.topic):
        raise UsageError(f"sending to system topic {message.topic} is forbidden")
    for name, _ in message.headers:
        if is_reserved_header(name):
            raise UsageError(
                f"header {name!r} is reserved for txbridge (docs/protocol.md lists these names): rename it"
            )
        if "\0" in name:
            raise UsageError(f"header name {name!r} holds a NUL character, at which librdkafka would cut it off")
    size = message.key_and_headers_size
    if size > KEY_AND_HEADERS_LIMIT:
        raise UsageError(f"key and headers take {size} bytes together, more than {KEY_AND_HEADERS_LIMIT}")
    _within(message.partition, 0, _LARGEST_PARTITION, "partition")
    # librdkafka takes 0 for "now", so it would not arrive.
    _within(message.timestamp, 1, _LARGEST_TIMESTAMP, "timestamp", " (ms)")
    _within(message.deliver_at, 0, _LARGEST_TIMESTAMP, "deliver_at", " (ms)")


def require_time(message: Message) -> None:
    """UsageError for a message that is to be sent later and does not say when."""
    if message.deliver_at is None:
        raise UsageError("the message names no time: give it deliver_at or delay, or send it with Kafka's own producer")


def check_limits(message: Message, limits: Limits) -> None:
    """Refuse what these topics cannot take, with a UsageError that says why."""
    if message.value is not None and len(message.value) > limits.value:
        what = "the value has" if type(message) is Message else "the messages of the transaction have together"
        raise UsageError(
            f"{what} {len(message.value)} bytes, more than the {limits.value} that the half topic allows "
            "(max_message_size of the topic plan)",
        )
    # Longer, and the half message would expire before anybody is asked.
    _within(message.check_immunity_time, 0, limits.immunity, "check_immunity_time", " (s; the retention of HALF)")
    if message.deliver_at is not None:
        delay = message.deliver_at - now_ms()
        if delay > limits.delay:
            raise UsageError(
                f"the message is to be delivered in {duration(delay)}, and the longest delay is "
                f"{duration(limits.delay)} (timer_max_delay): name an earlier time, or give the producer and all "
                f"workers a longer timer_max_delay"
            )


def now_ms() -> int:
    """By the clock of this machine."""
    return time.time_ns() // 1_000_000


def _immunity(text: str | None) -> int | None:
    """As the worker reads it: what is no whole number counts as absent."""
    try:
        return None if text is None else whole_number(text, "the immunity")
    except MalformedRecordError:
        return None


def _time_of_delivery(deliver_at: object, delay: object) -> int | None:
    if delay is None:
        if not isinstance(deliver_at, datetime):
            return _number(deliver_at, "deliver_at")
        if deliver_at.tzinfo is None:
            raise UsageError("deliver_at has no time zone: give one, as in datetime.now(UTC) + timedelta(hours=1)")
        # Up: never earlier than it says.
        return math.ceil(deliver_at.timestamp() * 1000)
    if deliver_at is not None:
        raise UsageError("deliver_at and delay say the same: give one of them")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise UsageError(f"delay must be a timedelta or seconds, not {type(delay).__name__}")
    if not 0 <= seconds < math.inf:
        raise UsageError(f"delay must be a time from now on, 0 or more, not {delay}")
    return now_ms() + math.ceil(seconds * 1000)


def _within(number: int | None, smallest: int, largest: int, name: str, unit: str = "") -> None:
    if number is not None and not smallest <= number <= largest:
        raise UsageError(f"{name} must be between {smallest} and {largest}{unit}, or None, not {number}")


def _data(data: object, name: str) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return _encoded(data, name)
    raise UsageError(f"{name} must be bytes, text or None, not {type(data).__name__}")


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} cannot be encoded as UTF-8: {error.reason}") from None


def _headers(
    headers: Iterable[tuple[str, Data]] | Mapping[str, Data],
) -> tuple[tuple[str, bytes | None], ...]:
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    made = []
    try:
        for name, value in pairs:
            if not isinstance(name, str):
                raise UsageError(f"header names are text, not {type(name).__name__}")
            _encoded(name, "a header name")
            made.append((name, _data(value, f"header {name!r}")))
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("headers must be pairs of name and value, or a mapping") from None
    return tuple(made)


def _number(number: object, name: str) -> int | None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise UsageError(f"{name} must be a whole number or None, not {type(number).__name__}")
    return number
