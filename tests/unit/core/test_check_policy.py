"""Times of checks: those of the check loop in RocketMQ's way, and the next one as a take-over computes it."""

from __future__ import annotations

import json

import pytest

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import offset_headers
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic

POLICY = CheckPolicy()
HOUR = 3_600_000


def test_defaults_are_rocketmqs():
    assert (POLICY.transaction_timeout, POLICY.transaction_check_interval, POLICY.transaction_check_max) == (
        6_000,
        30_000,
        15,
    )
    assert POLICY.transaction_max_age == 72 * HOUR
    assert (POLICY.park_after_records, POLICY.park_after_bytes, POLICY.park_after) == (100_000, 67_108_864, 30_000)
    assert POLICY.discard_retention == 720 * HOUR


@pytest.mark.parametrize(
    ("immunity", "wait"),
    [
        (None, 6_000),
        ("0", 0),
        ("1", 1_000),
        ("00000000000000000007", 7_000),
        ("-1", 6_000),
        ("+5", 6_000),
        ("5.5", 6_000),
        ("", 6_000),
        (" 5", 6_000),
        ("5s", 6_000),
        ("1_0", 6_000),
        ("\u0665", 6_000),
        ("²", 6_000),
        ("259199", 259_199_000),
        # Never later than the greatest age, for any number.
        ("259201", 72 * HOUR),
        ("9" * 60_000, 72 * HOUR),
        ("0" * 60_000, 0),
    ],
)
def test_p6_first_check_after_the_immunity_time_or_the_time_out(immunity, wait):
    assert POLICY.first_check(1_000, immunity) == 1_000 + wait


def test_a_time_out_above_the_greatest_age_counts_as_that():
    assert CheckPolicy(transaction_timeout=10, transaction_max_age=5).first_check(100, None) == 105


def test_the_longest_immunity_time_that_is_taken_at_its_word():
    patient = CheckPolicy(transaction_max_age=10**16)
    assert patient.first_check(5, "999999999999") == 5 + 999_999_999_999_000
    assert patient.first_check(5, "1000000000000") == 5 + 10**16


def test_later_checks_and_age():
    assert POLICY.next_check(7_000) == 37_000
    assert [POLICY.is_exhausted(checks) for checks in (0, 14, 15, 16)] == [False, False, True, True]
    assert POLICY.expires(1_000) == 1_000 + 72 * HOUR


def test_an_entry_is_parked_before_it_can_expire():
    assert POLICY.effective_park_after == 30_000
    assert CheckPolicy(transaction_max_age=20_000).effective_park_after == 10_000


def test_retries_of_a_held_delivery_back_off_from_a_second_to_a_minute():
    waits = [POLICY.retry_refused(5_000, attempts) - 5_000 for attempts in (1, 2, 3, 4, 5, 6, 7, 8, 1_000_000)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_the_time_to_park_is_a_whole_number():
    """The time to park becomes a due time, which is written to OFFSET."""
    parked = CheckPolicy(park_after=30_000, transaction_max_age=5_001).effective_park_after
    assert (parked, type(parked)) == (2_500, int)
    assert CheckPolicy(park_after=30_000, transaction_max_age=60_001).effective_park_after == 30_000


KEY = Names().checkpoint_key(3) + b"/7"


def parked(**changes: object) -> bytes:
    fields = {"state": "pending", "id": "C" * 32, "group": "shop", "topic": "orders", "born": 1_000, "size": 50}
    return json.dumps(fields | {"checks": 1, "next": 37_000, "end": 4} | changes).encode()


def next_due(value: bytes, appended: int | None, policy: CheckPolicy | None) -> int:
    offset_topic = OffsetTopic(Names(), 3, policy)
    offset_topic.take_record(KEY, value, offset_headers(), 0, appended)
    return offset_topic.parked[7].next_due


def test_p6_p7_the_interval_counts_from_when_the_check_was_appended():
    policy = CheckPolicy(transaction_check_interval=30_000)
    assert next_due(parked(), 11_000, policy) == 41_000
    assert next_due(parked(resumed=6_000), 11_000, policy) == 41_000
    # The draft's clock was ahead: a later check does no harm.
    assert next_due(parked(), 6_000, policy) == 37_000


def test_a_longer_interval_is_for_the_checks_to_come():
    assert next_due(parked(), 7_000, CheckPolicy(transaction_check_interval=3_600_000)) == 37_000


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": 0},
        {"error": "topic RMQ_SYS_TRANS_CHECK.shop: it does not exist"},
        {"state": "held", "decision": 8, "decided": 3, "error": "no such topic"},
        {"state": "discarded", "reason": "MAX_CHECKS", "at": [0, 5]},
    ],
    ids=["before its first check", "its check was refused", "held", "discarded"],
)
def test_what_was_not_written_for_a_check_keeps_its_time(changes):
    assert next_due(parked(**changes), 11_000, CheckPolicy()) == 37_000


def test_who_only_looks_sees_what_is_written():
    assert next_due(parked(), 11_000, None) == 37_000
    assert next_due(parked(), None, CheckPolicy()) == 37_000
