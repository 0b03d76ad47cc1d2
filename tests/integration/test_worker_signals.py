"""Signals that tell a worker to end while it works. test_services_start.py has those before."""

from __future__ import annotations

import os
import signal
from collections import Counter

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.support.harness import COMMIT, Bridge, eventually

#: Ten minutes: a test that had to wait for another worker's session time-out would fail.
_PATIENT_MS = 600_000


def test_sigterm_under_load_ends_the_kafka_transactions_at_hand_and_leaves_the_group(bridge: Bridge) -> None:
    """A killed worker leaves a transaction open, and its partitions without an owner until the session time-out."""
    topic = bridge.create_topic("real")
    values = [b"%d" % number for number in range(6_000)]
    first = bridge.worker(session_timeout=_PATIENT_MS)
    bridge.decide_many(bridge.prepare_many(topic, values), COMMIT, batch=10)
    assert first.stop() == 0
    assert first.events("ended_without_leaving_the_group") == []
    group = bridge.names.worker_group
    assert bridge.admin.describe_consumer_groups([group])[group].result(120).members == []
    # Markers may still be missing. An open transaction would stay open until its time-out.
    eventually(lambda: not _open_transactions(bridge), 5)
    # The next worker waits for no session, and the work at hand was done once.
    bridge.worker(session_timeout=_PATIENT_MS)
    bridge.wait_visible(topic, values)
    assert bridge.visible(topic) == Counter(values)


def test_sigterm_hands_the_partitions_over_to_the_other_worker(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    first = bridge.worker(session_timeout=_PATIENT_MS)
    second = bridge.worker(wait=1, session_timeout=_PATIENT_MS)
    values = [b"%d" % number for number in range(2_000)]
    bridge.decide_many(bridge.prepare_many(topic, values), COMMIT, batch=10)
    assert first.stop() == 0
    eventually(lambda: second.owned() == {0, 1})
    bridge.wait_visible(topic, values)
    assert bridge.visible(topic) == Counter(values)
    assert second.returncode is None


def _open_transactions(bridge: Bridge) -> bool:
    """Whether a reader of committed records sees an earlier end of OFFSET than others."""
    places = {TopicPartition(bridge.names.offset, number): OffsetSpec.latest() for number in range(bridge.partitions)}
    ends = [
        {
            place: answer.result(120).offset
            for place, answer in bridge.admin.list_offsets(places, isolation_level=one).items()
        }
        for one in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    return ends[0] != ends[1]


def test_sighup_of_a_closed_terminal_leaves_the_group_as_sigterm_does(bridge: Bridge) -> None:
    worker = bridge.worker(session_timeout=_PATIENT_MS)
    os.kill(worker.pid, signal.SIGHUP)
    assert worker.wait_dead() == 0
    assert worker.events("worker_ended") != []
    group = bridge.names.worker_group
    assert bridge.admin.describe_consumer_groups([group])[group].result(120).members == []


def test_under_nohup_a_worker_stays_after_sighup(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker = bridge.worker()
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(worker.pid, signal.SIGHUP)
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    bridge.wait_visible(topic, [b"value"])
    assert worker.returncode is None
    assert worker.stop() == 0
