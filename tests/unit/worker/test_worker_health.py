"""Liveness and readiness of a worker, without Kafka."""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from tests.support.client_fakes import LAYOUT
from txbridge.core.names import Names
from txbridge.errors import KafkaUnreachableError
from txbridge.kafka.admin import KafkaCluster
from txbridge.worker.http.health import Health
from txbridge.worker.observe.metrics import WorkerMetrics
from txbridge.worker.partitions import Assignment, OwnerStatus
from txbridge.worker.startup import InternalTopics


class FakeOwner:
    def __init__(self, partition, *, serving=True, error=None, clock=None):
        self.partition, self.silent_for, self.alive = partition, 0.0, True
        self.serving, self.error, self.clock = serving, error, clock

    def is_alive(self):
        return self.alive

    @property
    def status(self):
        return OwnerStatus(self.partition, self.serving, self.error, self.clock)


class FakeWorker:
    """A worker whose group answers as the test says."""

    def __init__(self, *owners, **assignment):
        self.was_assigned, self.stopped = True, False
        self.internal_topics = SimpleNamespace(problem=None)
        self.list = list(owners)
        partitions = frozenset(owner.partition for owner in owners)
        self.answer = Assignment(**{"stable": True, "member": True, "partitions": partitions, **assignment})

    def assignment(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def owners(self):
        return self.list

    def status(self):
        return [owner.status for owner in self.list]


@pytest.fixture
def clock():
    return SimpleNamespace(now=1_000.0)


@pytest.fixture
def ended():
    """Exit codes with which the process was ended."""
    return []


@pytest.fixture
def health(clock, ended):
    return Health(10_000, 20.0, 6_000, clock=lambda: clock.now, end=ended.append)


def ready(health, worker):
    health.look_after(worker)
    health.ask()
    return health.not_ready()


def test_it_is_not_ready_before_kafka_was_reached(health):
    [reason] = health.not_ready()
    assert reason.startswith("starting")
    assert health.not_live() == []


def test_it_is_not_ready_before_the_group_has_spoken(health):
    worker = FakeWorker(FakeOwner(0))
    worker.was_assigned = False
    assert ready(health, worker) == ["the group has not assigned partitions yet"]
    worker.was_assigned = True
    health.look_after(worker)
    assert health.not_ready() == ["the group's coordinator was not heard yet"]


def test_a_member_with_no_partition_is_ready(health):
    assert ready(health, FakeWorker()) == []


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (FakeWorker(FakeOwner(0), FakeOwner(3, serving=False)), "partition 3: being taken over"),
        (FakeWorker(FakeOwner(3, serving=False, error="fenced by x")), "partition 3: fenced by x"),
        (FakeWorker(partitions=frozenset({7})), "partition 7: assigned, not begun yet"),
        # The group has taken its partition away, but the owner here has not ended.
        (FakeWorker(FakeOwner(3, serving=False), partitions=frozenset()), "partition 3: being taken over"),
        (FakeWorker(FakeOwner(0), FakeOwner(3, clock="it is behind")), "partition 3: it is behind"),
        (FakeWorker(FakeOwner(0), member=False), "not a member of the group"),
        (FakeWorker(FakeOwner(0), stable=False), "the group is rebalancing"),
    ],
)
def test_it_is_not_ready_and_says_why(health, worker, reason):
    assert ready(health, worker) == [reason]


def test_a_worker_that_stops_is_not_ready(health):
    worker = FakeWorker(FakeOwner(0))
    assert ready(health, worker) == []
    worker.stopped = True
    assert health.not_ready() == ["stopping"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "no answer"),
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), "Broker transport failure"),
        (RuntimeError("odd"), "odd"),
    ],
)
def test_an_answer_counts_for_six_seconds(health, clock, error, text):
    worker = FakeWorker(FakeOwner(0))
    assert ready(health, worker) == []
    worker.answer = error
    clock.now += 5.9
    health.ask()
    assert health.not_ready() == []
    clock.now += 0.2
    [reason] = health.not_ready()
    assert reason.startswith("the group's coordinator was not heard for 6 s")
    assert text in reason


def test_after_an_answer_that_came_late_it_stays_ready(health, clock, monkeypatch):
    """The answer is as old as its question. It would run out if a rest followed."""
    worker, delays, reasons = FakeWorker(FakeOwner(0)), [0, 4.9, 0.5, 0], []

    def assignment():
        clock.now += delays.pop(0)
        reasons.append(health.not_ready())
        return worker.answer

    def rest(seconds):
        clock.now += seconds
        if not delays:
            raise KeyboardInterrupt

    worker.assignment = assignment
    monkeypatch.setattr("txbridge.worker.http.health.time", SimpleNamespace(sleep=rest))
    health.look_after(worker)
    with pytest.raises(KeyboardInterrupt):
        health._repeat(health.ask)
    first, late, *others = reasons
    assert first == ["the group's coordinator was not heard yet"]
    assert late == ["the group's coordinator was not heard for 7 s: no answer"]
    assert others == [[], []]


def test_a_restarted_worker_is_not_ready_by_what_was_said_of_the_one_before(health):
    assert ready(health, FakeWorker(FakeOwner(0))) == []
    health.look_after(FakeWorker(FakeOwner(0)))
    assert health.not_ready() != []


def test_a_thread_that_has_ended_or_hangs_is_not_alive(health):
    dead, hanging = FakeOwner(0), FakeOwner(1)
    health.look_after(FakeWorker(dead, hanging, FakeOwner(2)))
    # All bounded waits together may take this long.
    hanging.silent_for = 145.0
    assert health.not_live() == []
    dead.alive, hanging.silent_for = False, 146.0
    assert health.not_live() == ["partition 0: its thread has ended", "partition 1: its thread hangs for 146 s"]


class FakeLoop:
    def __init__(self):
        self.calls, self.closed = [], False

    def call_soon_threadsafe(self, call, *args):
        if self.closed:
            raise RuntimeError
        self.calls.append(functools.partial(call, *args))


def look(health, clock, loop, seconds):
    """What the thread does every two seconds, for this long. The loop runs."""
    for _ in range(seconds // 2):
        clock.now += 2
        health.ask()
        health.end_if_hanging()
        while loop.calls:
            loop.calls.pop(0)()


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ({"member": False, "partitions": frozenset()}, "the group does not have this process as a member"),
        ({"partitions": frozenset({0, 3})}, "Faust has passed on partitions [0], not [0, 3] as assigned"),
        ({"partitions": frozenset()}, "Faust has passed on partitions [0], not [] as assigned"),
    ],
)
def test_faust_is_started_again_when_the_group_does_without_this_process(health, clock, ended, assignment, reason):
    """For longer than joining takes, by the coordinator's own answers: whatever task of a library it was."""
    loop, rejoined = FakeLoop(), []
    health.look_after_loop(loop, rejoined.append)
    worker = FakeWorker(FakeOwner(0))
    health.look_after(worker)
    look(health, clock, loop, 20)
    joined, worker.answer = worker.answer, Assignment(**{"stable": True, "member": True, **assignment})
    look(health, clock, loop, 20)
    assert (rejoined, health.not_live()) == ([], [])
    # One good answer, and the time counts anew.
    worker.answer, left = joined, worker.answer
    look(health, clock, loop, 2)
    worker.answer = left
    look(health, clock, loop, 20)
    assert rejoined == []
    look(health, clock, loop, 4)
    assert (rejoined, health.not_live(), ended) == ([reason], [reason], [])
    # Faust was started again.
    health.look_after(FakeWorker(FakeOwner(0)))
    assert health.not_live() == []
    look(health, clock, loop, 60)
    assert (rejoined, ended) == ([reason], [])


def test_faust_is_started_again_when_it_keeps_the_assignment_of_a_worker_that_serves_already(health, clock):
    loop, rejoined = FakeLoop(), []
    health.look_after_loop(loop, rejoined.append)
    worker = FakeWorker(FakeOwner(0))
    worker.was_assigned = False
    health.look_after(worker)
    look(health, clock, loop, 60)
    assert rejoined == []
    look(health, clock, loop, 24)
    assert rejoined == ["Faust has passed on partitions [], not [0] as assigned"]


def test_a_process_that_the_group_lost_and_that_faust_does_not_leave_ends(health, clock, ended):
    loop = FakeLoop()
    health.look_after_loop(loop, lambda _reason: None)
    health.look_after(FakeWorker(member=False))
    with capture_logs() as logs:
        look(health, clock, loop, 46)
        assert ended == []
        look(health, clock, loop, 4)
    assert set(ended) == {1}
    assert (logs[0]["event"], logs[0]["log_level"]) == ("worker_hangs", "error")
    assert logs[0]["reasons"] == ["the group does not have this process as a member"]


def test_no_answer_of_the_group_is_no_reason_to_do_anything(health, clock, ended):
    loop, rejoined = FakeLoop(), []
    health.look_after_loop(loop, rejoined.append)
    worker = FakeWorker(member=False)
    health.look_after(worker)
    for _ in range(10):
        left, worker.answer = worker.answer, TimeoutError()
        look(health, clock, loop, 600)
        worker.answer = left
        look(health, clock, loop, 18)
    assert (rejoined, ended, health.not_live()) == ([], [], [])


def test_the_first_join_has_more_time(health, clock):
    loop, rejoined = FakeLoop(), []
    health.look_after_loop(loop, rejoined.append)
    worker = FakeWorker(member=False)
    worker.was_assigned = False
    health.look_after(worker)
    look(health, clock, loop, 78)
    assert rejoined == []
    look(health, clock, loop, 4)
    assert len(rejoined) == 1


def test_a_process_that_stood_still_gets_time_to_show_progress(health, clock, ended):
    """SIGSTOP for ten minutes: at first every thread seems to have hung that long."""
    loop, owner = FakeLoop(), FakeOwner(0)
    health.look_after_loop(loop)
    health.look_after(FakeWorker(owner))
    look(health, clock, loop, 10)
    clock.now, owner.silent_for = clock.now + 600, 600
    health.end_if_hanging()
    assert health.not_live() != []
    owner.silent_for = 0
    look(health, clock, loop, 60)
    assert ended == []
    owner.alive = False
    look(health, clock, loop, 30)
    assert 1 in ended


def test_faust_that_does_not_come_to_an_end_is_not_alive(health, clock, ended):
    loop, worker = FakeLoop(), FakeWorker(FakeOwner(0))
    health.look_after(worker)
    health.look_after_loop(None)
    worker.stopped = True
    look(health, clock, loop, 30)
    assert health.not_live() == []
    look(health, clock, loop, 2)
    assert health.not_live() == ["Faust has not ended for 32 s"]
    look(health, clock, loop, 26)
    assert 1 in ended
    # It has ended, and the process waits for Kafka to start it again.
    health.look_after(None)
    assert health.not_live() == []


def test_an_event_loop_that_stands_still_is_not_alive(health, clock):
    loop = FakeLoop()
    health.look_after_loop(loop)
    for _ in range(3):
        clock.now += 59
        health.ask()
        loop.calls.pop()()
        assert health.not_live() == []
    clock.now += 61
    health.ask()
    assert health.not_live() == ["Faust's event loop has not answered for 61 s"]
    # A loop that has ended is another case: Faust reports it, and is started anew.
    loop.closed = True
    health.ask()
    assert health.not_live() == []


ONES = dict.fromkeys(("half", "end", "op", "offset"), 1)
NAMED = Names().identified


class FakeTopics:
    """A cluster with topics, by their short names: the number of partitions and the topic id."""

    def __init__(self):
        self.counts, self.ids, self.cluster = dict.fromkeys(ONES, 4), dict(ONES), "first"

    def poll(self, _seconds): ...

    def describe_topics(self, topics, **_options):
        answers = {topic: Future() for topic in topics.topic_names}
        for short, topic in NAMED.items():
            if short in self.ids:
                facts = SimpleNamespace(partitions=range(self.counts[short]), topic_id=self.ids[short])
                answers[topic].set_result(facts)
            else:
                answers[topic].set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return answers

    def describe_cluster(self, **_options):
        answer = Future()
        answer.set_result(SimpleNamespace(cluster_id=self.cluster))
        return answer


def watching(topics, worker):
    """The metrics of a worker that compares these topics with those of now."""
    metrics = WorkerMetrics()
    metrics.partitions_found = 4
    start = dataclasses.replace(
        LAYOUT, topic_ids={NAMED[short]: str(one) for short, one in topics.ids.items()}, cluster_id=topics.cluster
    )
    worker.internal_topics = InternalTopics(KafkaCluster(lambda: topics), Names(), metrics, start)
    return metrics


def test_partitions_that_were_added_to_all_topics_alike_are_told_and_served(health):
    topics, worker = FakeTopics(), FakeWorker(FakeOwner(0))
    metrics = watching(topics, worker)
    topics.counts = dict.fromkeys(ONES, 5)
    health.look_after(worker)
    with capture_logs() as logs:
        for _ in range(3):
            health.look_at_topics()
    assert (ready(health, worker), metrics.partitions_found) == ([], 5)
    assert [line["error"][:50] for line in logs] == ["HALF, END, OP and OFFSET have 5 partitions, 4 befo"]


def test_a_change_is_told_once_and_only_topics_that_are_all_there_and_others_end_the_process(health, ended):
    topics, worker = FakeTopics(), FakeWorker(FakeOwner(0))
    metrics = watching(topics, worker)
    health.look_after(worker)
    with capture_logs() as logs:
        topics.counts["half"] = 6
        for ids in (ONES, ONES, {}, {"half": 2, "end": 2}, {"half": 2, "end": 2}, dict.fromkeys(ONES, 2)):
            assert ended == []
            topics.ids = ids
            health.look_at_topics()
    assert ended == [1]
    texts = [line["error"] for line in logs if line["event"] == "topics_changed"]
    assert [text.partition(" ")[0] for text in texts] == [NAMED[short] for short in ("half", "half", "op", "half")]
    assert "were deleted and created again" in texts[-1]
    assert metrics.totals()["errors"] == 4
    assert ready(health, worker) == [texts[-1]]


def test_faust_leaves_another_cluster_once_and_does_not_join_there_again(health, clock, ended):
    loop, rejoined, topics, worker = FakeLoop(), [], FakeTopics(), FakeWorker(FakeOwner(0))
    health.require_cluster("first")
    health.look_after_loop(loop, rejoined.append)
    watching(topics, worker)
    health.look_after(worker)
    topics.cluster, topics.ids = "second", {}
    for _ in range(3):
        health.look_at_topics()
    look(health, clock, loop, 2)
    [reason] = rejoined
    assert "another Kafka cluster answers at the same address: second, not first as at the start" in reason
    health.look_after(None)
    with pytest.raises(KafkaUnreachableError, match="second, not first"):
        health.require_cluster("second")
    assert health.not_ready() == [reason]
    health.require_cluster("first")
    assert (health.not_ready()[0][:8], ended) == ("starting", [])


def test_partitions_that_no_member_has_are_told_when_that_is_no_hand_over(health, clock):
    worker, loop = FakeWorker(FakeOwner(0)), FakeLoop()
    health.look_after(worker)
    look(health, clock, loop, 2)
    worker.answer = dataclasses.replace(worker.answer, uncovered=frozenset({3}))
    look(health, clock, loop, 16)
    assert health.not_ready() == []
    look(health, clock, loop, 4)
    assert health.not_ready() == ["no member of the group has partitions [3]"]
