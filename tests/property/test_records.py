"""Records of every kind: what is written can be read, and any other record is at worst malformed."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from txbridge.core import names
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint, encode_ops, op_headers, parse_op
from txbridge.core.decision_record import (
    COMMANDS,
    MAX_REMARK,
    Decision,
    DecisionEntry,
    DecisionRecord,
    Source,
    encode_end,
    parse_end,
)
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import (
    HalfMessage,
    coordinates,
    delivered_copies,
    half_headers,
    parse_coordinates,
    parse_half,
)
from txbridge.core.names import Names
from txbridge.core.states import Outcome, TransactionState

OFFSETS = st.integers(0, 2**63 - 1)
IDS = st.text("0123456789ABCDEF", min_size=32, max_size=32)
NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=40)
TOPICS = NAMES.filter(lambda name: names.is_topic(name) and not Names().is_forbidden(name))
USER_HEADERS = st.lists(
    st.tuples(
        st.text(max_size=12).filter(lambda name: not names.is_reserved_header(name)), st.none() | st.binary(max_size=12)
    ),
    max_size=4,
)


@given(
    USER_HEADERS,
    IDS,
    NAMES,
    TOPICS,
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 10**6),
    st.none() | OFFSETS,
    st.none() | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
)
def test_half_messages(user_headers, transaction_id, group, topic, partition, immunity, timestamp, barrier_id):
    headers = half_headers(
        user_headers,
        transaction_id=transaction_id,
        group=group,
        real_topic=topic,
        real_partition=partition,
        immunity_seconds=immunity,
        user_timestamp=timestamp,
        barrier_id=barrier_id,
    )
    half = parse_half(5, 1_000, b"k", None, headers, Names())
    assert half == HalfMessage.of(
        offset=5,
        transaction_id=transaction_id,
        group=group,
        real_topic=topic,
        born=1_000,
        key=b"k",
        value=None,
        headers=headers,
        real_partition=partition,
        immunity=None if immunity is None else str(immunity),
        # librdkafka takes a timestamp of 0 for "now", so 0 is read as none.
        user_timestamp=timestamp or None,
    )
    assert next(delivered_copies(half, 3))[-1] == [
        *user_headers,
        ("UNIQ_KEY", transaction_id.encode()),
        ("TXB_HALF", b"3:5"),
    ]


ENTRIES = st.builds(
    DecisionEntry, OFFSETS, IDS, st.sampled_from(Decision), st.none() | OFFSETS, st.none() | st.text(max_size=200)
)


@given(st.lists(ENTRIES, min_size=1, max_size=5), NAMES, st.sampled_from(Source), st.none() | st.text(max_size=10))
def test_end_records(entries, group, source, client_id):
    if source in COMMANDS:
        entries = [DecisionEntry(entry.half_offset, entry.transaction_id, Decision.UNKNOWN) for entry in entries]
    value, headers = encode_end(entries, group, source, client_id)
    assert parse_end(7, value, headers) == DecisionRecord(7, group, source, entries, client_id)


@given(st.text(), st.integers(0, 40))
def test_any_remark_fits_and_what_is_left_is_its_beginning(text, times):
    remark = text * times * 10
    encoded = DecisionEntry(0, "0" * 32, Decision.UNKNOWN, None, remark).encode().split(",", 4)[4]
    assert len(encoded) <= MAX_REMARK
    (entry,) = parse_end(
        0, f"0,{'0' * 32},0,,{encoded}".encode(), [("TXB_V", b"1"), ("PGROUP", b"g"), ("SOURCE", b"client")]
    ).entries
    assert remark.startswith(entry.remark)
    assert len(encoded) > MAX_REMARK - 12 or entry.remark == remark


@given(st.lists(OFFSETS, max_size=30), st.sampled_from(Outcome))
def test_op_records(offsets, outcome):
    read = [parse_op(value, op_headers(outcome)) for value in encode_ops(offsets)]
    assert [offset for _, part in read for offset in part] == offsets
    assert {named for named, _ in read} <= {outcome}


@given(
    OFFSETS,
    OFFSETS,
    OFFSETS,
    st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=4),
    st.text(),
    OFFSETS,
    st.one_of(st.none(), OFFSETS),
    OFFSETS,
)
def test_checkpoint(half, end, op, topics, owner, seq, recent, entry):
    checkpoint = Checkpoint(half, end, op, topics, owner, seq, recent, entry=entry)
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


def parked_entry(state: str, **known) -> HalfEntry:
    """Make an entry from the given fields only; `st.builds` would invent the other fields of a HalfEntry."""
    return HalfEntry(offset=5, parked=True, state=TransactionState(state), **known)


COMMON = {"transaction_id": IDS, "group": NAMES, "real_topic": TOPICS, "born": OFFSETS, "size": OFFSETS}
COMMON |= {"checks": st.integers(0, 99), "next_due": OFFSETS}


@given(
    st.builds(parked_entry, st.just("pending"), resumed=st.none() | OFFSETS, **COMMON)
    | st.builds(parked_entry, st.just("held"), decided=OFFSETS, error=st.text(), **COMMON)
    | st.builds(
        parked_entry,
        st.just("discarded"),
        reason=st.sampled_from(["MAX_CHECKS", "EXPIRED"]),
        discarded_at=st.none() | st.tuples(OFFSETS, OFFSETS),
        **COMMON,
    )
)
def test_parked_entries(parked):
    assert HalfEntry.decode(5, parked.encode(0)) == parked


@given(st.integers(0, 2**31 - 1), OFFSETS)
def test_coordinates(partition, offset):
    assert parse_coordinates(coordinates(partition, offset).decode()) == (partition, offset)


@given(st.text(), st.integers(0, 10**15))
def test_any_immunity_time_is_kept_within_bounds(immunity, born):
    policy = CheckPolicy()
    assert born <= policy.first_check(born, immunity) <= policy.expires(born)
