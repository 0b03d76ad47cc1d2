"""Hundreds of damaged records in every internal topic while good transactions go on, with a kill -9 in between."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.fuzz import Raw, Setting, damaged
from tests.support.harness import Bridge, WorkerProcess, eventually, quiet
from txbridge import LocalTransactionState, MessageExt, TransactionListener, TransactionProducer
from txbridge import Message as Prepared
from txbridge.core.checkpoint import parse_op
from txbridge.core.decision_record import parse_end
from txbridge.core.half_message import parse_half
from txbridge.core.headers import MalformedRecordError, NewerVersionError
from txbridge.core.offset_topic import OffsetTopic
from txbridge.kafka.headers import headers_of

SEED = 20_240
#: Damaged records per kind. OFFSET gets as many checkpoints as parked entries.
RECORDS = 300
GROUP = "group"


class _Listener(TransactionListener):
    """Decides by the value: the result, and whether the client knows it at once or in a check."""

    def __init__(self) -> None:
        self.asked: Counter[bytes | None] = Counter()

    def execute_local_transaction(self, message: MessageExt, arg: object) -> LocalTransactionState:
        if (message.value or b"").startswith(b"asked"):
            return LocalTransactionState.UNKNOWN
        return self._fate(message)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.asked[message.value] += 1
        return self._fate(message)

    @staticmethod
    def _fate(message: MessageExt) -> LocalTransactionState:
        """Result by the value. A check that the stranger wrote is about no transaction of ours."""
        good = (message.value or b"").endswith(b"commit")
        return LocalTransactionState.COMMIT_MESSAGE if good else LocalTransactionState.ROLLBACK_MESSAGE


class _Stranger:
    """Writes damaged records without waiting, and keeps those that the worker must discard or report."""

    def __init__(self, bridge: Bridge, real_topic: str, rng: Random) -> None:
        self._bridge, self._rng = bridge, rng
        self._setting = Setting(names=bridge.names, group=GROUP, real_topic=real_topic, half_end=RECORDS)
        self._producer = Producer({**quiet(bridge.bootstrap_servers), "linger.ms": 5})
        #: Key and value of each malformed record of HALF and END, by its TXB_SOURCE.
        self.to_set_aside: dict[bytes, tuple[bytes | None, bytes | None]] = {}
        #: Number of malformed records by topic and partition.
        self.to_report: Counter[tuple[str, int]] = Counter()

    def write(self, kind: str) -> None:
        """Write one record of this kind into one of the partitions of its topic."""
        # The discard topic has one partition.
        names, partition = self._bridge.names, 0 if kind == "discard" else self._rng.randrange(2)
        setting = replace(self._setting, partition=partition)
        raw = damaged(kind, setting, self._rng)
        # The worker believes a valid record in these topics. Only rights on the topic keep a stranger from writing one.
        while kind in _MUST_BE_MALFORMED and not _bad(_MUST_BE_MALFORMED[kind], setting, raw):
            raw = damaged(kind, setting, self._rng)
        if kind in {"checkpoint", "parked"} and raw.key is None:
            raw = replace(raw, key=b"")
        topic = {
            "half": names.half,
            "end": names.end,
            "op": names.op,
            "checkpoint": names.offset,
            "parked": names.offset,
            "check": names.check(GROUP),
            "discard": names.discard,
        }[kind]
        if kind in {"op", "checkpoint", "parked"}:
            self.to_report[topic, partition] += 1
        aside = kind == "half" or (kind == "end" and _bad(_parse_end, setting, raw))

        def stored(error: object, message: Message) -> None:
            assert error is None, (kind, raw, error)
            if aside:
                self.to_set_aside[f"{topic}:{partition}:{message.offset()}".encode()] = (raw.key, raw.value)

        self._producer.produce(
            topic, value=raw.value, key=raw.key, headers=list(raw.headers), partition=partition, on_delivery=stored
        )
        self._producer.poll(0)

    def write_undecodable(self, topic: str, partition: int) -> None:
        """Write a record with a header whose name is not UTF-8, which confluent-kafka cannot read."""
        # OFFSET is compacted and takes no record without a key. With this key the record would be the last checkpoint.
        key = self._bridge.names.checkpoint_key(partition) if topic == self._bridge.names.offset else None
        offset = self._bridge.produce_undecodable(topic, b"undecodable", [("TXB_V", b"1")], partition, key)
        if topic in {self._bridge.names.half, self._bridge.names.end}:
            self.to_set_aside[f"{topic}:{partition}:{offset}".encode()] = (None, b"undecodable")

    def flush(self) -> None:
        assert self._producer.flush(120) == 0


def _parse_half(setting: Setting, raw: Raw) -> None:
    parse_half(0, 0, raw.key, raw.value, raw.headers, setting.names)


def _parse_end(_setting: Setting, raw: Raw) -> None:
    parse_end(0, raw.value, raw.headers)


def _parse_op(_setting: Setting, raw: Raw) -> None:
    with suppress(NewerVersionError):  # the worker believes it, and refuses the take-over
        parse_op(raw.value, raw.headers)


def _parse_offset(setting: Setting, raw: Raw) -> None:
    with suppress(NewerVersionError):
        OffsetTopic(setting.names, setting.partition).take(raw.key or b"", raw.value, raw.headers)


_MUST_BE_MALFORMED = {"half": _parse_half, "op": _parse_op, "checkpoint": _parse_offset, "parked": _parse_offset}


def _bad(parse: Callable[[Setting, Raw], None], setting: Setting, raw: Raw) -> bool:
    try:
        parse(setting, raw)
    except MalformedRecordError:
        return True
    return False


def _outcomes(bridge: Bridge) -> dict[tuple[int, int], list[str]]:
    """Outcomes in OP, without malformed records."""
    found: dict[tuple[int, int], list[str]] = {}
    for message in bridge.read(bridge.names.op):
        try:
            outcome, offsets = parse_op(message.value(), headers_of(message))
        except MalformedRecordError:
            continue
        for offset in offsets:
            found.setdefault((message.partition(), offset), []).append(outcome.value)
    return found


def _set_aside(bridge: Bridge, sources: set[bytes]) -> list[tuple[bytes, bytes, bytes | None, bytes | None]]:
    """Source, reason, key and value of the worker's copies of malformed records, without the stranger's own records."""
    found = []
    for message in bridge.read(bridge.names.discard):
        headers = dict(message.headers() or ())
        if headers.get("TXB_ERROR") and headers.get("TXB_SOURCE") in sources:
            found.append((headers["TXB_SOURCE"], headers["TXB_REASON"], message.key(), message.value()))
    return found


def _unread_checks(bridge: Bridge) -> int:
    """Number of check requests beyond the client's committed offsets."""
    topic = bridge.names.check(GROUP)
    consumer = Consumer({**quiet(bridge.bootstrap_servers), "group.id": topic})
    try:
        places = [TopicPartition(topic, one) for one in consumer.list_topics(topic, 120).topics[topic].partitions]
        positions = {place.partition: place.offset for place in consumer.committed(places, 10)}
    finally:
        consumer.close()
    return sum(message.offset() >= positions[message.partition()] for message in bridge.read(topic))


def _quiet(worker: WorkerProcess) -> None:
    for event in ("unexpected_error", "kafka_unavailable", "refused", "fenced", "faust_crashed"):
        assert worker.events(event) == []


def test_p8_damaged_records_in_every_internal_topic_harm_no_good_transaction(
    bridge: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txbridge")
    rng = Random(SEED)
    topic, names = bridge.create_topic("real"), bridge.names
    # So many checks that no message is discarded while a loaded machine is slow.
    options = {"transaction_check_max": 15, "park_after": 1_000}
    worker = bridge.worker(**options)
    listener = _Listener()
    config = {"bootstrap.servers": bridge.bootstrap_servers}
    sent: dict[bytes, tuple[int, int]] = {}
    with TransactionProducer(GROUP, listener, config, namespace=bridge.namespace) as client:
        stranger = _Stranger(bridge, topic, rng)

        def send(value: bytes) -> None:
            result = client.send_message_in_transaction(Prepared(topic, value))
            sent[value] = (result.half_partition, result.half_offset)

        def write(count: int, name: bytes) -> None:
            for number in range(count):
                for kind in ("half", "end", "op", "check", "discard", "checkpoint" if number % 2 else "parked"):
                    stranger.write(kind)
                if number % 10 == 0:
                    what = (b"told commit", b"told rollback", b"asked commit", b"asked rollback")[number // 10 % 4]
                    send(what.split()[0] + b" %s %d " % (name, number) + what.split()[1])
            stranger.flush()

        write(RECORDS // 2, b"before")
        for where in (names.half, names.end, names.op, names.offset, names.check(GROUP)):
            stranger.write_undecodable(where, 0)
        for where in (names.op, names.offset):
            stranger.to_report[where, 0] += 1
        worker.kill()
        write(RECORDS // 2, b"meanwhile")
        other = bridge.worker(**options)
        send(b"asked after all this commit")
        send(b"told after all this commit")

        committed = {value for value in sent if value.endswith(b"commit")}
        bridge.wait_visible(topic, list(committed), 60)
        wanted = {where: "commit" if value in committed else "rollback" for value, where in sent.items()}
        eventually(lambda: wanted.keys() <= _outcomes(bridge).keys(), 30, "not every transaction was decided")
        eventually(
            lambda: len(_set_aside(bridge, set(stranger.to_set_aside))) >= len(stranger.to_set_aside),
            30,
            "not everything was set aside",
        )
        # The client has read every check request and gone on.
        eventually(lambda: _unread_checks(bridge) == 0, 30, "the client stands still before a check request")

    assert bridge.visible(topic) == dict.fromkeys(committed, 1)
    outcomes = _outcomes(bridge)
    assert {where: outcomes[where] for where in wanted} == {where: [outcome] for where, outcome in wanted.items()}
    aside = _set_aside(bridge, set(stranger.to_set_aside))
    assert {source: (key, value) for source, _, key, value in aside} == stranger.to_set_aside
    assert len(aside) == len(stranger.to_set_aside)
    assert {reason for _, reason, _, _ in aside} == {b"MALFORMED"}
    for dead_or_alive in (worker, other):
        _quiet(dead_or_alive)
    reported = {(event["topic"], event["partition"]): event["count"] for event in other.events("malformed_record")}
    for (where, partition), count in stranger.to_report.items():
        if where == names.offset:
            assert reported[where, partition] == count
        else:
            # A take-over reads only the part of OP that is still needed.
            assert 0 < reported[where, partition] <= count
    assert {value for value in sent if value.startswith(b"asked")} <= set(listener.asked)
    assert "check_request_malformed" in caplog.text
    assert "check_thread_error" not in caplog.text
