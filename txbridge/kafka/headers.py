"""Headers of a consumed record, as confluent-kafka returns them, or the reason why they cannot be decoded.

Ask once for those of a record. After a name that is not UTF-8, a second answer has NULL in its place, and no error: to
look at it ends the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller

from confluent_kafka import Message

from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Headers

#: `message.headers()`, but called in a way that Python always checks. For a name that is not UTF-8 the method returns a
#: broken list and leaves its exception pending. Python's specialised calls do not check for it: it is raised later on.
_raw_headers = methodcaller("headers")
_UNDECODABLE = "the name of a header is not UTF-8; the headers cannot be copied"


def offset_of(message: Message) -> int:
    """Offset of a consumed record. confluent-kafka has None only for messages that were never stored."""
    offset = message.offset()
    assert offset is not None
    return offset


def headers_of(message: Message) -> Headers:
    """Headers of a consumed record. Raises MalformedRecordError when they cannot be decoded."""
    # confluent-kafka decodes the names, and fails in this way. Kafka itself takes any bytes.
    [found] = headers_of_all([message])
    if isinstance(found, MalformedRecordError):
        raise found
    return found


def headers_of_all(messages: Iterable[Message]) -> list[Headers | MalformedRecordError]:
    """Headers of each record, or the error when they cannot be decoded."""
    found: list[Headers | MalformedRecordError] = []
    rest = map(_raw_headers, messages)
    while True:
        try:
            found.extend(headers or () for headers in rest)
        except (SystemError, UnicodeDecodeError):
            found.append(MalformedRecordError(_UNDECODABLE))
        else:
            return found


def copyable_headers(message: Message) -> Headers:
    """Headers of a malformed record; none when they cannot be decoded."""
    try:
        return headers_of(message)
    except MalformedRecordError:
        return ()
