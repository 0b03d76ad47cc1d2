"""Damaged and hostile check requests: the client reads them or reports them as malformed, and nothing else happens."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_fuzzed_records import ANYTHING, RANDOMS
from tests.support.client_fakes import FakeRecord
from tests.support.fuzz import VALID, Raw, Setting, damaged
from txbridge.client.checks.calls import parse_check
from txbridge.client.message import MessageExt
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import Names

PARTITIONS = 4


def _is_malformed(raw: Raw) -> bool:
    record = FakeRecord(0, 5, 1_234, raw.key, raw.value, raw.headers)
    try:
        request = parse_check(record, "group", Names(), PARTITIONS)
    except MalformedRecordError as error:
        reason = str(error)
    else:
        _expect_sound(request.message, raw)
        return False
    # The reason becomes part of a log line.
    assert 0 < len(reason) < 400
    assert reason.encode().decode() == reason
    return True


def _expect_sound(message: MessageExt, raw: Raw) -> None:
    # The answer is made of these fields, and the application sees them.
    assert 0 <= message.half_partition < PARTITIONS
    assert 0 <= message.half_offset < 2**63
    assert 0 <= message.check_times < 2**63
    assert message.check_immunity_time is None or message.check_immunity_time >= 0
    assert (message.key, message.value) == (raw.key, raw.value)


@given(RANDOMS)
def test_what_is_not_damaged_is_read(rng):
    assert not _is_malformed(VALID["check"](Setting(), rng))


@given(RANDOMS)
def test_a_damaged_request_is_read_or_malformed(rng):
    _is_malformed(damaged("check", Setting(), rng))


@given(ANYTHING)
def test_any_record_is_malformed(raw):
    assert _is_malformed(raw)


@given(RANDOMS, st.sampled_from(["half", "end", "op", "checkpoint", "parked", "discard"]))
def test_a_record_of_another_topic_is_malformed(rng, other):
    # A discard record has all headers of a request. The client would ask the application, and the worker would refuse
    # the answer.
    assert _is_malformed(VALID[other](Setting(), rng)) is (other != "discard")


def test_most_damage_is_noticed_and_some_is_not():
    rng = Random(7)
    assert 100 < sum(_is_malformed(damaged("check", Setting(), rng)) for _ in range(400)) < 400
