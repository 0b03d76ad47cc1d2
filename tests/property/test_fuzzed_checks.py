"""Damaged and hostile check requests: the client reads them or reports them as malformed, and nothing else happens."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_fuzzed_records import ANYTHING, RANDOMS, is_malformed
from tests.support.client_fakes import FakeRecord
from tests.support.fuzz import VALID, Raw, Setting, damaged
from txbridge.client.checks.calls import parse_check
from txbridge.core.names import Names

PARTITIONS = 4


def _read_check(raw: Raw) -> None:
    record = FakeRecord(0, 5, 1_234, raw.key, raw.value, raw.headers)
    message = parse_check(record, "group", Names(), PARTITIONS).message
    # The answer is made of these fields, and the application sees them.
    assert 0 <= message.half_partition < PARTITIONS
    assert 0 <= message.half_offset < 2**63
    assert 0 <= message.check_times < 2**63
    assert message.check_immunity_time is None or message.check_immunity_time >= 0
    assert (message.key, message.value) == (raw.key, raw.value)


@given(RANDOMS)
def test_what_is_not_damaged_is_read(rng):
    assert not is_malformed(_read_check, VALID["check"](Setting(), rng))


@given(RANDOMS)
def test_a_damaged_request_is_read_or_malformed(rng):
    is_malformed(_read_check, damaged("check", Setting(), rng))


@given(ANYTHING)
def test_any_record_is_malformed(raw):
    assert is_malformed(_read_check, raw)


@given(RANDOMS, st.sampled_from(["half", "end", "op", "checkpoint", "parked", "discard"]))
def test_a_record_of_another_topic_is_malformed(rng, other):
    # A discard record has all headers of a request. The client would ask the application, and the worker would refuse
    # the answer.
    assert is_malformed(_read_check, VALID[other](Setting(), rng)) is (other != "discard")


def test_most_damage_is_noticed_and_some_is_not():
    rng = Random(7)
    assert 100 < sum(is_malformed(_read_check, damaged("check", Setting(), rng)) for _ in range(400)) < 400
