"""Differences between a half message and a copy of it. Both records are read once more by their coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaException, Message, TopicPartition

from txbridge.core import names
from txbridge_audit.cluster.kafka_config import KafkaSettings

#: Seconds to wait for one record, which was read a moment ago. Without it the report has less detail, but is right.
_TIMEOUT = 5.0

#: Topic, partition, offset.
Coordinates = tuple[str, int, int]
Headers = list[tuple[str, bytes | None]]


def differences(settings: KafkaSettings, pairs: Sequence[tuple[Coordinates, Coordinates]]) -> list[str]:
    """The differences of each half message and its copy, as text; empty where a record cannot be read any more."""
    if not pairs:
        return []
    config = {**settings.librdkafka, "group.id": names.READER_GROUP, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(config)
    told: list[str] = []
    try:
        for half, copy in pairs:
            told.append(_told(_at(consumer, half), _at(consumer, copy)))
            if not told[-1]:
                # Each record that does not come costs a time-out.
                break
    except KafkaException:
        pass
    finally:
        consumer.close()
    return told + [""] * (len(pairs) - len(told))


def _at(consumer: Consumer, place: Coordinates) -> Message | None:
    consumer.assign([TopicPartition(*place)])
    message = consumer.poll(_TIMEOUT)
    return message if message is not None and message.error() is None and message.offset() == place[2] else None


def _told(half: Message | None, copy: Message | None) -> str:
    if half is None or copy is None:
        return ""
    if any(name == names.MESSAGES for name, _ in _headers(half)):
        return "one of its messages"
    given, there = ((one.key(), one.value(), _headers(one)) for one in (half, copy))
    return ", ".join([*differing(given, there), *(["timestamp"] if _redated(half, copy) else [])])


def _redated(half: Message, copy: Message) -> bool:
    """Whether the copy's timestamp is not the one that the half message asks for. False for append times."""
    asked = next((value for name, value in reversed(_headers(half)) if name == names.BORN_TIMESTAMP), None)
    born = int(asked) if asked is not None and asked.isdigit() else 0
    kind, dated = copy.timestamp()
    return kind == TIMESTAMP_CREATE_TIME and dated != (born or half.timestamp()[1])


def _headers(message: Message) -> Headers:
    # Each header is a name and a value. The declared type allows a text instead.
    return list(message.headers() or [])  # type: ignore[arg-type]


def differing(
    half: tuple[bytes | None, bytes | None, Headers], copy: tuple[bytes | None, bytes | None, Headers]
) -> Iterable[str]:
    """The parts that differ: key, value, headers by name, or the order of the headers."""
    if half[0] != copy[0]:
        yield "key"
    if half[1] != copy[1]:
        yield "value"
    given = [header for header in half[2] if not names.is_reserved_header(header[0])]
    there = list(copy[2])
    for name in (names.UNIQ_KEY, names.HALF_COORDINATES):
        # The last one of each name is the worker's.
        last = max((place for place, header in enumerate(there) if header[0] == name), default=None)
        if last is not None:
            del there[last]
    changed = sorted({name for name, _ in given + there if _of(name, given) != _of(name, there)})
    yield from (f"header {name}" for name in changed)
    if not changed and given != there:
        yield "order of headers"


def _of(name: str, headers: Headers) -> list[bytes | None]:
    return [value for other, value in headers if other == name]
