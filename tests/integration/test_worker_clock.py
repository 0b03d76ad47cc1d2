"""A worker whose machine has a wrong clock, on a real Kafka."""

from __future__ import annotations

import time

from tests.support.harness import COMMIT, Bridge, eventually
from txbridge.kafka.environment import Outside

HOURS = 3_600_000


class WrongClock(Outside):
    """A machine whose clock is ahead by this number of hours."""

    def __init__(self, hours: int) -> None:
        self.hours = hours

    def now(self) -> int:
        return super().now() + self.hours * HOURS


def test_p7_a_worker_whose_clock_is_73_hours_ahead_discards_nothing_and_goes_on(bridge: Bridge) -> None:
    # A former worker discarded all undecided messages as EXPIRED two seconds after its take-over, without a check.
    topic = bridge.create_topic("real")
    waiting = bridge.prepare_many(topic, [b"waiting %d" % number for number in range(20)], partition=0)
    committed = bridge.prepare(topic, b"committed", partition=0)
    options = {"transaction_max_age": 72 * HOURS, "transaction_check_max": 100}
    with bridge.member() as member, bridge.local_owner(outside=WrongClock(73), **options) as local:
        bridge.decide(committed, COMMIT)
        bridge.wait_visible(topic, [b"committed"])
        # Checks follow the brokers' clock.
        eventually(lambda: all(member.checks(one) for one in waiting), 30, "not checked")
        time.sleep(2)
        counts = local.owner.partition_facts().open
        assert counts is not None
        assert counts.others == {}
        assert "ahead of that of the broker" in (local.owner.status.clock or "")
        bridge.decide_many(waiting, COMMIT)
        bridge.wait_visible(topic, [b"committed", *(b"waiting %d" % number for number in range(20))])


def test_a_worker_whose_clock_is_behind_delivers_and_says_that_it_is_behind(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    undecided = bridge.prepare(topic, b"undecided", partition=0)
    committed = bridge.prepare(topic, b"committed", partition=0)
    with bridge.member() as member, bridge.local_owner(outside=WrongClock(-73)) as local:
        bridge.decide(committed, COMMIT)
        bridge.wait_visible(topic, [b"committed"])
        assert "behind that of the broker" in (local.owner.status.clock or "")
        time.sleep(3)
        assert member.checks(undecided) == []
