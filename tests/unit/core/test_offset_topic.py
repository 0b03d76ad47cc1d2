"""The due time of the next check, which a take-over computes from OFFSET."""

from __future__ import annotations

import json

import pytest

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import offset_headers
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic

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
