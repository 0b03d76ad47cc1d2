"""Operations on topics in memory: slow and growing logs, commands for many messages, and bodies."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.support.client_fakes import FakeRecord
from tests.support.open_messages import DISCARDED, HELD, PENDING, SCHEDULED
from tests.support.partition_builder import POLICY, id_of
from txbridge.core.checkpoint import Checkpoint, Mark, offset_headers
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import half_headers
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError, UsageError
from txbridge.kafka.environment import Outside
from txbridge.kafka.errors import LogGoneError
from txbridge.kafka.partition_reader import PartitionReader
from txbridge.operations import (
    Connection,
    OpenMessage,
    Result,
    Selection,
    acknowledge_loss,
    commands,
    list_pending,
    listing,
    reading,
    resolve,
    resolve_all,
)
from txbridge.operations.acknowledge_loss import acknowledge
from txbridge.operations.view import Action
from txbridge.subject import Subject

NAMES = Names()
CONNECTION = Connection(
    kafka={"bootstrap.servers": "nowhere:1"},
    cluster=SimpleNamespace(describe_topics=Mock(side_effect=TimeoutError)),
    subject=Subject("", "nowhere:1", "C1"),
    names=NAMES,
    policy=POLICY,
    partitions=2,
    topic_ids={},
)
WORDS = {"reason": "ticket 7", "operator": "alice"}


class Record(FakeRecord):
    """A consumed record."""

    def error(self):
        return None

    def topic(self):
        return NAMES.half

    def leader_epoch(self):
        return 0


class Logs(Outside):
    """Topics in memory, without gaps, and consumers of them."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        #: Partitions whose brokers send no records.
        self.stuck: set[tuple[str, int]] = set()
        #: Called before a record of the topic is taken.
        self.on_poll: dict[str, Callable[[], object]] = {}

    def consumer(self, config):
        return Consumer(self)

    def append(self, topic, partition, value, headers, *, key=None, timestamp=1_000) -> int:
        log = self.records[topic, partition]
        log.append(Record(partition, len(log), timestamp, key, value, headers))
        return len(log) - 1

    def prepare(self, partition=0, key=None, born=1_000) -> int:
        offset = len(self.records[NAMES.half, partition])
        headers = half_headers([], transaction_id=id_of(offset), group="orders", real_topic="orders.placed")
        return self.append(NAMES.half, partition, b"value", headers, key=key, timestamp=born)

    def park(self, message: OpenMessage, partition=0) -> None:
        entry = HalfEntry(
            offset=message.half_offset,
            transaction_id=message.transaction_id,
            group=message.group,
            real_topic=message.real_topic,
            state=message.state,
            born=message.born,
            size=message.size,
            checks=message.checks,
            next_due=message.next_due or 0,
            parked=True,
            error=message.error,
            decided=message.decided,
            reason=message.reason,
            discarded_at=message.discarded_at,
            deliver_at=message.deliver_at,
        )
        key = NAMES.parked_key(partition, message.half_offset)
        self.append(NAMES.offset, partition, entry.encode(0), offset_headers(), key=key)

    def checkpoint(self, partition=0, half=0, end=0, marks: dict[str, Mark] | None = None) -> None:
        value = Checkpoint(half=half, end=end, op=0, topics={}, read=half, marks=marks or {}).encode()
        self.append(NAMES.offset, partition, value, offset_headers(), key=NAMES.checkpoint_key(partition))

    def finish(self, outcome: str, *half_offsets: int, partition=0) -> None:
        headers = [("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", outcome.encode())]
        self.append(NAMES.op, partition, b",".join(b"%d" % one for one in half_offsets), headers)


class Consumer:
    """The part of confluent-kafka's consumer that a PartitionReader uses."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._place = ("", 0)
        self._at = 0

    def assign(self, partitions):
        [one] = partitions
        self._place, self._at = (one.topic, one.partition), one.offset

    def unassign(self):
        pass

    def close(self):
        pass

    def list_topics(self, topic, **_):
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={})})

    def get_watermark_offsets(self, one, **_):
        return 0, len(self._logs.records[one.topic, one.partition])

    def poll(self, _timeout):
        self._logs.on_poll.get(self._place[0], lambda: None)()
        return next(iter(self.consume(1, 0)), None)

    def consume(self, count, _timeout):
        if self._place in self._logs.stuck:
            return []
        found = self._logs.records[self._place][self._at : self._at + count]
        self._at += len(found)
        return found


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    made = Logs()
    monkeypatch.setattr(reading, "PartitionReader", partial(PartitionReader, outside=made))
    return made


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, logs: Logs) -> list[list[int]]:
    """The half offsets of each END record that was written, in place of a producer."""
    found: list[list[int]] = []

    def write(_connection, messages, *_):
        found.append([message.half_offset for message in messages])
        return logs.append(NAMES.end, messages[0].partition, b"", [])

    monkeypatch.setattr(commands, "write_end", write)
    return found


def at(offset: int, message: OpenMessage, group: str = "orders") -> OpenMessage:
    return replace(message, partition=0, half_offset=offset, transaction_id=id_of(offset), group=group)


def places(messages: Sequence[OpenMessage]) -> list[str]:
    return [message.coordinates for message in messages]


@pytest.fixture
def slow_first(logs: Logs) -> Logs:
    """One message in each of two partitions; the last record of HALF that was read does not come in the first one."""
    logs.prepare(0)
    logs.prepare(1)
    logs.checkpoint(0, half=1, marks={"half": Mark(0, "0", 0, 1_000)})
    logs.stuck.add((NAMES.half, 0))
    return logs


def test_a_partition_whose_record_does_not_come_is_named_and_hides_no_other(slow_first: Logs) -> None:
    problem = (
        "Kafka was too slow; reading partition 0 of the internal topics: offset 0 of RMQ_SYS_TRANS_HALF_TOPIC[0] did "
        "not come back"
    )
    listed = list_pending(CONNECTION, errors=False)
    assert (places(listed.messages), dict(listed.unread)) == (["1:0"], {0: problem})


def test_a_loss_is_not_acknowledged_while_a_record_does_not_come(slow_first: Logs) -> None:
    with pytest.raises(EnvironmentProblemError, match=r"Kafka was too slow; examining .*: offset 0 of .* did not"):
        acknowledge(CONNECTION, 0, **WORDS)


def test_messages_whose_keys_can_not_be_read_are_listed_without_and_hide_no_others(logs: Logs) -> None:
    logs.park(at(logs.prepare(0, key=b"k0"), PENDING))
    logs.checkpoint(0, half=1)
    logs.prepare(1, key=b"k1")
    logs.stuck.add((NAMES.half, 0))
    listed = list_pending(CONNECTION, errors=False)
    assert [(one.coordinates, one.key) for one in listed.messages] == [("0:0", None), ("1:0", b"k1")]
    assert (listed.total, dict(listed.unread)) == (
        2,
        {
            0: "its messages are listed without keys and last errors; Kafka was too slow; reading "
            "RMQ_SYS_TRANS_HALF_TOPIC[0]: offset 0 of RMQ_SYS_TRANS_HALF_TOPIC[0] did not come back"
        },
    )


def test_messages_whose_last_errors_can_not_be_read_are_listed_without(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_connection, partition, _messages):
        if partition == 0:
            raise LogGoneError("END was cut")
        return {0: "database is away"}

    monkeypatch.setattr(listing, "last_remarks", gone)
    logs.prepare(0)
    logs.prepare(1)
    listed = list_pending(CONNECTION)
    assert [(one.coordinates, one.error) for one in listed.messages] == [("0:0", None), ("1:0", "database is away")]
    assert dict(listed.unread) == {0: "its messages are listed without keys and last errors; END was cut"}


def test_a_record_that_comes_at_the_last_moment_is_used(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """END has lost its record at offset 1, and has got another one, three minutes later than the lost one."""
    monkeypatch.setattr(acknowledge_loss, "_READ_TIMEOUT_S", 0.01)
    monkeypatch.setattr(acknowledge_loss, "_write", lambda *_: None)
    logs.on_poll[NAMES.end] = lambda: time.sleep(0.02)
    logs.append(NAMES.end, 0, b"", [], timestamp=1_000)
    logs.append(NAMES.end, 0, b"another", [], timestamp=280_000)
    logs.checkpoint(0, end=2, marks={"end": Mark(1, "0", 0, 100_000)})
    found = acknowledge(CONNECTION, 0, **WORDS)
    assert found.is_written
    assert found.lines[-1].startswith("END is applied again from offset 1;")


def test_the_oldest_messages_are_listed_and_all_are_counted(logs: Logs) -> None:
    for born in (3_000, 1_000, 2_000):
        logs.prepare(1, born=born)
    listed = list_pending(CONNECTION, Selection(limit=2), errors=False)
    assert (places(listed.messages), listed.total) == (["1:1", "1:2"], 3)
    with pytest.raises(UsageError, match="has no partition 2: its partitions are 0 to 1"):
        list_pending(CONNECTION, Selection(partition=2))


def test_a_message_that_is_prepared_during_the_read_is_not_listed(logs: Logs) -> None:
    """It may be finished when END is read."""
    logs.prepare(0)
    logs.checkpoint(0)
    logs.on_poll[NAMES.offset] = lambda: logs.prepare(0)
    assert places(list_pending(CONNECTION, errors=False).messages) == ["0:0"]


def test_an_outcome_that_the_wait_for_another_batch_has_read_is_not_forgotten(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both messages are held; the second one is delivered while the first one is abandoned."""
    held = [at(logs.prepare(), HELD, "billing"), at(logs.prepare(), HELD)]
    for message in held:
        logs.park(message)
    logs.checkpoint(0, half=2)

    def write(_connection, messages, *_):
        if messages[0].half_offset == 0:
            logs.finish("abandon", 0)
            logs.finish("commit", 1)
        end_offset = logs.append(NAMES.end, 0, b"", [])
        logs.checkpoint(0, half=2, end=end_offset + 1)
        return end_offset

    monkeypatch.setattr(commands, "write_end", write)
    first, second = resolve_all(CONNECTION, Action.ABANDON, Selection(), **WORDS)
    assert (first.result, second.result) == (Result.ABANDONED, Result.REFUSED)
    assert second.detail == ("it was delivered to orders.placed before the command was applied")


def test_each_answer_tells_how_long_its_own_batch_was_waited_for(logs: Logs, written: list[list[int]]) -> None:
    """No worker is alive. Two groups are two batches, which share the time."""
    held = [at(logs.prepare(), HELD, "billing"), at(logs.prepare(), HELD)]
    for message in held:
        logs.park(message)
    logs.checkpoint(0, half=2)
    first, second = resolve_all(CONNECTION, Action.ABANDON, Selection(), **WORDS, timeout_s=0.3)
    assert written == [[0], [1]]
    assert (first.result, second.result) == (Result.STORED, Result.STORED)
    assert "no worker applied it within 0.3 s: " in first.detail
    assert "no worker applied it within 0 s: " in second.detail


def test_a_bulk_abandon_takes_what_is_held_and_what_is_scheduled(logs: Logs, written: list[list[int]]) -> None:
    for message in (HELD, replace(SCHEDULED, deliver_at=9_000), DISCARDED, PENDING):
        logs.park(at(logs.prepare(), message))
    logs.checkpoint(0, half=4)
    cause = Selection(cause="for topic orders.placed")
    dry = resolve_all(CONNECTION, Action.ABANDON, cause, dry_run=True)
    assert [(one.message.coordinates, one.result) for one in dry] == [
        ("0:0", Result.WOULD_ABANDON),
        ("0:1", Result.WOULD_ABANDON),
    ]
    assert written == []
    scheduled = Selection(cause="scheduled for topic orders.placed")
    done = resolve_all(CONNECTION, Action.ABANDON, scheduled, **WORDS, expected=1, timeout_s=0)
    assert (places([one.message for one in done]), written) == (["0:1"], [[1]])


def test_a_command_that_is_stored_is_no_failure_when_kafka_cannot_be_read_then(
    logs: Logs, written: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise KafkaUnreachableError("Kafka cannot be reached; all brokers are down")

    monkeypatch.setattr(commands, "wait_applied", away)
    logs.prepare(0)
    answer = resolve(CONNECTION, "0:0", Action.ROLLBACK, **WORDS)
    assert (answer.result, answer.end_offset, written) == (Result.STORED, 0, [[0]])
    assert "its result could not be read: Kafka cannot be reached; all brokers are down. Do not" in answer.detail


def test_a_rollback_needs_no_body(logs: Logs, written: list[list[int]]) -> None:
    logs.park(at(logs.prepare(0), PENDING))
    logs.checkpoint(0, half=1)
    logs.stuck.add((NAMES.half, 0))
    one = resolve(CONNECTION, "0:0", Action.ROLLBACK, **WORDS, timeout_s=0)
    [many] = resolve_all(CONNECTION, Action.ROLLBACK, Selection(), **WORDS, timeout_s=0)
    assert (one.result, many.result, written) == (Result.STORED, Result.STORED, [[0], [0]])


def test_a_commit_looks_for_the_body_and_keeps_no_key(logs: Logs, written: list[list[int]]) -> None:
    logs.prepare(0, key=b"customer 42")
    one = resolve(CONNECTION, "0:0", Action.COMMIT, **WORDS, timeout_s=0)
    [many] = resolve_all(CONNECTION, Action.COMMIT, Selection(), **WORDS, timeout_s=0)
    assert [(answer.result, answer.message.key) for answer in (one, many)] == [(Result.STORED, None)] * 2
    # A record at this offset that is no half message: there is nothing to deliver.
    logs.park(at(logs.append(NAMES.half, 0, b"", []), PENDING))
    logs.checkpoint(0)
    refused = resolve(CONNECTION, "0:1", Action.COMMIT, **WORDS, timeout_s=0)
    assert refused.result is Result.REFUSED
    assert refused.detail.startswith("the half topic no longer has its body")
    assert written == [[0], [0]]
