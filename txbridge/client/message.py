"""Messages: those that an application sends, and those that its listener gets."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, overload

from txbridge.client.answers import Course
from txbridge.client.message_fields import Data, Headers, Model, body_of, data_of, headers_of, number_of, serialized
from txbridge.core.half_message import HalfMessage
from txbridge.core.headers import MalformedRecordError, whole_number
from txbridge.core.names import Names, is_reserved_header, is_topic, short_id
from txbridge.errors import UsageError
from txbridge.text import duration

if TYPE_CHECKING:
    from confluent_kafka.serialization import SerializationContext

    from txbridge.topics.verify import Layout

_V = TypeVar("_V")

#: Bytes of a header in Kafka's record format beyond its name and value: two lengths of up to five bytes each.
_HEADER_BYTES = 10
#: Most bytes of key and headers together. HALF has room for 64 KiB beyond the largest value. Half of that is the
#: user's. The rest is for our headers (at most about 1 KiB) and for the history in copies of the message.
KEY_AND_HEADERS_LIMIT = 32 * 1024
#: Kafka's partition numbers are signed integers of 32 bits, its times (ms) of 64 bits.
_LARGEST_PARTITION = 2**31 - 1
_LARGEST_TIMESTAMP = 2**63 - 1
#: The times (ms) that an application can mean, from March 1973 to the year 9999. A time of today in seconds is below,
#: one in microseconds above. With the first as its timestamp a record would be deleted at once, by retention.
_MEANT_TIMES = range(10**11, 253_402_300_800_000)
#: Default of RocketMQ's timerMaxDelaySec, and of timer_max_delay, in ms.
DEFAULT_TIMER_MAX_DELAY_MS = 72 * 3_600_000


#: Number of ids that are made at once, because asking the system for random bits takes longer than all the rest.
_IDS, _DIGITS = 256, 32
_ready_ids: list[str] = []
# A forked child must not have those of its parent.
os.register_at_fork(after_in_child=_ready_ids.clear)

#: Partition and offset of a half message that there is not.
NO_HALF = -1


@dataclass(frozen=True, init=False)
class Message:
    """A message for a real topic, as its consumers will see it once it is committed.

    Args:
        topic: The real topic.
        value: Bytes, or text, which becomes UTF-8, or a pydantic model, which becomes JSON (`model_dump_json`). None is
            a tombstone. With a `serializer` it is anything that this takes.
        key: Bytes, or text, which becomes UTF-8. It chooses the partition by the hash of Kafka's Java producer. A
            message without a key goes to any partition.
        headers: Pairs of name and value in their order, where names may repeat, or a mapping. Text values become UTF-8.
        timestamp: Timestamp of the delivered record, in ms since 1970-01-01 UTC, from March 1973 on. None takes the
            time at which Kafka stored the half message.
        partition: Partition of the real topic, instead of the one that the key chooses.
        check_immunity_time: Seconds before the first check, instead of the worker's `transaction_timeout` (RocketMQ's
            CHECK_IMMUNITY_TIME_IN_SECONDS).
        deliver_at: Earliest time at which a committed message becomes visible, by the brokers' clock. It is a datetime
            with a time zone, or ms since 1970-01-01 UTC. A time in the past means no delay.
        delay: Time from now until `deliver_at`, by the clock of this machine. It is a timedelta, or seconds. Give only
            one of the two. Of several messages in a transaction each has its own time, or none.
        serializer: Makes the bytes of the value at once, called as confluent-kafka's serializers are: with the value
            and a SerializationContext of topic, MessageField.VALUE and the headers, to which it may add. What it raises
            is raised.

    Raises:
        UsageError: An argument has the wrong type, or text that UTF-8 cannot express, or the time of delivery has no
            meaning (no time zone, a negative delay, both arguments). Names, sizes and ranges are checked when the
            message is sent.

    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    partition: int | None
    check_immunity_time: int | None
    #: Earliest time of delivery, in ms since 1970-01-01 UTC.
    deliver_at: int | None
    #: The `delay` that was given (ms). MemoryBridge, whose time stands still, counts it from the send.
    delay_ms: ClassVar[int | None] = None
    #: All messages of a transaction with several ones, or with none.
    _batch: ClassVar[tuple[Message, ...] | None] = None

    @overload
    def __init__(
        self,
        topic: str,
        value: Data | Model,
        key: Data = ...,
        headers: Headers = ...,
        timestamp: int | None = ...,
        partition: int | None = ...,
        check_immunity_time: int | None = ...,
        deliver_at: datetime | int | None = ...,
        delay: timedelta | float | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        value: _V,
        key: Data = ...,
        headers: Headers = ...,
        timestamp: int | None = ...,
        partition: int | None = ...,
        check_immunity_time: int | None = ...,
        deliver_at: datetime | int | None = ...,
        delay: timedelta | float | None = ...,
        *,
        serializer: Callable[[_V, SerializationContext], bytes | None],
    ) -> None: ...

    def __init__(
        self,
        topic: str,
        value: Any,
        key: Data = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
        check_immunity_time: int | None = None,
        deliver_at: datetime | int | None = None,
        delay: timedelta | float | None = None,
        *,
        serializer: Callable[[Any, SerializationContext], bytes | None] | None = None,
    ) -> None:
        if not isinstance(topic, str):
            raise UsageError(f"topic must be text, not {type(topic).__name__}")
        if serializer is not None:
            # A list, because a serializer may add a header, such as the id of the schema.
            headers = list(headers_of(headers))
            value = serialized(value, serializer, topic, headers)
        # Not by setattr, because the dataclass is frozen.
        self.__dict__.update(
            topic=topic,
            value=body_of(value),
            key=data_of(key, "key"),
            headers=headers_of(headers),
            timestamp=number_of(timestamp, "timestamp"),
            partition=number_of(partition, "partition"),
            check_immunity_time=number_of(check_immunity_time, "check_immunity_time"),
            deliver_at=_time_of_delivery(deliver_at) if delay is None else None,
        )
        if delay is not None:
            if deliver_at is not None:
                raise UsageError("deliver_at and delay say the same: give one of them")
            milliseconds = _milliseconds_of(delay)
            self.__dict__.update(deliver_at=now_ms() + milliseconds, delay_ms=milliseconds)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of the transaction, in the order of delivery; for a plain message only this one."""
        return (self,) if self._batch is None else self._batch

    @property
    def size(self) -> int:
        """Bytes that value, key and headers take in a record, rounded up."""
        size = len(self.value or b"") + len(self.key or b"")
        for name, value in self.headers:
            size += len(name.encode()) + len(value or b"") + _HEADER_BYTES
        return size


@dataclass(frozen=True, init=False)
class MessageExt(Message):
    """A message with the data of its transaction (RocketMQ's MessageExt). Both listener methods get one.

    For a transaction with several messages (`messages`), topic, key, value and the rest are those of the first one.
    """

    #: Name of the transaction, 32 characters. Anyone who knows it can decide the transaction, so keep it secret. Store
    #: it with the local transaction's data, so that a check can find them.
    transaction_id: str = field(repr=False)
    #: Partition of the half message in HALF; -1 for a message that goes into the outbox.
    half_partition: int
    #: Offset of the half message in that partition; -1 for a message that goes into the outbox.
    half_offset: int
    #: Time at which Kafka stored the half message, in ms since 1970-01-01 UTC. None in a check of a worker that does
    #: not send it.
    born_timestamp: int | None
    #: Number of this check, from 1; 0 in `execute_local_transaction`.
    check_times: int
    #: Identity of the barrier table in which the sender writes the row of this transaction. None in
    #: `execute_local_transaction`, and if the sender has not stated it.
    barrier_id: str | None = None
    #: Time at which Kafka stored this check, in ms since 1970-01-01 UTC; None in `execute_local_transaction`.
    check_timestamp: int | None = None

    @property
    def has_half(self) -> bool:
        """Whether there is a half message, and so an END to come."""
        return self.half_offset != NO_HALF

    @property
    def course(self) -> Course:
        """The course of its local transaction, for listeners of txbridge: they tell the client what they know."""
        course: Course = self.__dict__.setdefault("_course", Course())
        return course

    def without_half(self) -> Self:
        """Return the message for a local transaction that stores it, with an id that no half message has."""
        return self._with_fields(
            self.__dict__, transaction_id=new_transaction_id(), half_partition=NO_HALF, half_offset=NO_HALF
        )

    @property
    def age(self) -> float | None:
        """Seconds from the birth of the message to this check, by the brokers' clocks; None outside a check.

        A check that waited in Kafka for a process of the group has the age at which the worker sent it.
        """
        if self.check_timestamp is None or self.born_timestamp is None:
            return None
        return (self.check_timestamp - self.born_timestamp) / 1000

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a log line about it says."""
        checked = {"check_times": self.check_times} if self.check_times else {}
        return {"transaction": short_id(self.transaction_id), "topic": self.topic, **checked}

    def __init__(self) -> None:
        raise UsageError("txbridge makes these; an application sends a Message")

    @classmethod
    def for_execution(cls, message: Message, transaction_id: str, partition: int, offset: int, born: int) -> Self:
        """Return the message for the local transaction. Kafka has just acknowledged its half message."""
        return cls._with_fields(
            message.__dict__ if type(message) is Message else _first_of(message.messages, message.check_immunity_time),
            transaction_id=transaction_id,
            half_partition=partition,
            half_offset=offset,
            born_timestamp=born,
            check_times=0,
        )

    @classmethod
    def for_check(
        cls,
        half: HalfMessage,
        partition: int,
        check_times: int,
        born: int | None,
        barrier_id: str | None = None,
        check_timestamp: int | None = None,
    ) -> Self:
        """Return the message of a check request as the user sent it, without our headers."""
        immunity = _immunity(half.immunity)
        if half.messages is None:
            users = [header for header in half.headers if not is_reserved_header(header[0])]
            where = (half.user_timestamp, half.real_partition, immunity, half.deliver_at)
            fields: Mapping[str, object] = Message(half.real_topic, half.value, half.key, users, *where).__dict__
        else:
            several = tuple(
                Message(
                    *(one.topic, one.value, one.key, one.headers, one.timestamp, one.partition),
                    # One time for all of them is not in the frames.
                    deliver_at=one.deliver_at or half.deliver_at,
                )
                for one in half.framed
            )
            fields = _first_of(several, immunity)
        return cls._with_fields(
            fields,
            transaction_id=half.transaction_id,
            half_partition=partition,
            half_offset=half.offset,
            born_timestamp=born,
            check_times=check_times,
            barrier_id=barrier_id,
            check_timestamp=check_timestamp,
        )

    @classmethod
    def _with_fields(cls, message: Mapping[str, object], **more: object) -> Self:
        made = cls.__new__(cls)
        # All attributes at once. To set each one of a frozen dataclass would take several times as long.
        object.__setattr__(made, "__dict__", {**message, **more})
        return made


def _first_of(several: tuple[Message, ...], immunity: int | None) -> Mapping[str, object]:
    return {**several[0].__dict__, "check_immunity_time": immunity, "_batch": several}


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits for messages, known after the start of the client."""

    #: Largest value (bytes).
    value: int
    #: Longest immunity time (s).
    immunity: int
    #: Longest time from now until a message is delivered (ms).
    delay: int = DEFAULT_TIMER_MAX_DELAY_MS

    @classmethod
    def of_layout(cls, layout: Layout, longest_delay: int) -> Self:
        """Return the limits of topics with this layout, with a delay of at most `longest_delay` ms."""
        retention = layout.half_retention_ms
        if retention < 0:
            return cls(layout.max_message_size, 2**31 - 1, longest_delay)
        # HALF keeps a message no longer than this.
        return cls(layout.max_message_size, retention // 1000, min(longest_delay, retention))


def check_message(message: Message, names: Names) -> None:
    """Raise UsageError for a message that an application cannot mean to send. No started client is needed."""
    check_content(message, names)
    check_units(message)


def check_units(message: Message) -> None:
    """Raise UsageError for a time that is surely not in ms. A time of delivery of 0 means no delay."""
    for name in ("timestamp", "deliver_at"):
        number = getattr(message, name)
        if number and number not in _MEANT_TIMES:
            unit = "seconds" if number < _MEANT_TIMES.start else "microseconds or nanoseconds"
            raise UsageError(
                f"{name} takes ms since 1970-01-01 UTC, and {number} is a time in {unit}: give int(time.time() * 1000) "
                "or the like"
            )


def check_content(message: Message, names: Names) -> None:
    """Raise UsageError for a message that no cluster could take. Its times are not judged."""
    if not isinstance(message, Message):
        raise UsageError(f"a Message is needed, not {type(message).__name__}")
    if not message.topic:
        raise UsageError("the topic is empty")
    if not is_topic(message.topic):
        raise UsageError(f"{message.topic[:80]!r} cannot be a topic: it takes 1 to 249 characters of A-Z a-z 0-9 . _ -")
    if names.is_forbidden(message.topic):
        raise UsageError(f"sending to system topic {message.topic} is forbidden")
    for name, _ in message.headers:
        if is_reserved_header(name):
            raise UsageError(
                f"header {name!r} is reserved for txbridge (docs/protocol.md lists these names): rename it"
            )
        if "\0" in name:
            raise UsageError(f"header name {name!r} holds a NUL character, at which librdkafka would cut it off")
    size = message.size - len(message.value or b"")
    if size > KEY_AND_HEADERS_LIMIT:
        raise UsageError(f"key and headers take {size} bytes together, more than {KEY_AND_HEADERS_LIMIT}")
    _within(message.partition, 0, _LARGEST_PARTITION, "partition")
    # librdkafka reads 0 as "now", so a timestamp of 0 would be lost.
    _within(message.timestamp, 1, _LARGEST_TIMESTAMP, "timestamp", " (ms)")
    _within(message.deliver_at, 0, _LARGEST_TIMESTAMP, "deliver_at", " (ms)")


def check_limits(message: Message, limits: MessageLimits) -> None:
    """Raise UsageError for a message that is beyond the limits of these topics."""
    if message.value is not None and len(message.value) > limits.value:
        what = "the value has" if type(message) is Message else "the messages of the transaction have together"
        raise UsageError(
            f"{what} {len(message.value)} bytes, more than the {limits.value} that the half topic allows "
            "(max_message_size of the topic plan)"
        )
    # With a longer one, retention would delete the half message before its first check.
    _within(message.check_immunity_time, 0, limits.immunity, "check_immunity_time", " (s; the retention of HALF)")
    times = [one.deliver_at for one in message.messages if one.deliver_at is not None]
    if times:
        delay = max(times) - now_ms()
        if delay > limits.delay:
            raise UsageError(
                f"the message is to be delivered in {duration(delay)}, and the longest delay is "
                f"{duration(limits.delay)} (timer_max_delay): name an earlier time, or give the producer and all "
                f"workers a longer timer_max_delay"
            )


def new_transaction_id() -> str:
    """Return an id that no transaction has had: 128 random bits as 32 digits, which nobody can guess. Thread-safe."""
    try:
        return _ready_ids.pop()
    except IndexError:
        digits = secrets.token_hex(_IDS * _DIGITS // 2).upper()
        first, *others = (digits[start : start + _DIGITS] for start in range(0, len(digits), _DIGITS))
        _ready_ids.extend(others)
        return first


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC, by the clock of this machine."""
    return time.time_ns() // 1_000_000


def _immunity(text: str | None) -> int | None:
    """Return the immunity time (s) as the worker reads it. Text that is no whole number counts as absent."""
    try:
        return None if text is None else whole_number(text, "the immunity")
    except MalformedRecordError:
        return None


def _within(number: int | None, smallest: int, largest: int, name: str, unit: str = "") -> None:
    if number is not None and not smallest <= number <= largest:
        raise UsageError(f"{name} must be between {smallest} and {largest}{unit}, or None, not {number}")


def _time_of_delivery(deliver_at: object) -> int | None:
    if not isinstance(deliver_at, datetime):
        return number_of(deliver_at, "deliver_at")
    if not _has_offset(deliver_at):
        raise UsageError("deliver_at has no time zone: give one, as in datetime.now(UTC) + timedelta(hours=1)")
    # Rounded up, so that the message is never delivered too early.
    return math.ceil(deliver_at.timestamp() * 1000)


def _milliseconds_of(delay: object) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise UsageError(f"delay must be a timedelta or seconds, not {type(delay).__name__}")
    if not 0 <= seconds < math.inf:
        raise UsageError(f"delay must be a time from now on, 0 or more, not {delay}")
    return math.ceil(seconds * 1000)


def _has_offset(time: datetime) -> bool:
    """Whether the time has an offset from UTC. Python takes one without for a time of this machine's zone."""
    try:
        return time.utcoffset() is not None
    except NotImplementedError:
        # Of a tzinfo that does not say it.
        return False


#: Stands for the messages of an announcement that has none at its begin.
NO_MESSAGE = Message("", None)
NO_MESSAGE.__dict__["_batch"] = ()
