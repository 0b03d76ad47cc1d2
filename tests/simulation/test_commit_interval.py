"""`commit_interval` of a worker on a healthy simulated Kafka: how many Kafka transactions it takes, and who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import structlog

from tests.simulator.applications import COMMIT, ROLLBACK
from tests.simulator.small_world import SmallWorld, take_turn
from txbridge.core.check_policy import CheckPolicy

#: Time (ms) between two decisions, as of many clients at a few hundred a second.
APART = 4


class Stream:
    """A worker with this `commit_interval`, and decisions that reach it by Faust's events."""

    def __init__(self, interval: int, policy: CheckPolicy | None = None) -> None:
        self.small = SmallWorld("orders", commit_interval=interval / 1_000)
        self.small.policy = policy or self.small.policy
        self.process = self.small.start_owner()
        self.prepared = self.decided = 0
        self.wait_until(lambda: self.process.owner.status.serving)
        self.pass_time(2_000)
        self.began, self.first_transactions = self.now, self._count_transactions()

    @property
    def now(self) -> int:
        return self.small.world.now

    @property
    def kafka_transactions(self) -> int:
        return self._count_transactions() - self.first_transactions

    def _count_transactions(self) -> int:
        # Each has one checkpoint.
        return len(self.small.visible(self.small.names.offset))

    def wait_until(self, done: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if done():
                return
            take_turn(self.small.world, self.process, 1)
        pytest.fail("not done")

    def pass_time(self, milliseconds: int) -> None:
        until = self.now + milliseconds
        self.wait_until(lambda: self.now >= until)

    def prepare(self) -> None:
        self.small.prepare("orders", f"{self.prepared:032X}", b"%d" % self.prepared)
        self.prepared += 1

    def decide(self, decision: int = COMMIT, *, aloud: bool = True) -> None:
        """Store a decision about the next half message, which may have to be stored first."""
        if self.decided == self.prepared:
            self.prepare()
        self.small.decide(self.decided, f"{self.decided:032X}", decision, self.process if aloud else None)
        self.decided += 1

    def apply_all(self) -> int:
        """Wait until all is applied. Returns the time (ms) since the start."""
        self.wait_until(lambda: self.process.owner.applied == self.decided)
        return self.now - self.began


@pytest.fixture
def streams() -> Iterator[list[Stream]]:
    def drop(*_: object) -> str:
        raise structlog.DropEvent

    structlog.configure(processors=[drop], cache_logger_on_first_use=False)
    started: list[Stream] = []
    yield started
    for stream in started:
        stream.small.close()
    structlog.reset_defaults()


@pytest.mark.parametrize(("interval", "in_step"), [(0, False), (20, True), (100, True)])
def test_decisions_of_an_interval_share_a_kafka_transaction_and_keep_their_order(streams, interval: int, in_step: bool):
    streams.append(stream := Stream(interval))
    for _ in range(250):
        stream.decide()
        stream.pass_time(APART)
    # Without an interval there are more than with the default: the load is one in which it matters.
    most = stream.apply_all() / (interval or 20) + 1
    assert (stream.kafka_transactions <= most) == in_step
    assert [record.value for record in stream.small.visible("orders")] == [b"%d" % number for number in range(250)]


def test_p8_a_topic_that_is_gone_costs_the_others_no_kafka_transactions(streams):
    streams.append(stream := Stream(20))
    small = stream.small
    small.world.cluster.create_topic("stock", 1)

    def decide_about_stock() -> None:
        small.prepare("stock", f"{stream.prepared:032X}")
        stream.prepared += 1
        stream.decide()
        stream.apply_all()

    decide_about_stock()
    small.world.cluster.hidden.add("stock")
    decide_about_stock()
    began, before = stream.now, stream.kafka_transactions
    for _ in range(1_000):
        stream.decide()
        stream.pass_time(APART)
    stream.apply_all()
    # A few more: those that try again what the topic is to get.
    assert stream.kafka_transactions - before <= (stream.now - began) / 20 + 10
    small.world.cluster.hidden.clear()
    stream.wait_until(lambda: len(small.visible("stock")) == 2)
    assert len(small.visible("orders")) == 1_000


def _decide_many_unheard(stream: Stream) -> None:
    """Faust tells of the last one alone. So the worker reads END itself, in several Kafka transactions."""
    for _ in range(4_500):
        stream.prepare()
    # HALF is read meanwhile: the worker has nothing else to do at once.
    stream.pass_time(2_000)
    for number in range(4_500):
        stream.decide(ROLLBACK, aloud=number == 4_499)


def _decide_one_and_then_many(stream: Stream) -> None:
    stream.decide(ROLLBACK)
    stream.apply_all()
    for _ in range(2_000):
        stream.decide(ROLLBACK)


@pytest.mark.parametrize("decide", [Stream.decide, _decide_many_unheard, _decide_one_and_then_many])
def test_after_a_quiet_time_and_with_a_full_transaction_nothing_rests(streams, decide: Callable[[Stream], None]):
    times = []
    for interval in (0, 1_000):
        streams.append(stream := Stream(interval))
        decide(stream)
        times.append(stream.apply_all())
    assert times[1] <= times[0] + 100


def test_a_worker_that_rests_ends_at_once(streams):
    streams.append(stream := Stream(1_000))
    stream.decide()
    before = stream.apply_all()
    stream.decide()
    stream.process.stop()
    stream.wait_until(lambda: stream.process.actor.has_ended)
    assert stream.now - stream.began < before + 100


def test_the_discards_that_an_outage_has_left_follow_each_other_at_once(streams):
    streams.append(stream := Stream(20, CheckPolicy(transaction_timeout=2_000, transaction_max_age=4_000)))
    for _ in range(5_000):
        stream.prepare()

    def discarded() -> int:
        return len(stream.small.visible(stream.small.names.discard))

    stream.wait_until(lambda: discarded() > 0)
    began = stream.now
    stream.wait_until(lambda: discarded() == 5_000)
    # Without a wait for END between two Kafka transactions of a thousand.
    assert stream.now - began < 300
