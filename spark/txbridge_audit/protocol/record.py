"""A Kafka record as either engine's client gives it, and what its headers say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from txbridge.core import names

#: A number of the protocol fits into 64 bits, one of Kafka's partitions into 32.
MOST, MOST_PARTITIONS = 2**63 - 1, 2**31 - 1
DIGITS = re.compile(r"[0-9]+")
_COORDINATES = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")

#: It stands in the name of a header for bytes that are not UTF-8. No client of Python can read the headers then.
HIDDEN_NAME = "\ufffd"
#: What is wrong with such a record of a real topic: it may be one of ours, and no rule can judge it.
HIDDEN = "the name of a header is not UTF-8, so that the record cannot be read, and may be any"

RecordHeaders = Sequence[tuple[str, bytes | None]]
#: Headers of ours by name.
HeaderTexts = Mapping[str, str | None]
#: The headers of ours that say something to the audit.
_OURS = names.HALF_HEADERS | {
    *(names.SOURCE, names.CLIENT_ID, names.CHECK_TIMES, names.TAGS, names.OUTCOME, names.ENDS_APPLIED, names.DELIVERED),
    *(names.HALF_COORDINATES, names.MESSAGE_NUMBER, names.END_POSITION, names.REASON, names.ERROR, names.RECORD_SOURCE),
    *(names.OUTBOX_BATCH, names.REPLY),
}


class KafkaRecord(NamedTuple):
    """One record. A tuple, because an audit makes millions of them."""

    topic: str
    partition: int
    offset: int
    #: Milliseconds since 1970-01-01 UTC.
    timestamp: int
    #: Whether its writer gave the timestamp; otherwise the broker did (`message.timestamp.type=LogAppendTime`).
    is_dated: bool
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    #: False when the client could not read them: the name of a header is not UTF-8.
    has_headers: bool = True

    def texts(self) -> HeaderTexts:
        """Our headers as text; of a repeated name the last one.

        Bytes that are no UTF-8 become characters that no rule accepts.
        """
        return {
            name: None if value is None else value.decode("utf-8", "replace")
            for name, value in self.headers
            if name in _OURS
        }


def number_of(text: str | None, most: int = MOST) -> int | None:
    """The number, or None if the text is none, or too large for its field."""
    if text is None or DIGITS.fullmatch(text) is None or len(text) > 30:
        return None
    number = int(text)
    return number if number <= most else None


def coordinates_of(text: str | None) -> tuple[int, int] | tuple[None, None]:
    """Partition and offset of `<partition>:<offset>`; twice None if it cannot be read."""
    found = None if text is None else _COORDINATES.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else (None, None)


#: Columns of a raw record (cluster/reader.py).
RAW = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


def records_of(batches: Iterable[Any]) -> Iterator[KafkaRecord]:
    """The records of Arrow batches with the columns of Kafka's source in Spark, the timestamp in ms."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in RAW)
        for topic, partition, offset, timestamp, kind, key, value, headers in zip(*columns, strict=True):
            pairs = [(header["key"], header["value"]) for header in headers or ()]
            if not (is_read := not any(HIDDEN_NAME in name for name, _ in pairs)):
                pairs.clear()
            yield KafkaRecord(topic, partition, offset, timestamp, kind == 0, key, value, pairs, is_read)
