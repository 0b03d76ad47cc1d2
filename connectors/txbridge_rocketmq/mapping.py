"""Mapping of RocketMQ messages, and of their times of delivery, to Kafka records and back (docs/rocketmq.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from txbridge.client.message import Message, MessageExt, MessageLimits, check_limits, check_message
from txbridge.core.names import CHECK_IMMUNITY_TIME, CHECK_TIMES, Names, is_group, is_reserved_header, is_topic
from txbridge.errors import UsageError
from txbridge_rocketmq.codes import NAMESPACE_REFUSAL, REFUSED_PROPERTIES, RequestError, ResponseCode
from txbridge_rocketmq.identity import packed
from txbridge_rocketmq.message import Address, StoredMessage, parse_address
from txbridge_rocketmq.requests import PGROUP, TRAN_MSG, UNIQ_KEY

KEYS, SHARDING_KEY, WAIT = "KEYS", "__SHARDINGKEY", "WAIT"
#: Prefix of headers for properties whose names txbridge reserves, or that begin with the prefix themselves.
PREFIX = "ROCKETMQ_"
FLAG, BORN_HOST = "ROCKETMQ_FLAG", "ROCKETMQ_BORN_HOST"

LEVEL, DELIVER_MS, DELAY_SEC, DELAY_MS = "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"
#: Properties that ask for a delay, in the order in which RocketMQ reads them. The first that is there counts.
DELAYS = (LEVEL, DELAY_SEC, DELAY_MS, DELIVER_MS)
#: Default delays of RocketMQ's brokers, from level 1 on (s). A higher level means the last one.
_LEVELS: tuple[int, ...] = (1, 5, 10, 30, *range(60, 660, 60), 1_200, 1_800, 3_600, 7_200)
_DELAY = re.compile(r"[0-9]{1,18}", re.ASCII)

#: Properties that become no header. WAIT is for the broker alone. The half message has headers of its own for others.
_NOT_CARRIED = frozenset({WAIT, TRAN_MSG, PGROUP, CHECK_IMMUNITY_TIME, *DELAYS})
_TRANSACTION_ID = "__transactionId__"
#: Greatest age of a message (ms). A client sends it within seconds of its birth, and a clock may show another zone's
#: time.
_OLDEST_MS = 24 * 3_600 * 1_000
_NUMBER = re.compile(rb"-?[0-9]{1,10}\Z")


def header_name(name: str) -> str:
    """The name of the header that carries a property."""
    return f"{PREFIX}{name}" if is_reserved_header(name) or name.startswith(PREFIX) else name


def key_of(properties: Mapping[str, str]) -> bytes | None:
    """The sharding key, else the first of the message's keys."""
    if key := properties.get(SHARDING_KEY):
        return key.encode()
    return next((key.encode() for key in keys_of(properties)), None)


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """The message's keys. As in RocketMQ a plain space separates them, and no other character that looks like one."""
    return [key for key in properties.get(KEYS, "").split(" ") if key]


def record_of(
    topic: str,
    body: bytes,
    properties: Mapping[str, str],
    *,
    flag: int,
    born: int,
    now: int,
    born_host: str,
    queue_id: int,
    limits: MessageLimits,
) -> Message:
    """Build the message for Kafka. Raises RequestError if it cannot be sent.

    Its timestamp is the time of birth by the client's clock, unless that is ahead of the door's or more than a day
    behind. Kafka would refuse a time in the future, and only at the commit. It would soon delete a record that is older
    than the topic's retention.
    """
    for name, reason in REFUSED_PROPERTIES.items():
        if name in properties:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, reason)
    headers = [(header_name(name), value) for name, value in properties.items() if name not in _NOT_CARRIED]
    if flag:
        headers.append((FLAG, str(flag)))
    headers.append((BORN_HOST, born_host))
    try:
        message = Message(
            topic,
            body,
            key_of(properties),
            headers,
            timestamp=min(born, now) if born > max(0, now - _OLDEST_MS) else None,
            partition=queue_id if queue_id >= 0 else None,
            check_immunity_time=_immunity(properties.get(CHECK_IMMUNITY_TIME, "")),
            deliver_at=time_of_delivery(properties, now),
        )
        check_message(message, Names())
        check_limits(message, limits)
    except UsageError as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    return message


def _immunity(text: str) -> int | None:
    """Parse the immunity time as RocketMQ does: a text that is no whole number counts as absent, and so does -1."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def check_group(group: str, names: Names) -> None:
    """Raise RequestError for a producer group that the protocol does not take."""
    _require_no_namespace(group)
    if not is_group(group) or not is_topic(names.check(group)):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{group[:80]!r} cannot be a producer group here: use 1 to 200 characters from A-Z a-z 0-9 . _ -",
        )


def check_topic(topic: str, names: Names) -> None:
    """Raise RequestError for a topic that Kafka does not take, or that clients may not write to."""
    _require_no_namespace(topic)
    if not is_topic(topic):
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"{topic[:80]!r} cannot be a Kafka topic: use 1 to 249 characters from A-Z a-z 0-9 . _ -",
        )
    if names.is_forbidden(topic):
        raise RequestError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")


def _require_no_namespace(name: str) -> None:
    """Raise RequestError for `namespace%name`, as clients write it that have a namespace of RocketMQ 4."""
    if "%" in name[1:]:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name[:80]!r}: {NAMESPACE_REFUSAL}")


def properties_of(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """The properties that the producer gave, from headers of a record."""
    found = {}
    for name, value in headers:
        if name not in {FLAG, BORN_HOST} and value is not None:
            found[name.removeprefix(PREFIX)] = value.decode(errors="replace")
    return found


def uniq_key_of(message: MessageExt) -> str | None:
    """The client's id of the transaction, UNIQ_KEY; None if no door has prepared it."""
    value = dict(message.headers).get(header_name(UNIQ_KEY))
    return None if value is None else value.decode(errors="replace")


def checked(message: MessageExt, group: str, store_host: Address) -> StoredMessage:
    """The message of a check in RocketMQ's form. Its transaction id is its UNIQ_KEY, which it must have."""
    headers = dict(message.headers)
    properties = properties_of(message.headers)
    uniq_key = properties[UNIQ_KEY]
    properties |= {
        UNIQ_KEY: uniq_key,
        _TRANSACTION_ID: uniq_key,
        TRAN_MSG: "true",
        PGROUP: group,
        "REAL_TOPIC": message.topic,
        CHECK_TIMES: str(message.check_times),
        WAIT: "false",
    }
    if message.partition is not None:
        properties["REAL_QID"] = str(message.partition)
    if message.check_immunity_time is not None:
        properties[CHECK_IMMUNITY_TIME] = str(message.check_immunity_time)
    if message.deliver_at is not None:
        properties[DELIVER_MS] = str(message.deliver_at)
    born = message.born_timestamp or 0
    return StoredMessage(
        topic=message.topic,
        queue_id=message.partition or 0,
        queue_offset=message.half_offset,
        physical_offset=packed(message.half_partition, message.half_offset),
        flag=_flag(headers.get(FLAG)),
        body=message.value or b"",
        properties=properties,
        born=message.timestamp or born,
        stored=born,
        born_host=parse_address((headers.get(BORN_HOST) or b"").decode(errors="replace")),
        store_host=store_host,
    )


def _flag(value: bytes | None) -> int:
    # int() alone would also take spaces, underscores and a plus.
    number = int(value) if value is not None and _NUMBER.match(value) else 0
    return number if -(2**31) <= number < 2**31 else 0


def time_of_delivery(properties: Mapping[str, str], now: int) -> int | None:
    """Time of delivery (ms since 1970); None means at once. Raises RequestError.

    `now` is the door's clock. Delays count from it, as they count from the broker's clock in RocketMQ.
    """
    for name in DELAYS:
        text = properties.get(name)
        if text is None:
            continue
        if _DELAY.fullmatch(text) is None:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"{name} is not a delay: {text[:40]!r}")
        number = int(text)
        if name == LEVEL:
            if not number:
                # RocketMQ's client writes level 0 for no delay.
                continue
            return now + 1_000 * _LEVELS[min(number, len(_LEVELS)) - 1]
        if name == DELIVER_MS:
            return number
        return now + number * (1_000 if name == DELAY_SEC else 1)
    return None


def refuse_in_batch(properties: Mapping[str, str]) -> None:
    """Raise RequestError for a message of a batch that asks for a delay, as RocketMQ's own clients refuse it."""
    found = next((name for name in DELAYS if properties.get(name, "0") != "0"), None)
    if found is not None:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a message in a batch cannot be delayed: send the one with {found} on its own",
        )
