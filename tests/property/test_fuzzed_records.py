"""Damaged and hostile records: each parser of the core reads them or reports them as malformed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz import VALID, Raw, Setting, damaged
from txbridge.core.checkpoint import Checkpoint, parse_op
from txbridge.core.decision_record import MAX_ENTRIES, Source, parse_end
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import parse_half
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names, is_group, is_topic, is_transaction_id
from txbridge.core.offset_topic import OffsetTopic, ParkedEntries

LARGEST = 2**63 - 1
SETTING = Setting()
RANDOMS = st.randoms(use_true_random=False)
#: Any record that Kafka can hold and confluent-kafka can read.
ANYTHING = st.builds(
    Raw,
    st.none() | st.binary(max_size=60),
    st.none() | st.binary(max_size=60),
    st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=5),
)


def _read_half(raw: Raw) -> None:
    half = parse_half(5, 1_000, raw.key, raw.value, raw.headers, Names())
    # Later steps use these: a topic name, and a partition and a timestamp, which librdkafka takes as 32 and 64 bits.
    assert is_transaction_id(half.transaction_id)
    assert is_group(half.group)
    assert is_topic(half.real_topic)
    assert not Names().is_forbidden(half.real_topic)
    assert half.real_partition is None or 0 <= half.real_partition < 2**31
    assert half.user_timestamp is None or 0 < half.user_timestamp <= LARGEST


def _read_end(raw: Raw) -> None:
    record = parse_end(5, raw.value, raw.headers)
    assert is_group(record.group)
    assert 1 <= len(record.entries) <= MAX_ENTRIES
    for entry in record.entries:
        assert 0 <= entry.half_offset <= LARGEST
        assert is_transaction_id(entry.transaction_id)
        assert record.source not in (Source.RESUME, Source.ABANDON) or entry.decision == 0
        # The remark is logged and shown.
        assert (entry.remark or "").encode().decode() == (entry.remark or "")


def _read_op(raw: Raw) -> None:
    _, offsets = parse_op(raw.value, raw.headers)
    assert offsets
    assert all(0 <= offset <= LARGEST for offset in offsets)


def _read_offset(raw: Raw) -> None:
    """Read the record into an OFFSET that has content already. A malformed record must not change it."""
    checkpoint = Checkpoint(1, 2, 3, {"half": "a"}, "me", 4)
    parked = HalfEntry.decode(5, VALID["parked"](SETTING, Random(1)).value or b"")
    offset_topic = OffsetTopic(Names(), 0)
    offset_topic.checkpoint, offset_topic.checkpoint_offset, offset_topic.parked = (
        checkpoint,
        9,
        ParkedEntries([parked]),
    )
    try:
        offset_topic.take_record(raw.key, raw.value, raw.headers, 10)
    except MalformedRecordError:
        assert (offset_topic.checkpoint, offset_topic.checkpoint_offset, offset_topic.parked) == (
            checkpoint,
            9,
            {5: parked},
        )
        raise
    for offset, entry in offset_topic.parked.items():
        assert 0 <= offset <= LARGEST
        assert is_transaction_id(entry.transaction_id)
        assert is_group(entry.group)
        assert is_topic(entry.real_topic)
        numbers = (entry.born, entry.size, entry.checks, entry.next_due)
        assert all(0 <= number <= LARGEST for number in numbers)
        assert HalfEntry.decode(offset, entry.encode(0)) == entry
    assert Checkpoint.decode(offset_topic.checkpoint.encode()) == offset_topic.checkpoint


READERS: dict[str, Callable[[Raw], None]] = {
    "half": _read_half,
    "end": _read_end,
    "op": _read_op,
    "checkpoint": _read_offset,
    "parked": _read_offset,
}


def is_malformed(read: Callable[[Raw], None], raw: Raw) -> bool:
    """Whether the parser reports the record as malformed. These tests look for any other exception."""
    try:
        read(raw)
    except MalformedRecordError as error:
        reason = str(error)
    else:
        return False
    # The reason goes into a header and a log line, so it is short and valid text in every case.
    assert 0 < len(reason) < 400
    assert reason.encode().decode() == reason
    return True


@pytest.mark.parametrize("kind", READERS)
@given(RANDOMS)
def test_what_is_not_damaged_is_read(kind, rng):
    assert not is_malformed(READERS[kind], VALID[kind](SETTING, rng))


@pytest.mark.parametrize("kind", READERS)
@given(RANDOMS)
def test_a_damaged_record_is_read_or_malformed(kind, rng):
    is_malformed(READERS[kind], damaged(kind, SETTING, rng))


@pytest.mark.parametrize("kind", READERS)
@given(ANYTHING)
def test_any_record_is_malformed(kind, raw):
    assert is_malformed(READERS[kind], raw)


@pytest.mark.parametrize("kind", READERS)
@given(RANDOMS, st.sampled_from(sorted(set(VALID))))
def test_a_record_in_the_wrong_topic_is_malformed(kind, rng, other):
    # A check request in HALF is malformed, too: its reserved headers differ from a half message's.
    if other != kind and {kind, other} != {"checkpoint", "parked"}:
        assert is_malformed(READERS[kind], VALID[other](SETTING, rng))


@pytest.mark.parametrize("kind", READERS)
def test_most_damage_is_noticed_and_some_is_not(kind):
    """Show that the damage is of use: the parsers refuse most of it, but not all."""
    rng = Random(7)
    malformed = sum(is_malformed(READERS[kind], damaged(kind, SETTING, rng)) for _ in range(400))
    assert 100 < malformed < 400
