"""Take-overs: zombies and half-finished take-overs cause no harm, and impossible topics are refused by name."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewPartitions
from txbridge_audit.audit import AuditEngine, run_audit
from txbridge_audit.errors import CouldNotAuditError

from tests.support.harness import COMMIT, ROLLBACK, Bridge, LocalOwner, eventually
from txbridge.core.checkpoint import offset_headers, op_headers
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome, TransactionState
from txbridge.errors import EnvironmentProblemError
from txbridge.failpoints import fault_point
from txbridge.kafka import partition_reader
from txbridge.kafka.errors import IndefiniteError, TakeOverRefusedError
from txbridge.kafka.fenced_producer import EndTxnWatch
from txbridge.operations.acknowledge_loss import acknowledge
from txbridge.operations.reading import read_view
from txbridge.worker import partitions
from txbridge.worker.takeover import restore
from txbridge.worker.transaction.writer import TransactionalWriter
from txbridge.worker.turn import commit_loop


@pytest.mark.parametrize("step", ["add", "produce", "commit", "abort"])
def test_a_fence_is_an_ordinary_event_and_no_line_of_librdkafka_says_more(
    step: str, bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that starts fences the owner before it, at whatever it does."""
    topic = bridge.create_topic("real")
    caplog.set_level(logging.DEBUG, "txbridge.librdkafka")
    settings = {"bootstrap.servers": bridge.bootstrap_servers, "transactional.id": f"{topic}.{step}"}
    watch = EndTxnWatch(logging.getLogger("txbridge.librdkafka"), forward_debug=False)
    owner, successor = Producer({**settings, "logger": watch}), Producer(settings)
    owner.init_transactions(60)
    owner.begin_transaction()
    if step != "add":
        owner.produce(topic, b"value")
        owner.flush(60)
    successor.init_transactions(60)
    # Until the successor has written, Kafka may take the owner's requests.
    successor.begin_transaction()
    successor.produce(topic, b"value")
    successor.commit_transaction(60)
    if step in {"add", "produce"}:
        owner.produce(topic, b"value")
        # It may be the first to say so.
        with suppress(KafkaException):
            owner.flush(60)
    with pytest.raises(KafkaException, match="_FENCED"):
        owner.abort_transaction(60) if step == "abort" else owner.commit_transaction(60)
    with suppress(KafkaException):
        owner.poll(0)
    assert "fenced" in caplog.text
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


def test_p3_a_zombie_is_fenced_and_owns_again_only_what_the_group_gives_it(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    zombie = bridge.worker(session_timeout=2_000)
    before = bridge.prepare_many(topic, [b"before %d" % number for number in range(20)])
    bridge.decide_many(before, COMMIT)
    bridge.wait_visible(topic, [b"before %d" % number for number in range(20)])
    waiting = bridge.prepare_many(topic, [b"waiting %d" % number for number in range(20)])
    zombie.pause()
    other = bridge.worker(session_timeout=2_000)
    assert other.owned() == {0, 1}
    bridge.decide_many(waiting[:15], COMMIT)
    bridge.decide_many(waiting[15:], ROLLBACK)
    bridge.wait_visible(topic, [b"waiting %d" % number for number in range(15)])
    # It wakes up as the supposed owner of both partitions, with decisions before it that are applied already.
    zombie.resume()
    zombie.wait_logged('"fenced"', 40)
    eventually(lambda: len(zombie.owned()) == len(other.owned()) == 1, 40, "the two did not come to share")
    after = bridge.prepare_many(topic, [b"after %d" % number for number in range(20)])
    bridge.decide_many(after, COMMIT)
    bridge.wait_visible(topic, [b"after %d" % number for number in range(20)])
    counts = bridge.visible(topic)
    assert set(counts.values()) == {1}
    assert len(counts) == 55
    assert all(len(outcomes) == 1 for outcomes in bridge.outcomes().values())
    fenced_at = str(zombie.events("fenced")[0]["timestamp"])
    taken_after = {
        event["partition"] for event in zombie.events("partition_taken_over") if str(event["timestamp"]) > fenced_at
    }
    assert taken_after <= zombie.owned()


class _Gate:
    """Stops the next take-over at a fault point until it is opened."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == self._point and not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(60)
        fault_point(name)


@pytest.mark.parametrize("point", ["takeover.fenced", "takeover.restored"])
def test_p3_a_zombie_that_commits_in_the_middle_of_a_takeover(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    topic = bridge.create_topic("real")
    prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(10)], partition=0)
    group_says = "zombie"
    with bridge.local_owner(confirm=lambda _: group_says == "zombie") as zombie:
        bridge.decide_many(prepared[:5], COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(5)])
        gate = _Gate(point)
        monkeypatch.setattr(restore, "fault_point", gate)
        group_says = "other"
        other = bridge.local_owner()
        assert gate.reached.wait(120)
        bridge.decide_many(prepared[5:], COMMIT)
        zombie.wait_error("fenced")
        gate.opened.set()
        other.wait_serving()
        bridge.wait_visible(topic, [b"%d" % number for number in range(10)])
        assert set(bridge.visible(topic).values()) == {1}
        assert not zombie.owner.status.serving
        # The other owner stops, the group assigns the partition to the zombie, and the zombie serves it again.
        other.stop()
        group_says = "zombie"
        zombie.wait_serving()
        bridge.decide(prepared[0], ROLLBACK)
        eventually(lambda: bridge.checkpoint(0)["end"] == bridge.bounds(bridge.names.end, 0)[1])
    assert set(bridge.visible(topic).values()) == {1}


def test_p3_a_zombie_that_takes_the_fence_back_in_the_middle_of_a_takeover(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit with connection trouble takes the fence again. A zombie may do so, too, but not for long."""
    topic = bridge.create_topic("real")
    prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(10)], partition=0)
    group_says = "zombie"
    fences: list[TransactionalWriter] = []
    real_fence = TransactionalWriter.take_fence

    def fence(writer: TransactionalWriter) -> None:
        fences.append(writer)
        real_fence(writer)

    monkeypatch.setattr(TransactionalWriter, "take_fence", fence)
    with bridge.local_owner(confirm=lambda _: group_says == "zombie") as zombie:
        # The one before may have failed: a new topic has no leader for a moment.
        of_zombie = fences[-1]
        gate = _Gate("takeover.restored")
        monkeypatch.setattr(restore, "fault_point", gate)
        group_says = "other"
        other = bridge.local_owner()
        assert gate.reached.wait(120)
        # After an error of the connection the zombie must not use its producer any more.
        of_zombie._producer = None
        bridge.decide_many(prepared[:5], COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(5)])
        assert fences[-1] is of_zombie
        gate.opened.set()
        other.wait_serving()
        bridge.decide_many(prepared[5:], COMMIT)
        bridge.wait_visible(topic, [b"%d" % number for number in range(10)])
        zombie.wait_error("fenced")
        other.stop()
    assert set(bridge.visible(topic).values()) == {1}
    assert all(outcomes == ["commit"] for outcomes in bridge.outcomes().values())


def test_p3_a_commit_of_unknown_outcome_is_looked_up(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """After connection errors between begin and commit the worker does not write again what Kafka has committed."""
    topic = bridge.create_topic("real")
    made: list[TransactionalWriter] = []
    real_write = TransactionalWriter.write_transaction
    outcomes = iter(["committed", "aborted", "committed"])

    def write(writer: TransactionalWriter, contents: Any, receipt: Any) -> None:
        made.append(writer)
        outcome = next(outcomes, None) if contents.draft.delivered else None
        if outcome == "aborted":
            # Lost on the way: nothing was written, but the writer cannot know that.
            writer._seq += 1
            raise IndefiniteError("nobody knows")
        real_write(writer, contents, receipt)
        if outcome == "committed":
            raise IndefiniteError("nobody knows")

    monkeypatch.setattr(TransactionalWriter, "write_transaction", write)
    with bridge.local_owner():
        for number in range(5):
            bridge.deliver(topic, b"%d" % number)
    assert len(set(made)) == 1, "the state was kept"
    assert bridge.visible(topic) == {b"%d" % number: 1 for number in range(5)}
    assert list(bridge.outcomes().values()) == [["commit"]] * 5


@pytest.fixture
def used(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> Bridge:
    """A namespace in which both partitions have a history, with a pending message at each watermark."""
    monkeypatch.setattr(partitions, "REFUSED_RETRY_S", 0.5)
    topic = bridge.create_topic("real")
    for partition in (0, 1):
        prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(6)], partition=partition)
        with bridge.local_owner(partition):
            bridge.decide_many(prepared[1:], COMMIT)
            bridge.wait_outcome(prepared[5], "commit")
    return bridge


def _expect_refusal(bridge: Bridge, *texts: str) -> LocalOwner:
    """Expect that partition 0 is refused with these texts while partition 1 goes on."""
    refused = bridge.local_owner(0)
    refused.wait_error(*texts)
    topic = bridge.create_topic("other")
    with bridge.local_owner(1):
        bridge.deliver(topic, b"goes on", 1)
    return refused


def _acknowledge(bridge: Bridge, refused: LocalOwner) -> None:
    """The command that the refusal names ends it. Nothing is delivered again, and new messages are."""
    before = bridge.visible(real := f"{bridge.namespace}.real")
    assert acknowledge(bridge.connection(), 0, reason="a holiday", operator="ann").is_written
    refused.wait_serving()
    bridge.deliver(bridge.create_topic("later"), b"later", 0)
    refused.stop()
    assert bridge.visible(real) == before
    assert not acknowledge(bridge.connection(), 0, reason="again", operator="ann").is_written


@pytest.mark.parametrize("short", ["half", "end", "op"])
def test_a_takeover_refuses_a_log_that_begins_above_what_is_needed(used: Bridge, short: str) -> None:
    topic, wanted = getattr(used.names, short), used.checkpoint(0)[short]
    assert isinstance(wanted, int)
    used.end(["0,0,0"], 0)
    used.end(["0,0,0"], 0)
    used.delete_records(topic, 0, wanted + 1)
    begins = f"begins at offset {wanted + 1}, above offset {wanted} that is still needed"
    _acknowledge(used, _expect_refusal(used, topic, begins, "txbridge acknowledge 0"))


@pytest.mark.parametrize("short", ["half", pytest.param("end", marks=pytest.mark.long)])
def test_records_that_nobody_can_read_are_named_and_an_operator_passes_them(used: Bridge, short: str) -> None:
    topic, stored = getattr(used.names, short), list[int]()
    used.alter_topic(topic, compression_type="producer")
    client = Producer(
        {"bootstrap.servers": used.bootstrap_servers, "compression.type": "zstd", "message.max.bytes": 10**9}
    )
    client.produce(topic, bytes(10**8), partition=0, on_delivery=lambda _, one: stored.append(one.offset() or 0))
    client.flush(60)
    refused = _expect_refusal(used, f"{topic}[0] has records that nobody can read", f"message at {stored[0]} of")
    with pytest.raises(TakeOverRefusedError, match="nobody can read"):
        read_view(used.connection(), 0)
    with pytest.raises(CouldNotAuditError, match="nobody can read"):
        run_audit(used.bootstrap_servers, namespace=used.namespace, engine=AuditEngine.LOCAL)
    used.delete_records(topic, 0, stored[0] + 1)
    refused.wait_error("txbridge acknowledge 0")
    _acknowledge(used, refused)


@pytest.mark.parametrize("short", ["half", *(pytest.param(short, marks=pytest.mark.long) for short in ("end", "op"))])
def test_a_takeover_refuses_a_log_that_was_cut(used: Bridge, short: str) -> None:
    checkpoint = used.checkpoint(0)
    key = used.names.checkpoint_key(0)

    def write(value: dict[str, object]) -> None:
        used.produce(
            used.names.offset, key=key, value=json.dumps(value).encode(), headers=offset_headers(), partition=0
        )

    write({**checkpoint, short: 10**6})
    refused = used.local_owner(0)
    refused.wait_error(getattr(used.names, short), "the log was cut")
    # The owner recovers by itself once a person has repaired the topic.
    write(checkpoint)
    refused.wait_serving()
    refused.stop()


def test_p3_a_takeover_refuses_an_offset_topic_that_has_lost_its_tail(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the older checkpoint on, END would be applied again, and messages that OP names be delivered again."""
    monkeypatch.setattr(partitions, "REFUSED_RETRY_S", 0.5)
    topic = bridge.create_topic("real")
    with bridge.local_owner():
        bridge.deliver(topic, b"first")
    record = {"key": bridge.names.checkpoint_key(0), "headers": offset_headers(), "partition": 0}
    older = json.dumps(bridge.checkpoint(0)).encode()
    with bridge.local_owner():
        bridge.deliver(topic, b"second")
    newer = json.dumps(bridge.checkpoint(0)).encode()
    bridge.produce(bridge.names.offset, value=older, **record)
    refused = bridge.local_owner(0)
    refused.wait_error(f"{bridge.names.offset}[0] has lost its last records", "names half offset 1")
    assert bridge.visible(topic) == {b"first": 1, b"second": 1}
    # The owner recovers by itself once the topic is restored.
    bridge.produce(bridge.names.offset, value=newer, **record)
    refused.wait_serving()
    refused.stop()
    assert bridge.visible(topic) == {b"first": 1, b"second": 1}


@pytest.mark.parametrize("short", ["half", "end", "op"])
def test_a_takeover_refuses_a_topic_that_was_created_anew(used: Bridge, short: str) -> None:
    topic = getattr(used.names, short)
    used.recreate(topic)
    refused = used.local_owner(0)
    refused.wait_error(topic, "deleted and created again", "txbridge acknowledge 0")
    _acknowledge(used, refused)


def test_a_takeover_refuses_an_offset_topic_that_was_emptied(used: Bridge) -> None:
    used.recreate(used.names.offset)
    refused = used.local_owner(0)
    refused.wait_error(used.names.offset, "holds no checkpoint although", used.names.op)
    refused.stop()


@pytest.mark.parametrize("short", [pytest.param("half", marks=pytest.mark.long), "end"])
def test_an_owner_notices_that_a_log_was_created_anew(used: Bridge, short: str) -> None:
    local = used.local_owner(0).wait_serving()
    used.recreate(getattr(used.names, short))
    local.wait_error(getattr(used.names, short))
    assert not local.owner.status.serving
    local.stop()


def test_a_takeover_refuses_an_offset_topic_that_was_set_to_delete_and_lost_its_beginning(bridge: Bridge) -> None:
    """The checkpoint is still there and looks right, but the parked entries of messages that it has passed are gone."""
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=100):
        bridge.prepare(topic, b"parked", partition=0)
        eventually(lambda: bridge.parked_states(0) == ["pending"])
        before = bridge.bounds(bridge.names.offset, 0)[1]
        bridge.deliver(topic, b"value")
    bridge.alter_topic(bridge.names.offset, cleanup_policy="delete")

    def is_cut() -> bool:
        # The broker learns of the new policy a moment after the controller's answer.
        try:
            bridge.delete_records(bridge.names.offset, 0, before)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    eventually(is_cut)
    bridge.alter_topic(bridge.names.offset, cleanup_policy="compact")
    assert bridge.checkpoint(0)["half"] == 2
    _expect_refusal(bridge, f"{bridge.names.offset}[0] begins at offset {before}", "must only be compacted").stop()
    assert any("records were deleted" in warning for warning in read_view(bridge.connection(), 0).warnings)


def test_a_takeover_refuses_a_parked_entry_of_a_message_that_is_to_come(used: Bridge) -> None:
    """A stranger wrote it, or HALF was cut below the watermark. It would match the next message with that offset."""
    end = used.bounds(used.names.half, 0)[1]
    entry = HalfEntry(
        end, "A" * 32, "group", "orders", 1, 1, next_due=1, state=TransactionState.HELD, decided=0, error="no topic"
    )
    record = {"key": used.names.parked_key(0, end), "headers": offset_headers(), "partition": 0}
    used.produce(used.names.offset, value=entry.encode(0), **record)
    refused = used.local_owner(0)
    texts = f"a parked entry of half offset {end}", f"was read up to offset {end} only", "txbridge acknowledge 0"
    refused.wait_error(*texts)
    _acknowledge(used, refused)


def test_a_parked_entry_of_something_that_is_no_half_message_stops_nobody(bridge: Bridge) -> None:
    """A forged entry again, for a malformed record. It is discarded in the end, like a message whose body is gone."""
    topic = bridge.create_topic("real")
    with bridge.local_owner():
        offset = bridge.produce(bridge.names.half, value=b"garbage", partition=0).offset()
        bridge.deliver(topic, b"value")
        eventually(lambda: len(bridge.discarded()) == 1)
    entry = HalfEntry(offset, "A" * 32, "group", topic, 1, 1, next_due=1)
    key = bridge.names.parked_key(0, offset)
    bridge.produce(bridge.names.offset, key=key, value=entry.encode(0), headers=offset_headers(), partition=0)
    with bridge.local_owner():
        bridge.deliver(topic, b"goes on")
        eventually(lambda: len(bridge.discarded()) == 2)
    assert bridge.discarded()[1]["TXB_REASON"] == b"EXPIRED"


def test_an_op_record_beyond_the_end_of_half_finishes_nothing(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    bridge.produce(bridge.names.op, value=b"0,1,2", headers=op_headers(Outcome.COMMIT), partition=0)
    bridge.prepare(topic, b"first", partition=0)
    with bridge.local_owner():
        second = bridge.prepare(topic, b"second", partition=0)
        bridge.decide(second, COMMIT)
        bridge.wait_visible(topic, [b"second"])


def test_a_partition_that_not_every_topic_has_is_refused_and_the_others_go_on(bridge: Bridge) -> None:
    """The number of partitions was changed outside txbridge. A running worker notices it within five minutes."""
    bridge.admin.create_partitions([NewPartitions(bridge.names.end, 3)])[bridge.names.end].result(120)
    eventually(lambda: len(bridge.admin.list_topics(timeout=120).topics[bridge.names.end].partitions) == 3)
    refused = bridge.local_owner(2)
    refused.wait_error(f"{bridge.names.half} has 2 partitions, {bridge.names.end} has 3", "The others go on")
    topic = bridge.create_topic("real")
    for partition in (0, 1):
        value = b"goes on %d" % partition
        with bridge.local_owner(partition):
            bridge.deliver(topic, value, partition)
    refused.stop()
    # A worker that starts now reports it at once.
    late = bridge.worker(wait=0)
    assert late.wait_dead(40) != 0
    assert f"{bridge.names.end}: has 3 partitions, must have 2" in late.log


def test_logs_that_retention_has_emptied_are_no_loss_when_nothing_was_open(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_loop, "_SETTLE_S", 0.5)
    topic = bridge.create_topic("real")
    foreign = bridge.stranger()
    with bridge.local_owner(park_after=500):
        bridge.prepare(topic, b"pending for long", partition=0)
        prepared = bridge.prepare(topic, b"value", partition=0)
        bridge.decide(prepared, COMMIT)
        bridge.wait_visible(topic, [b"value"])
        # A stranger's aborted transactions leave markers at the ends of the logs, and no record follows them.
        for name in (bridge.names.half, bridge.names.end, bridge.names.op):
            foreign.begin_transaction()
            foreign.produce(name, b"garbage", partition=0)
            foreign.flush(120)
            foreign.abort_transaction(10)
        # HALF is read uncommitted, END and OP are not. Wait until the worker has handled that, and then read the log
        # ends.
        eventually(lambda: len(bridge.discarded()) == 1, 30, "the garbage in HALF was not set aside")
        ends = {short: bridge.bounds(getattr(bridge.names, short), 0)[1] for short in ("half", "end", "op")}
        eventually(lambda: {short: bridge.checkpoint(0)[short] for short in ends} == ends, 30, "not settled")
        written = bridge.checkpoint(0)["seq"]
    for short, end in ends.items():
        bridge.delete_records(getattr(bridge.names, short), 0, end)
    with bridge.local_owner():
        bridge.deliver(topic, b"after")
    assert isinstance(written, int)
    assert written < 20, "settling must not go on forever"


def test_op_records_that_nothing_needs_may_be_gone(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner():
        bridge.deliver(topic, b"value")
        eventually(lambda: bridge.checkpoint(0)["half"] == 1)
    bridge.delete_records(bridge.names.op, 0, bridge.bounds(bridge.names.op, 0)[1])
    with bridge.local_owner():
        bridge.deliver(topic, b"after")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"nonsense", b"\xff\xfe"),
        ("checkpoint", b"not JSON"),
        ("checkpoint", b'{"half": -1}'),
        ("checkpoint", None),
        ("parked", b'{"state": "odd"}'),
        ("parked nonsense", b"{}"),
        ("parked huge", b"{}"),
        # Without TXB_V the tombstone is malformed: it does not remove the entry of the pending message.
        ("parked pending", None),
    ],
)
def test_malformed_records_in_offset_and_op_do_not_stop_a_takeover(
    bridge: Bridge, key: bytes | str | None, value: bytes | None
) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=100) as local:
        pending = bridge.prepare(topic, b"pending", partition=0)
        bridge.deliver(topic, b"value")
        eventually(lambda: bridge.parked_states(0) == ["pending"])
        local.stop()
    checkpoint_key = bridge.names.checkpoint_key(0)
    keys = {
        "checkpoint": checkpoint_key,
        "parked": checkpoint_key + b"/7",
        "parked nonsense": checkpoint_key + b"/x",
        "parked huge": checkpoint_key + b"/" + b"9" * 5_000,
        "parked pending": checkpoint_key + b"/%d" % pending.offset,
    }
    bridge.produce(bridge.names.offset, key=keys.get(key, key), value=value, partition=0)  # type: ignore[arg-type]
    bridge.produce(bridge.names.op, value=value, partition=0)
    bridge.produce(bridge.names.op, value=b"1,x", headers=[("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", b"commit")])
    with bridge.local_owner():
        bridge.decide(pending, COMMIT)
        bridge.wait_visible(topic, [b"pending"])
    assert bridge.visible(topic) == {b"value": 1, b"pending": 1}


@pytest.mark.parametrize("short", ["checkpoint", "parked", "op"])
def test_a_later_release_s_records_are_not_guessed_until_it_is_back(bridge: Bridge, short: str) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=100):
        pending = bridge.prepare(topic, b"pending", partition=0)
        eventually(lambda: bridge.parked_states(0) == ["pending"])
    checkpoint_key, version = bridge.names.checkpoint_key(0), [("TXB_V", b"2")]
    offset, key = {
        "checkpoint": (bridge.names.offset, checkpoint_key),
        "parked": (bridge.names.offset, checkpoint_key + b"/%d" % pending.offset),
        "op": (bridge.names.op, None),
    }[short]
    # Last record of this release under the key. A later release that leaves the key to this one would write it again.
    before = [one for one in bridge.read(offset) if key is not None and one.key() == key][-1:]
    where = bridge.produce(offset, key=key, value=b'{"another":"shape"}', headers=version, partition=0)
    refusal = f"{offset}[0] offset {where.offset()} was written by a later release of txbridge"
    refused = bridge.local_owner()
    refused.wait_error(refusal, "TXB_V='2' is not a version that this worker knows")
    assert not refused.owner.status.serving
    refused.stop()
    with pytest.raises(EnvironmentProblemError, match=re.escape(refusal)):
        read_view(bridge.connection(), 0)
    if before:
        bridge.produce(offset, key=key, value=before[0].value(), headers=before[0].headers(), partition=0)
        with bridge.local_owner():
            bridge.decide(pending, COMMIT)
            bridge.wait_visible(topic, [b"pending"])


@pytest.mark.parametrize("short", ["op", "offset"])
def test_a_takeover_names_a_transaction_that_hangs(used: Bridge, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    monkeypatch.setattr(partition_reader, "STABLE_TIMEOUT_S", 2.0)
    topic = getattr(used.names, short)
    foreign = used.stranger()
    foreign.begin_transaction()
    foreign.produce(topic, b"stranger", key=b"stranger", partition=0)
    foreign.flush(120)
    stuck = used.local_owner(0)
    stuck.wait_error("a Kafka transaction hangs there", f"find-hanging --topic {topic} --partition 0")
    # The aborted transaction ends with a marker at the tail of the log, after a record that no reader may see. The
    # take-over passes both.
    foreign.abort_transaction(10)
    stuck.wait_serving()
    prepared = used.prepare(used.create_topic("other"), b"value", partition=0)
    used.decide(prepared, COMMIT)
    used.wait_outcome(prepared, "commit")
    stuck.stop()


def test_an_owner_can_be_stopped_while_a_takeover_waits(used: Bridge) -> None:
    foreign = used.stranger()
    foreign.begin_transaction()
    foreign.produce(used.names.offset, b"stranger", key=b"stranger", partition=0)
    foreign.flush(120)
    stuck = used.local_owner(0)
    eventually(lambda: _is_waiting(stuck.owner.ident))
    stuck.owner.stop()
    stuck.owner.join(5)
    assert not stuck.owner.is_alive()
    foreign.abort_transaction(10)


def _is_waiting(ident: int | None) -> bool:
    frame = sys._current_frames().get(ident or 0)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return "read_to" in names


def test_confirmation_that_gets_no_answer_does_not_end_the_partition(bridge: Bridge) -> None:
    answers: list[Callable[[], bool]] = [
        lambda: _raise(TimeoutError()),
        lambda: _raise(KafkaException(KafkaError(KafkaError._TIMED_OUT))),
        lambda: False,
        lambda: True,
    ]
    with bridge.local_owner(confirm=lambda _: answers.pop(0)() if answers else True) as first:
        other = bridge.local_owner().wait_serving()
        topic = bridge.create_topic("real")
        bridge.deliver(topic, b"value")
        other.stop()
        # The owner notices its fence when it writes: at last what the other one has applied. Then it gets no answer
        # twice, and then a "no".
        eventually(lambda: not answers, 60, "the first owner has not noticed that it is fenced")
        first.wait_serving(60)
    assert bridge.visible(topic) == {b"value": 1}


def _raise(error: Exception) -> bool:
    raise error
