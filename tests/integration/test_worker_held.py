"""Commits that cannot be delivered: only that transaction waits, is reported, and is not lost (P2, P8)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)
from structlog.testing import capture_logs

from tests.support.harness import COMMIT, ROLLBACK, Bridge, WorkerProcess, at_this_load, eventually
from tests.support.message_frames import Framed, write
from txbridge.core.fresh_halves import Run
from txbridge.core.plan.draft import Draft
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka import topic_lookup
from txbridge.kafka.topic_lookup import TopicRules


def _held(worker: WorkerProcess, error: str) -> list[dict[str, object]]:
    return [event for event in worker.events("held") if error in str(event["error"])]


def test_p8_a_missing_topic_holds_its_messages_alone_also_over_a_crash(bridge: Bridge) -> None:
    there, missing = bridge.create_topic("there"), f"{bridge.namespace}.missing"
    worker = bridge.worker()
    held, others = bridge.prepare_many(missing, [b"held 0", b"held 1"], partition=0), [b"%d" % n for n in range(50)]
    prepared = bridge.prepare_many(there, others, partition=0)
    # All are in one END record, so the others are delivered in the transaction that holds these.
    bridge.end([one.entry(COMMIT) for one in [held[0], *prepared, held[1]]], 0)
    bridge.wait_visible(there, others, 5)
    eventually(lambda: _held(worker, f"topic {missing} does not exist"))
    [event] = _held(worker, "does not exist")
    assert (event["count"], event["half_offset"], event["topic"]) == (2, held[0].offset, missing)
    # A held message is decided: neither a rollback nor a check changes that.
    bridge.decide(held[0], ROLLBACK)
    worker.wait_logged('"reason": "contradiction"')
    assert bridge.parked_states(0) == ["held", "held"]
    worker.kill()
    with bridge.local_owner():
        bridge.decide(held[1], ROLLBACK)
        eventually(lambda: bridge.checkpoint(0)["end"] == bridge.bounds(bridge.names.end, 0)[1])
        assert bridge.parked_states(0) == ["held", "held"]
        bridge.create_topic("missing")
        bridge.wait_visible(missing, [b"held 0", b"held 1"], 10)
        eventually(lambda: not bridge.parked_states(0))
    assert bridge.visible(missing) == {b"held 0": 1, b"held 1": 1}
    assert bridge.outcomes()[0, held[0].offset] == bridge.outcomes()[0, held[1].offset] == ["commit"]


def test_the_log_has_start_and_end_of_a_worker_and_what_it_no_longer_holds_in_one_line(bridge: Bridge) -> None:
    missing = f"{bridge.namespace}.missing"
    worker = bridge.worker(park_after=500)
    prepared = [*bridge.prepare_many(missing, [b"a"] * 30, partition=0), bridge.prepare(missing, b"b", partition=1)]
    bridge.decide_many(prepared, COMMIT)
    eventually(lambda: sum(int(str(one["count"])) for one in _held(worker, "does not exist")) == 31)
    bridge.create_topic("missing")
    eventually(lambda: sum(bridge.visible(missing).values()) == 31, 90)
    eventually(lambda: sum(int(one["count"]) for one in worker.events("no_longer_held")) == 31, 90)
    # All messages that are held for a topic are tried again as soon as it has taken one.
    lines = worker.events("no_longer_held")
    assert {(one["topic"], one["level"]) for one in lines} == {(missing, "info")}
    assert len(lines) <= 2, lines
    assert worker.stop() == 0
    [started], [ended] = worker.events("worker_started"), worker.events("worker_ended")
    assert (started["version"], started["brokers"], started["namespace"], started["worker_group"]) == (
        version("txbridge"),
        bridge.bootstrap_servers,
        bridge.namespace,
        bridge.names.worker_group,
    )
    assert started["options"]["park_after"] == 500
    assert "transaction_max_age" not in started["options"]
    assert 0 < ended["seconds"] < 600


@pytest.mark.parametrize("shows_configs", [True, False], ids=["configuration shown", "hidden"])
def test_p8_records_that_their_topic_refuses_are_held_alone(
    bridge: Bridge, shows_configs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses a whole batch because of one record. The good records of the batch are delivered nevertheless."""
    if not shows_configs:
        # As for a worker without the right DESCRIBE_CONFIGS.
        monkeypatch.setattr(topic_lookup, "_rules_in", lambda _: TopicRules())
    small = bridge.create_topic("small", 1, max_message_bytes="20000")
    compact = bridge.create_topic("compact", 1, cleanup_policy="compact")
    two = bridge.create_topic("two", 2)
    with bridge.local_owner(), capture_logs() as logs:
        large = [bridge.prepare(small, random.randbytes(30_000 + n), partition=0) for n in range(3)]
        keyless = bridge.prepare(compact, b"no key", partition=0)
        nowhere = [bridge.prepare(two, b"nowhere %d" % n, partition=0, extra=[("REAL_QID", b"7")]) for n in range(3)]
        future = bridge.prepare(two, b"future", partition=0, extra=[("BORN_TIMESTAMP", b"9999999999999")])
        good = {topic: [b"good %d" % number for number in range(100)] for topic in (small, compact, two)}
        prepared = [one for topic in good for one in bridge.prepare_many(topic, good[topic], partition=0)]
        chosen = [*large, keyless, *nowhere, future, *prepared]
        random.shuffle(chosen)
        bridge.decide_many(chosen, COMMIT)
        for topic, values in good.items():
            bridge.wait_visible(topic, values, 20)
        eventually(lambda: Counter(bridge.parked_states(0)) == {"held": 8}, 20)
        # An operator finds all of a kind by one --cause.
        held = {str(entry["error"]) for entry in bridge.offset_records(0).values() if "state" in entry}
        assert len(held) == 4
        reasons = {str(entry["error"]) for entry in logs if entry["event"] == "held"}
        # Kafka's own words tell less than its configuration does.
        texts = ("too large (max.message.bytes)", "it has no key", "so no partition 7", "its timestamp is")
        assert not shows_configs or all(any(text in reason for reason in reasons) for text in texts), reasons
        # They are delivered as soon as their topics take them, each on its own.
        bridge.alter_topic(small, max_message_bytes="100000")
        bridge.alter_topic(two, message_timestamp_after_max_ms=str(2**62))
        bridge.alter_topic(compact, cleanup_policy="delete")
        bridge.admin.create_partitions([NewPartitions(two, 8)])[two].result(120)
        eventually(lambda: not bridge.parked_states(0), 90, f"still held: {bridge.parked_states(0)}")
    assert len(bridge.visible(small)) == 103
    assert bridge.visible(compact)[b"no key"] == bridge.visible(two)[b"future"] == 1
    assert {message.partition() for message in bridge.read(two) if message.value().startswith(b"nowhere")} == {7}
    assert all(set(bridge.visible(topic).values()) == {1} for topic in good)
    assert all(outcomes == ["commit"] for outcomes in bridge.outcomes().values())


def test_p8_a_topic_that_refuses_records_slows_no_other(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' fresh half messages are still delivered in runs, also while its held message is tried again."""
    small, other = bridge.create_topic("small", 1, max_message_bytes="20000"), bridge.create_topic("other", 1)
    runs: Counter[str] = Counter()
    apply_run = Draft.apply_run

    def count(draft: Draft, run: Run) -> None:
        runs.update(run.topics)
        apply_run(draft, run)

    monkeypatch.setattr(Draft, "apply_run", count)
    with bridge.local_owner() as owner:
        owner.wait_serving()
        bridge.decide(bridge.prepare(small, random.randbytes(30_000), partition=0), COMMIT)
        eventually(lambda: bridge.parked_states(0) == ["held"])
        runs.clear()
        for number in range(10):
            for topic in (other, small):
                bridge.decide(bridge.prepare(topic, b"%d" % number, partition=0), COMMIT)
        values = [b"%d" % number for number in range(10)]
        bridge.wait_visible(other, values)
        bridge.wait_visible(small, values)
    assert runs[other] >= 5
    assert runs[small] == 0


def test_p8_a_topic_with_small_batches_is_no_obstacle(bridge: Bridge) -> None:
    """max.message.bytes limits a batch. One below librdkafka's batch size must neither hold nor delay messages."""
    topic = bridge.create_topic("small", 1, max_message_bytes="50000")
    values = [b"%06d" % number + random.randbytes(1_000) for number in range(3_000)]
    prepared = bridge.prepare_many(topic, values, partition=0)
    with bridge.local_owner(), capture_logs() as logs:
        bridge.decide_many(prepared, COMMIT, batch=500)
        bridge.wait_visible(topic, values, 30)
        assert not [entry for entry in logs if entry["event"] == "held"]
    assert set(bridge.visible(topic).values()) == {1}


def test_p8_a_topic_without_room_for_a_transaction_marker_is_never_written_to(bridge: Bridge) -> None:
    """Kafka could not write its marker, and the half partition would wait for it forever."""
    tiny, other = bridge.create_topic("tiny", 1, max_message_bytes="77"), bridge.create_topic("other", 1)
    pair = [bridge.prepare(tiny, b"held", partition=0), bridge.prepare(other, b"other", partition=0)]
    with bridge.local_owner(), capture_logs() as logs:
        bridge.decide_many(pair, COMMIT)
        bridge.wait_visible(other, [b"other"], 20)
        eventually(lambda: bridge.parked_states(0) == ["held"])
        [held] = [entry for entry in logs if entry["event"] == "held"]
        assert held["error"] == (
            f"topic {tiny}: max.message.bytes is 77, and Kafka's own transaction marker takes 78 bytes: raise it"
        )
        # The marker has room, and the message has none.
        bridge.alter_topic(tiny, max_message_bytes="78")
        bridge.deliver(other, b"more")
        bridge.alter_topic(tiny, max_message_bytes="1000000")
        bridge.wait_visible(tiny, [b"held"], 90)


def test_p8_a_message_larger_than_the_workers_queue_is_held_and_named(bridge: Bridge) -> None:
    topic, other = bridge.create_topic("real", 1), bridge.create_topic("other", 1)
    large = bridge.prepare(topic, random.randbytes(200_000), partition=0)
    with bridge.local_owner(kafka={"queue.buffering.max.kbytes": 100}), capture_logs() as logs:
        bridge.decide_many([large, bridge.prepare(other, b"other", partition=0)], COMMIT)
        bridge.wait_visible(other, [b"other"], 20)
        eventually(lambda: bridge.parked_states(0) == ["held"])
        held = [entry for entry in logs if entry["event"] == "held"]
        assert "larger than queue.buffering.max.kbytes" in held[0]["error"]
    # A worker with a larger queue delivers it.
    with bridge.local_owner():
        eventually(lambda: not bridge.parked_states(0), 60)
    assert sum(bridge.visible(topic).values()) == 1


def test_p8_a_topic_of_several_messages_does_not_pay_for_others_that_refuse(bridge: Bridge) -> None:
    """Ten topics refuse one of two messages each. The topic of the other one goes on without them."""
    good = bridge.create_topic("good", 1)
    bad = [bridge.create_topic(f"bad-{number}", 1, max_message_bytes="3000") for number in range(10)]
    pairs = [[Framed(good, b"k", b"held"), Framed(topic, b"k", random.randbytes(4_000))] for topic in bad * 8]
    extra = [("TXB_MESSAGES", b"2")]
    prepared = [bridge.prepare(good, write(pair), key=b"k", partition=0, extra=extra) for pair in pairs]
    with bridge.local_owner() as owner:
        owner.wait_serving()
        delays = []
        for number in range(20):
            for pair in prepared[4 * number : 4 * number + 4]:
                bridge.decide(pair, COMMIT)
            since = time.monotonic()
            bridge.deliver(good, b"%d" % number)
            delays.append(time.monotonic() - since)
        print(f"median {sorted(delays)[10]:.2f} s, most {max(delays):.2f} s")
        # Some tenths of a second on an idle machine, and four seconds and more if the topic pays for the others.
        assert sorted(delays)[10] < at_this_load(3)
        eventually(lambda: bridge.parked_states(0) == ["held"] * len(pairs))
    assert set(bridge.visible(good).values()) == {1}


def test_p8_a_discard_topic_that_takes_no_copy_delays_discards_alone(bridge: Bridge) -> None:
    """A compacted topic takes no record without a key: neither the copy, nor one that lacks key and value."""
    other = bridge.create_topic("other", 1)
    bridge.alter_topic(bridge.names.discard, cleanup_policy="compact")
    options = {"transaction_check_max": 1, "transaction_check_interval": 1_000}
    with bridge.member("group"), bridge.local_owner(**options), capture_logs() as logs:
        undecided = [bridge.prepare(other, b"undecided", partition=0) for _ in range(5)]
        eventually(lambda: any(entry["event"] == "internal_topic_refused" for entry in logs), 60)
        delays = []
        for number in range(50):
            since = time.monotonic()
            bridge.deliver(other, b"%d" % number)
            delays.append(time.monotonic() - since)
        print(f"median {sorted(delays)[25]:.2f} s, most {max(delays):.2f} s")
        # Nothing but the first attempts is aborted: each later one comes after a pause that doubles.
        refused = [entry for entry in logs if entry["event"] == "internal_topic_refused"]
        assert len(refused) <= 2 + sum(delays) / 2, refused
        assert not bridge.discarded()
        assert not [entry for entry in logs if entry["event"] == "held"]
        bridge.alter_topic(bridge.names.discard, cleanup_policy="delete")
        eventually(lambda: len(bridge.discarded()) == len(undecided), 90)


def test_p8_a_topic_that_is_deleted_delays_the_others_by_the_time_out_once(bridge: Bridge) -> None:
    gone, other = bridge.create_topic("gone", 1), bridge.create_topic("other", 1)
    with bridge.local_owner(commit_timeout=10_000), capture_logs() as logs:
        bridge.deliver(gone, b"first")
        bridge.admin.delete_topics([gone])[gone].result(120)
        eventually(lambda: gone not in bridge.admin.list_topics(timeout=120).topics)
        # The worker keeps its knowledge of topics for a minute, so it still takes the name for good.
        delays = []
        for number in range(6):
            since = time.monotonic()
            pair = [bridge.prepare(gone, b"gone %d" % number, partition=0)]
            pair.append(bridge.prepare(other, b"other %d" % number, partition=0))
            bridge.decide_many(pair, COMMIT)
            bridge.wait_visible(other, [b"other %d" % number], 30)
            delays.append(time.monotonic() - since)
        print("delays: " + ", ".join(f"{delay:.1f}" for delay in delays))
        # The worker waits for a record for half of the commit time-out.
        assert sum(delay > 4.5 for delay in delays) <= 1
        assert [entry for entry in logs if entry["event"] == "held"]
        bridge.create_topic("gone", 1)
        bridge.wait_visible(gone, [b"gone %d" % number for number in range(6)], 40)
    assert set(bridge.visible(gone).values()) == {1}


def test_p2_a_commit_whose_body_retention_has_eaten_is_held_and_named(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=200, payload_memory=1), capture_logs() as logs:
        eaten, kept = (bridge.prepare(topic, value, partition=0) for value in (b"eaten", b"kept"))
        eventually(lambda: bridge.checkpoint(0)["half"] == 2)
        bridge.delete_records(bridge.names.half, 0, 1)
        bridge.decide_many([eaten, kept], COMMIT)
        bridge.wait_visible(topic, [b"kept"])
        eventually(lambda: bridge.parked_states(0) == ["held"])
        [entry] = [entry for entry in logs if entry["event"] == "held"]
        assert "retention has deleted its half message" in entry["error"]
        bridge.deliver(topic, b"goes on")


@pytest.fixture(scope="module")
def guarded_kafka() -> Iterator[EmbeddedKafka]:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka(config=config) as broker:
        yield broker


@pytest.mark.parametrize(
    ("right", "known"),
    [(AclOperation.WRITE, False), (AclOperation.WRITE, True), (AclOperation.DESCRIBE, False)],
    ids=["write", "write, later", "describe"],
)
def test_p8_a_forbidden_topic_holds_its_messages_alone(
    guarded_kafka: EmbeddedKafka, right: AclOperation, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_lookup, "BELIEVED_S", 60 if known else 0.1)
    with Bridge(guarded_kafka.bootstrap_servers, f"forbidden {right.name} {known}", partitions=1) as bridge:
        forbidden, other = bridge.create_topic("forbidden", 1), bridge.create_topic("other", 1)

        def acl(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
            pattern = ResourcePatternType.LITERAL
            return AclBinding(ResourceType.TOPIC, forbidden, pattern, "User:*", "*", operation, permission)

        def forbid() -> None:
            bindings = [acl(AclOperation.ALL, AclPermissionType.ALLOW), acl(right, AclPermissionType.DENY)]
            for answer in bridge.admin.create_acls(bindings).values():
                answer.result(120)

        with bridge.local_owner(), capture_logs() as logs:
            if known:
                bridge.deliver(forbidden, b"before")
            forbid()
            pair = [bridge.prepare(forbidden, b"held", partition=0), bridge.prepare(other, b"other", partition=0)]
            bridge.decide_many(pair, COMMIT)
            bridge.wait_visible(other, [b"other"], 20)
            eventually(lambda: bridge.parked_states(0) == ["held"])
            held = [entry for entry in logs if entry["event"] == "held"]
            assert "no right to" in held[-1]["error"] or "authorization" in held[-1]["error"]
            filters = [
                AclBindingFilter(
                    ResourceType.TOPIC,
                    forbidden,
                    ResourcePatternType.LITERAL,
                    None,
                    None,
                    AclOperation.ANY,
                    AclPermissionType.ANY,
                )
            ]
            for answer in bridge.admin.delete_acls(filters).values():
                answer.result(120)
            bridge.wait_visible(forbidden, [b"held"], 30)
        assert set(bridge.visible(forbidden).values()) == {1}
