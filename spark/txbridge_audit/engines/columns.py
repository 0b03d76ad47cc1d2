"""Records of Arrow batches to mentions, a column at a time: nearly all records have one of a few shapes.

A record that surely has such a shape becomes a line of columns, which are named as the fields of its mention are. Any
other is left to protocol/. So this is a shorter way to what protocol/ says, and no second opinion: a test draws records
and compares. The hash of a content is the same as there, because the copy of a half message may be read the other way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from txbridge.core import names as headers
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol import client_records, worker_records
from txbridge_audit.protocol.mentions import CopyMention, EndMention, HalfMention, Mention, OutcomeMention, position_of
from txbridge_audit.protocol.record import HIDDEN_NAME
from txbridge_audit.protocol.worker_records import misplaced

_LONG, _TEXT = pa.int64(), pa.string()
_TEXTS = frozenset({"id", "group", "real_topic", "source", "client", "outcome", "topic"})


def _schema(fields: str) -> Any:
    types = {"content": pa.uint64()} | dict.fromkeys(_TEXTS, _TEXT)
    return pa.schema([(name, types.get(name, _LONG)) for name in fields.split()])


#: The columns of each kind of mention. The fields that are left out have their defaults.
SCHEMAS: Mapping[type[Mention], Any] = {
    HalfMention: _schema("partition half at born id group real_topic fixed_partition content dated"),
    EndMention: _schema("partition half at line id group decision source stamp client checks"),
    OutcomeMention: _schema("partition half at outcome stamp since until"),
    CopyMention: _schema("partition half at topic place id content dated by_key"),
}
#: Columns of a kind of mention.
Columns = tuple[type[Mention], Any]
#: The columns of a batch, and which of its records are left.
Taken = tuple[Columns | None, Any]

_NUMBER = re.compile(r"[0-9]{1,18}")
_PLACE = re.compile(r"[0-9]{1,9}")
_NUMBERS = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*")
_COORDINATES = "^(?P<partition>[0-9]{1,9}):(?P<half>[0-9]{1,18})$"
_ENTRY = "^(?P<half>[0-9]{1,18}),(?P<id>[0-9A-F]{32}),(?P<decision>0|8|12)(?:,(?P<checks>[0-9]{0,18}))?$"
_APPLIED = "^(?P<a>[0-9]{1,15}):(?P<b>[0-9]{1,4})-(?P<c>[0-9]{1,15}):(?P<d>[0-9]{1,4})$"
#: Ours in a half message that is read here: of one message, to be delivered at once.
_OF_A_HALF = headers.HALF_HEADERS - {headers.MESSAGES, headers.DELIVER_AT}
#: Longer keys are hashed one by one.
_SHORT_KEY = 64


class _Headers:
    """The headers of the records of a batch. `odd` marks the records that are left to protocol/."""

    def __init__(self, batch: Any, ours: Collection[str], is_odd: Callable[[str], bool] = lambda _: False) -> None:
        lists = batch.column("headers")
        self._size = len(lists)
        flat = lists.flatten()
        self.names, self.values = flat.field("key"), flat.field("value")
        self.records = pc.list_parent_indices(lists).to_numpy()
        coded = self.names.dictionary_encode()
        known = coded.dictionary.to_pylist()
        self._codes = coded.indices.to_numpy(zero_copy_only=False)
        self._code = {name: code for code, name in enumerate(known)}
        self.is_ours = np.array([name in ours for name in known], bool)[self._codes]
        odd = np.array([name not in ours and (is_odd(name) or HIDDEN_NAME in name) for name in known], bool)[
            self._codes
        ]
        self.odd = self._count_by_record(odd) > 0

    def _count_by_record(self, chosen: Any) -> Any:
        """How many of the chosen headers each record has."""
        return np.bincount(self.records[chosen], minlength=self._size)

    def take_values(self, name: str) -> Any:
        """The values of a header, null where there is none. A record that has it twice, or without a value, is odd."""
        where = np.flatnonzero(self._codes == self._code.get(name, -1))
        count = self._count_by_record(where)
        places = np.zeros(self._size, np.int64)
        places[self.records[where]] = where
        found = self.values.take(pa.array(places, mask=count == 0))
        self.odd |= (count > 1) | ((count > 0) & _mask(found.is_null()))
        return found

    def hash_contents(self, batch: Any, users: Any) -> Any:
        """As `client_records.content_of`, over key, value and the headers that are marked as the user's."""
        names, values = (part.filter(pa.array(users)) for part in (self.names.cast(pa.binary()), self.values))
        edges = pa.array(np.concatenate([[0], np.cumsum(self._count_by_record(users))]).astype(np.int32))
        # The lengths of all parts, and the parts.
        lengths = pc.binary_join_element_wise(b"", _length(names), _length(values), b", ")
        data = pc.binary_join_element_wise(names, values.fill_null(b""), b"")
        lengths, data = (pc.binary_join(pa.ListArray.from_arrays(edges, of_all), b"") for of_all in (lengths, data))
        key, value = batch.column("key"), batch.column("value")
        lengths = pc.binary_join_element_wise(b"([", _length(key), b", ", _length(value), lengths, b"], 0)", b"")
        told = pc.binary_join_element_wise(lengths, key.fill_null(b""), value.fill_null(b""), data, b"")
        digests = b"".join(blake2b(text, digest_size=8).digest() for text in told.to_pylist())
        return np.frombuffer(digests, ">u8").astype(np.uint64)


def _length(data: Any) -> Any:
    return pc.binary_length(data).cast(pa.string()).cast(pa.binary()).fill_null(b"None")


def _mask(found: Any) -> Any:
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def _fits(values: Any, pattern: re.Pattern[str]) -> Any:
    """Which values are there and match."""
    return _mask(pc.match_substring_regex(values, f"^(?:{pattern.pattern})$"))


def _is(values: Any, text: bytes) -> Any:
    return _mask(pc.equal(values, text))


def _each(values: Any, test: Callable[[str], bool]) -> Any:
    """Which values are there and pass the test. It is made once for each different value."""
    coded = values.dictionary_encode()
    passed = [test(value.decode("utf-8", "replace")) for value in coded.dictionary.to_pylist()]
    return _mask(pa.array(passed, pa.bool_()).take(coded.indices))


def _numbers(values: Any) -> Any:
    return values.cast(_TEXT).cast(_LONG)


def _long(batch: Any, name: str) -> Any:
    return batch.column(name).cast(_LONG)


def _columns(kind: type[Mention], **columns: Any) -> Columns:
    schema = SCHEMAS[kind]
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return kind, pa.RecordBatch.from_arrays(arrays, schema=schema)


def take_halves(batch: Any) -> tuple[Columns, Any]:
    """Half messages with one message, without a time of delivery."""
    found = _Headers(batch, _OF_A_HALF, client_records.is_reserved)
    version, tran, topic = (found.take_values(name) for name in (headers.VERSION, headers.TRAN_MSG, headers.REAL_TOPIC))
    identity, group, fixed = (found.take_values(name) for name in (headers.UNIQ_KEY, headers.PGROUP, headers.REAL_QID))
    stamp, barrier = found.take_values(headers.BORN_TIMESTAMP), found.take_values(headers.BARRIER)
    taken = _is(version, b"1") & _is(tran, b"true") & _fits(identity, client_records.IDENTITY) & ~found.odd
    taken &= _fits(group, client_records.GROUP) & _each(topic, client_records.is_deliverable)
    for values, pattern in ((fixed, _PLACE), (stamp, _NUMBER), (barrier, client_records.BARRIER)):
        taken &= _mask(values.is_null()) | _fits(values, pattern)
    some = pa.array(taken)
    born, dated = _long(batch, "timestamp").filter(some), _numbers(stamp.filter(some))
    half = _long(batch, "offset").filter(some)
    columns = _columns(
        HalfMention,
        partition=batch.column("partition").filter(some),
        half=half,
        at=half,
        born=born,
        id=identity.filter(some),
        group=group.filter(some),
        real_topic=topic.filter(some),
        fixed_partition=_numbers(fixed.filter(some)),
        content=pa.array(found.hash_contents(batch, ~found.is_ours)[taken]),
        # 0 counts as absent.
        dated=pc.if_else(pc.greater(dated, 0).fill_null(False), dated, born),
    )
    return columns, ~taken


def take_ends(asides: SetAside, batch: Any) -> Taken:
    """Records of END by clients and without remarks, all of whose entries count where they say.

    What an operator has done is a finding, so such a transaction is none of those that are only counted.
    """
    ours = (headers.VERSION, headers.PGROUP, headers.SOURCE, headers.CLIENT_ID)
    found = _Headers(batch, ours)
    version, group, source, client = (found.take_values(name) for name in ours)
    taken = _is(version, b"1") & _fits(group, client_records.GROUP) & ~found.odd
    taken &= _each(source, lambda text: text in {"client", "check"})
    taken &= _each(client, lambda text: "�" not in text) | _mask(client.is_null())
    lists = pc.split_pattern(batch.column("value"), "\n")
    taken &= _mask(pc.less_equal(pc.list_value_length(lists), client_records.MAX_ENTRIES))
    record = pc.list_parent_indices(lists)
    entries = pc.extract_regex(lists.flatten(), _ENTRY)
    records = record.to_numpy()
    taken[records[_mask(entries.is_null())]] = False
    partition, at = (_long(batch, name) for name in ("partition", "offset"))
    if asides.ends:
        places = zip(partition.to_pylist(), at.to_pylist(), strict=True)
        taken &= np.array([place not in asides.ends for place in places], bool)
    some = pa.array(taken[records])
    record = record.filter(some)
    half, identity, decision, checks = (part.filter(some) for part in entries.flatten())
    half = _numbers(half)
    if asides.firsts:
        named = zip(partition.take(record).to_pylist(), half.to_pylist(), strict=True)
        if any(place in asides.firsts for place in named):
            return None, np.ones(len(taken), bool)
    firsts = np.searchsorted(records, np.arange(len(taken)))
    lines = np.arange(len(records)) - firsts[records]
    columns = _columns(
        EndMention,
        partition=partition.take(record),
        half=half,
        at=at.take(record),
        line=pa.array(lines).filter(some),
        id=identity,
        group=group.take(record),
        decision=_numbers(decision),
        source=source.take(record),
        stamp=_long(batch, "timestamp").take(record),
        client=client.take(record),
        checks=_numbers(pc.if_else(pc.equal(checks, b""), pa.scalar(None, pa.binary()), checks)),
    )
    return columns, ~taken


def take_outcomes(batch: Any) -> Taken:
    """Records of OP that can be read."""
    ours = (headers.VERSION, headers.TAGS, headers.OUTCOME, headers.ENDS_APPLIED)
    found = _Headers(batch, ours)
    version, tags, outcome, applied = (found.take_values(name) for name in ours)
    taken = _is(version, b"1") & _is(tags, headers.REMOVE_TAG) & ~found.odd
    taken &= _each(outcome, worker_records.OUTCOMES.__contains__) & _fits(batch.column("value"), _NUMBERS)
    lists = pc.split_pattern(batch.column("value").filter(pa.array(taken)), ",")
    record = pa.array(np.flatnonzero(taken)).take(pc.list_parent_indices(lists))
    # Only of a commit.
    span = pc.extract_regex(
        pc.if_else(pc.equal(outcome, b"commit"), applied, pa.scalar(None, pa.binary())), _APPLIED
    ).flatten()
    since, until = (
        pc.add(pc.multiply(_numbers(span[at]), position_of(1, 0)), _numbers(span[at + 1])).take(record) for at in (0, 2)
    )
    columns = _columns(
        OutcomeMention,
        partition=_long(batch, "partition").take(record),
        half=_numbers(lists.flatten()),
        at=_long(batch, "offset").take(record),
        outcome=outcome.take(record),
        stamp=_long(batch, "timestamp").take(record),
        since=since,
        until=until,
    )
    return columns, ~taken


def take_copies(partitions: int, batch: Any) -> Taken:
    """Visible records of single messages. Those without TXB_HALF and TXB_OUTBOX are neither taken nor left."""
    ours = (headers.UNIQ_KEY, headers.HALF_COORDINATES)
    found = _Headers(batch, ours, lambda name: name in {headers.MESSAGE_NUMBER, headers.OUTBOX_BATCH})
    identity, where = (found.take_values(name) for name in ours)
    claims = _mask(where.is_valid()) | found.odd
    place = pc.extract_regex(where, _COORDINATES)
    taken = _mask(place.is_valid()) & _fits(identity, client_records.IDENTITY) & ~found.odd
    some = pa.array(taken)
    partition, half = (_numbers(part.filter(some)) for part in place.flatten())
    keys, places = batch.column("key").filter(some), _long(batch, "partition").filter(some)
    dated = pc.if_else(pc.equal(batch.column("timestampType"), 0), _long(batch, "timestamp"), pa.scalar(None, _LONG))
    columns = _columns(
        CopyMention,
        partition=partition,
        half=half,
        at=_long(batch, "offset").filter(some),
        topic=batch.column("topic").filter(some),
        place=places,
        id=identity.filter(some),
        content=pa.array(found.hash_contents(batch, ~found.is_ours)[taken]),
        dated=dated.filter(some),
        by_key=_by_key(keys, places.to_numpy(), partitions),
    )
    return columns, claims & ~taken


def _by_key(keys: Any, places: Any, partitions: int) -> Any:
    """As `misplaced`, for each key."""
    lengths = pc.binary_length(keys).fill_null(0).to_numpy()
    explained = (hash_keys(keys) % partitions == places) & (lengths <= _SHORT_KEY)
    found = np.zeros(len(keys), np.int64)
    known = np.ones(len(keys), bool)
    for at in np.flatnonzero(~explained & (lengths > 0)):
        asked = misplaced(keys[at].as_py(), int(places[at]), partitions)
        if asked is not None:
            found[at], known[at] = asked, False
    return pa.array(found, mask=known)


def hash_keys(keys: Any) -> Any:
    """As `hash_key`, for each key of at most _SHORT_KEY bytes."""
    lengths: Any = pc.binary_length(keys).fill_null(0).to_numpy()
    lengths = np.where(lengths <= _SHORT_KEY, lengths, 0).astype(np.uint32)
    data = np.zeros((len(keys), _SHORT_KEY + 4), np.uint8)
    texts = b"".join(key for key in keys.to_pylist() if key and len(key) <= _SHORT_KEY)
    data[np.arange(data.shape[1]) < lengths[:, None]] = np.frombuffer(texts, np.uint8)
    words: Any = data.view("<u4").astype(np.uint32)
    factor = np.uint32(0x5BD1E995)
    found = np.uint32(0x9747B28C) ^ lengths
    whole, rest = lengths // 4, lengths % 4
    for number in range(int(whole.max(initial=0))):
        mixed = words[:, number] * factor
        mixed = (mixed ^ mixed >> 24) * factor
        found = np.where(number < whole, found * factor ^ mixed, found)
    # Behind the key there are zeros.
    tail = (found ^ words[np.arange(len(words)), whole]) * factor
    found = np.where(rest > 0, tail, found)
    found = (found ^ found >> 13) * factor
    return (found ^ found >> 15) & np.uint32(0x7FFFFFFF)


def by_topic(batches: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The batches, each with records of one topic."""
    for batch in batches:
        topics = batch.column("topic")
        for topic in topics.unique().to_pylist():
            one = batch.filter(pc.equal(topics, topic)) if len(topics.unique()) > 1 else batch
            yield topic, one
