"""A client of 60 lines written from docs/protocol.md alone, and a comparison of that page with the worker's records.

`MiniClient` uses confluent-kafka and the standard library. Everything expected here is written by hand from the page:
topic names, headers, JSON keys, and partitions by the murmur2 values that Kafka's own tests state.
"""

from __future__ import annotations

import ast
import inspect
import json
import secrets
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from urllib.parse import quote

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge


class MiniClient:  # for one thread; a half message is (partition, offset, transaction id)
    COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

    def __init__(self, servers, namespace, group):
        prefix = f"{namespace}." if namespace else ""
        self.half_topic, self.end_topic = prefix + "RMQ_SYS_TRANS_HALF_TOPIC", prefix + "RMQ_SYS_TRANS_END_TOPIC"
        self.group, self.check_topic = group, f"{prefix}RMQ_SYS_TRANS_CHECK.{group}"
        self.running, self.given_up, self.kafka = set(), set(), {"bootstrap.servers": servers, "log_level": 0}
        safe = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}
        self.producer = Producer(self.kafka | safe)

    def write(self, topic, headers, **record):
        reports, headers = [], [*headers, ("TXB_V", "1"), ("PGROUP", self.group)]
        self.producer.produce(topic, headers=headers, on_delivery=lambda *report: reports.append(report), **record)
        self.producer.flush()
        if reports[0][0]:
            raise KafkaException(reports[0][0])
        return reports[0][1]

    def prepare(self, topic, value, key=None, headers=(), **optional):
        name = secrets.token_hex(16).upper()
        ours = {"TRAN_MSG": "true", "REAL_TOPIC": topic, "UNIQ_KEY": name} | {n: str(v) for n, v in optional.items()}
        self.given_up.add(name)
        made = self.write(self.half_topic, [*headers, *ours.items()], key=key, value=value)
        self.given_up.remove(name)
        self.running.add(name)
        return made.partition(), made.offset(), name

    def end(self, *decided, source="client"):  # decided: half message, decision[, check times[, remark]]
        lines = []
        for (_, offset, name), decision, *more in decided:
            times, remark = [*more, "", ""][:2]
            while len(quote(remark, safe="")) > 2048:
                remark = remark[:-1]
            lines.append(f"{offset},{name},{decision},{times},{quote(remark, safe='')}")
        self.running -= {half[2] for half, *_ in decided if source == "client"}
        return self.write(self.end_topic, [("SOURCE", source)], value="\n".join(lines), partition=decided[0][0][0])

    def listen(self):
        config = {"cleanup.policy": "delete", "retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}
        admin = AdminClient(self.kafka)
        try:
            admin.create_topics([NewTopic(self.check_topic, 1, config=config)])[self.check_topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        ours = {"group.id": self.check_topic, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self.consumer = Consumer(self.kafka | ours)
        self.consumer.subscribe([self.check_topic])

    def answer(self, check, look_up):
        told, remark = dict(check.headers()), ""
        half = (*map(int, told["TXB_HALF"].split(b":")), told["UNIQ_KEY"].decode())
        decision = self.ROLLBACK if half[2] in self.given_up else self.UNKNOWN
        if half[2] not in self.given_up | self.running:
            try:
                decision = look_up(check)
            except Exception as error:
                remark = str(error)
        return self.end((half, decision, int(told["TRANSACTION_CHECK_TIMES"]), remark), source="check")


COMMIT, ROLLBACK, UNKNOWN = MiniClient.COMMIT, MiniClient.ROLLBACK, MiniClient.UNKNOWN

#: (partition, offset, transaction id)
Half = tuple[int, int, str]
#: Starts a client of a group: join("orders"), or join("orders", listening=False) for one that gets no checks.
Join = Callable[..., MiniClient]

#: Time to leave a group; it takes milliseconds.
_LEAVE_S = 30

#: A key with its partitions in HALF (2) and in a real topic (4), by murmur2: Kafka's UtilsTest has "abc" -> 479470107.
ABC = (b"abc", 1, 3)
#: One namespace and one worker for all tests here: a check after 1 s, four of them 1 s apart, then the discard.
bridge = module_bridge("protocol client", transaction_check_max=4)


@pytest.fixture
def join(bridge: Bridge) -> Iterator[Join]:
    made: list[MiniClient] = []

    def start(group: str, *, listening: bool = True) -> MiniClient:
        client = MiniClient(bridge.bootstrap_servers, bridge.namespace, group)
        if listening:
            client.listen()
            made.append(client)
        return client

    yield start
    for client in made:
        # Kafka may be assigning a partition at this moment, and then librdkafka's close never returns (its issue 4884).
        leaving = threading.Thread(target=client.consumer.close, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)


def internal(bridge: Bridge, name: str) -> str:
    return f"{bridge.namespace}.{name}"


def values(bridge: Bridge, topic: str) -> list[bytes | None]:
    """Sorted values that a read_committed reader finds."""
    return sorted(record.value() for record in bridge.read(topic))


def op_records(bridge: Bridge) -> list[Message]:
    return bridge.read(internal(bridge, "RMQ_SYS_TRANS_OP_HALF_TOPIC"))


def outcomes(bridge: Bridge, half: Half) -> list[str]:
    """Outcomes of a half message in OP, in order."""
    return [
        dict(record.headers())["OUTCOME"].decode()
        for record in op_records(bridge)
        if record.partition() == half[0] and str(half[1]).encode() in record.value().split(b",")
    ]


def wait_outcome(bridge: Bridge, half: Half, *expected: str) -> None:
    eventually(lambda: outcomes(bridge, half) == list(expected), 40, f"OP did not name {half} {expected}")


def offset_records(bridge: Bridge, key: str) -> list[dict | None]:
    """JSON values of one key in OFFSET, None for a tombstone."""
    records = [
        record for record in bridge.read(internal(bridge, "RMQ_SYS_TRANS_OFFSET_TOPIC")) if record.key() == key.encode()
    ]
    assert all(record.headers() == [("TXB_V", b"1")] for record in records)
    return [None if record.value() is None else json.loads(record.value()) for record in records]


def parked(bridge: Bridge, half: Half) -> list[dict | None]:
    return offset_records(
        bridge, f"{internal(bridge, 'RMQ_SYS_TRANS_HALF_TOPIC')}@CID_RMQ_SYS_TRANS/{half[0]}/{half[1]}"
    )


def record_at(bridge: Bridge, topic: str, partition: int, offset: int) -> Message:
    found: list[Message] = []

    def there() -> bool:
        records = bridge.read(topic)
        found[:] = [record for record in records if (record.partition(), record.offset()) == (partition, offset)]
        return bool(found)

    eventually(there, 40, f"nothing at {topic} {partition}:{offset}")
    return found[0]


def half_record(bridge: Bridge, half: Half) -> Message:
    """The record of the half message in HALF."""
    return record_at(bridge, internal(bridge, "RMQ_SYS_TRANS_HALF_TOPIC"), *half[:2])


def born(bridge: Bridge, half: Half) -> int:
    kind, when = half_record(bridge, half).timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    return when


def delivered(bridge: Bridge, topic: str, half: Half) -> list[Message]:
    """Copies of a half message in its real topic."""
    return [record for record in bridge.read(topic) if (record.headers() or [])[-2:] == marks(half)]


def marks(half: Half) -> list[tuple[str, bytes]]:
    """The two headers that delivery adds."""
    return [("UNIQ_KEY", half[2].encode()), ("TXB_HALF", f"{half[0]}:{half[1]}".encode())]


def wait_delivered(bridge: Bridge, topic: str, half: Half) -> Message:
    eventually(lambda: delivered(bridge, topic, half), 40, f"{half} was not delivered")
    (only,) = delivered(bridge, topic, half)
    return only


def pass_by(bridge: Bridge, client: MiniClient, topic: str, key: bytes) -> None:
    """Wait until every END so far in this key's half partition is applied; END is applied in order."""
    sentinel = client.prepare(topic, b"sentinel", key=key)
    client.end((sentinel, COMMIT))
    wait_delivered(bridge, topic, sentinel)


def wait_checks(client: MiniClient, *halves: Half) -> list[Message]:
    """Wait for the next check of each of these messages."""
    found: dict[bytes, Message] = {}

    def complete() -> bool:
        check = client.consumer.poll(0.5)
        # Not every broker knows a topic that was created a moment ago.
        if check is not None and (check.error() is None or check.error().code() != KafkaError.UNKNOWN_TOPIC_OR_PART):
            assert check.error() is None, check.error()
            found.setdefault(dict(check.headers())["UNIQ_KEY"], check)
        return all(half[2].encode() in found for half in halves)

    eventually(complete, 40, f"no check of all of {halves}; got {found}")
    return [found[half[2].encode()] for half in halves]


def check_times(check: Message) -> int:
    return int(dict(check.headers())["TRANSACTION_CHECK_TIMES"])


def never_called(check: Message) -> int:
    raise AssertionError(f"the application was asked about {check.headers()}")


def test_the_client_has_60_lines_and_uses_only_confluent_kafka_and_the_standard_library():
    source = inspect.getsource(MiniClient)
    assert len(source.splitlines()) <= 60
    loaded = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    names = {node.id for node in loaded}
    assert names & set(globals()) == {
        *("Producer", "Consumer", "AdminClient", "NewTopic", "KafkaError", "KafkaException"),
        *("secrets", "quote"),
    }


def test_commit_delivers_once_what_the_user_gave_and_two_headers_more(bridge: Bridge, join: Join):
    topic = bridge.create_topic("commit", 4, retention_ms="-1")
    client = join("commit", listening=False)
    user = [("trace", b"1"), ("nothing", None), ("trace", b"2"), ("empty", b""), ("binary", b"\xff\x00")]
    key, half_partition, partition = ABC
    half = client.prepare(topic, b"\x00value", key=key, headers=user, BORN_TIMESTAMP=1_600_000_000_123)
    client.end((half, COMMIT))
    found = wait_delivered(bridge, topic, half)
    assert (half[0], found.partition()) == (half_partition, partition)
    assert (found.key(), found.value()) == (b"abc", b"\x00value")
    assert found.headers() == [*user, *marks(half)]
    assert found.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_123)

    client.end((half, COMMIT))
    client.end((half, ROLLBACK))
    pass_by(bridge, client, topic, key)
    assert values(bridge, topic) == [b"\x00value", b"sentinel"]
    assert outcomes(bridge, half) == ["commit"]


def frame(topic: str, key: bytes | None, value: bytes | None, headers=(), partition: int = -1, timestamp: int = -1):
    """Frame of one of several messages, as on the page: numbers are signed and big-endian, -1 is null or none."""

    def sized(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    fields = sized(topic.encode()) + struct.pack(">iq", partition, timestamp) + sized(key) + sized(value)
    return fields + struct.pack(">i", len(headers)) + b"".join(sized(n.encode()) + sized(v) for n, v in headers)


def test_several_messages_are_checked_as_one_and_delivered_together_in_their_order(bridge: Bridge, join: Join):
    orders, stock = bridge.create_topic("several.orders", 4, retention_ms="-1"), bridge.create_topic("several.stock", 1)
    client = join("several")
    key, half_partition, partition = ABC
    user = [("trace", b"1"), ("nothing", None)]
    frames = [
        frame(orders, key, b"placed", user, timestamp=1_600_000_000_123),
        frame(stock, None, b"less", partition=0),
        frame(stock, b"k", None),
    ]
    half = client.prepare(orders, b"\1" + b"".join(frames), key=key, TXB_MESSAGES=3)
    client.running.clear()
    (check,) = wait_checks(client, half)
    told = dict(check.headers())
    assert (told["TXB_MESSAGES"], told["REAL_TOPIC"], check.key()) == (b"3", orders.encode(), key)
    assert check.value() == b"\1" + b"".join(frames)
    client.answer(check, lambda _: COMMIT)
    wait_outcome(bridge, half, "commit")
    (first,) = bridge.read(orders)
    assert (half[0], first.partition(), first.value()) == (half_partition, partition, b"placed")
    assert first.headers() == [*user, *marks(half), ("TXB_MESSAGE", b"1/3")]
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_123)
    assert [(one.key(), one.value(), one.headers()[-1]) for one in bridge.read(stock)] == [
        (None, b"less", ("TXB_MESSAGE", b"2/3")),
        (b"k", None, ("TXB_MESSAGE", b"3/3")),
    ]
    assert {one.timestamp()[1] for one in bridge.read(stock)} == {born(bridge, half)}


def test_unknown_is_asked_about_and_the_answer_commits_once(bridge: Bridge, join: Join):
    topic = bridge.create_topic("unknown", 4)
    client = join("unknown")
    user = [("trace", b"1"), ("nothing", None), ("trace", b"2")]
    half = client.prepare(topic, b"value", key=b"abc", headers=user, TXB_BARRIER="the.orders-database")
    unknown = client.end((half, UNKNOWN))
    (check,) = wait_checks(client, half)
    assert check.topic() == f"{bridge.namespace}.RMQ_SYS_TRANS_CHECK.unknown"
    assert (check.key(), check.value()) == (b"abc", b"value")
    *copied, times, where, position, birth = check.headers()
    assert copied == half_record(bridge, half).headers()
    assert copied[:3] == user
    assert sorted(copied[3:]) == [
        ("PGROUP", b"unknown"),
        ("REAL_TOPIC", topic.encode()),
        ("TRAN_MSG", b"true"),
        ("TXB_BARRIER", b"the.orders-database"),
        ("TXB_V", b"1"),
        ("UNIQ_KEY", half[2].encode()),
    ]
    assert (times, where) == (("TRANSACTION_CHECK_TIMES", b"1"), ("TXB_HALF", f"{half[0]}:{half[1]}".encode()))
    assert position[0] == "TXB_END"
    assert birth == ("TXB_BORN", str(born(bridge, half)).encode())
    assert int(position[1]) <= unknown.offset() + 1
    kind, when = check.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert when >= born(bridge, half) + 1_000

    asked = []
    answer = client.answer(check, lambda check: asked.append(check.value()) or COMMIT)
    assert asked == [b"value"]
    assert answer.value().decode() == f"{half[1]},{half[2]},8,1,"
    written = record_at(bridge, client.end_topic, half[0], answer.offset())
    assert sorted(written.headers()) == [("PGROUP", b"unknown"), ("SOURCE", b"check"), ("TXB_V", b"1")]
    wait_delivered(bridge, topic, half)
    client.answer(check, lambda check: COMMIT)
    pass_by(bridge, client, topic, b"abc")
    assert values(bridge, topic) == [b"sentinel", b"value"]


def test_the_client_answers_for_what_still_runs_and_for_what_it_gave_up_and_an_exception_is_unknown(
    bridge: Bridge, join: Join
):
    topic = bridge.create_topic("answers", 4)
    client = join("answers")
    running, lost, failing = (client.prepare(topic, name, key=b"abc") for name in (b"running", b"lost", b"failing"))
    client.running -= {lost[2], failing[2]}
    client.given_up.add(lost[2])  # simulates that the acknowledgement did not come

    def fail(check: Message) -> int:
        raise ValueError("no connection,\n0 % Prozent für " + "€" * 1000)

    checks = wait_checks(client, running, lost, failing)
    assert client.answer(checks[0], never_called).value().decode() == f"{running[1]},{running[2]},0,1,"
    assert client.answer(checks[1], never_called).value().decode() == f"{lost[1]},{lost[2]},12,1,"
    # The remark is 52 characters long up to the euro signs. Each of these takes 9, so 221 of them fit in 2,048.
    remark = "no%20connection%2C%0A0%20%25%20Prozent%20f%C3%BCr%20" + "%E2%82%AC" * 221
    assert client.answer(checks[2], fail).value().decode() == f"{failing[1]},{failing[2]},0,1,{remark}"

    wait_outcome(bridge, lost, "rollback")
    assert [check_times(check) for check in wait_checks(client, running, failing)] == [2, 2]
    client.end((running, COMMIT), (failing, COMMIT))
    wait_delivered(bridge, topic, running)
    wait_delivered(bridge, topic, failing)
    assert values(bridge, topic) == [b"failing", b"running"]


def test_one_end_record_decides_several_and_carries_remarks_and_a_refused_entry_spoils_none(bridge: Bridge, join: Join):
    topic = bridge.create_topic("batch", 4)
    client = join("batch", listening=False)
    first, second, third, fourth = (client.prepare(topic, value, key=b"abc") for value in (b"1", b"2", b"3", b"4"))
    forged = (*fourth[:2], "0" * 32)
    end = client.end(
        (first, COMMIT, "", "zwei, drei\nund 100 % überall 🙂"),
        (second, ROLLBACK),
        (forged, COMMIT),
        (third, UNKNOWN, "", ","),
        (fourth, COMMIT),
    )
    assert end.partition() == 1
    assert end.value().decode() == "\n".join(
        [
            f"{first[1]},{first[2]},8,,zwei%2C%20drei%0Aund%20100%20%25%20%C3%BCberall%20%F0%9F%99%82",
            f"{second[1]},{second[2]},12,,",
            f"{fourth[1]},00000000000000000000000000000000,8,,",
            f"{third[1]},{third[2]},0,,%2C",
            f"{fourth[1]},{fourth[2]},8,,",
        ]
    )
    wait_outcome(bridge, first, "commit")
    for half in (first, fourth):
        wait_delivered(bridge, topic, half)
    assert values(bridge, topic) == [b"1", b"4"]
    # One END record is applied in one Kafka transaction, which has one OP record for each outcome.
    ours = {f"{half[1]}" for half in (first, second, third, fourth)}
    named = [
        (dict(record.headers())["OUTCOME"], record.value())
        for record in op_records(bridge)
        if record.partition() == 1 and ours & set(record.value().decode().split(","))
    ]
    assert sorted(named) == [(b"commit", f"{first[1]},{fourth[1]}".encode()), (b"rollback", f"{second[1]}".encode())]
    join("stranger", listening=False).end((third, COMMIT))  # a stranger's group: refused
    client.end((third, ROLLBACK))
    wait_outcome(bridge, third, "rollback")


PENDING = {"state", "id", "group", "topic", "born", "size", "checks", "next", "end"}


def entry_of(bridge: Bridge, half: Half, state: str) -> dict:
    """Wait for a parked entry of this state, and return the last one."""
    found: list[dict] = []

    def there() -> bool:
        found[:] = [entry for entry in parked(bridge, half) if entry is not None and entry["state"] == state]
        return bool(found)

    eventually(there, 40, f"{half} was not {state}")
    return found[-1]


def wait_tombstone(bridge: Bridge, half: Half) -> None:
    eventually(lambda: parked(bridge, half)[-1:] == [None], 40, f"{half} has no tombstone")


def test_a_message_nobody_decides_is_parked_discarded_resumed_and_committed(bridge: Bridge, join: Join):
    topic = bridge.create_topic("budget", 4)
    client = join("budget")
    half = client.prepare(topic, b"value", key=b"abc", headers=[("trace", b"1")])
    (first,) = wait_checks(client, half)
    entry = entry_of(bridge, half, "discarded")
    pending = [entry for entry in parked(bridge, half) if entry["state"] == "pending"]
    assert [entry["checks"] for entry in pending] == [1, 2, 3, 4]
    for one in [*pending, entry]:
        assert (one["id"], one["group"], one["topic"]) == (half[2], "budget", topic)
        assert one["born"] == born(bridge, half)
        assert one["size"] >= len(b"abc" + b"value")
    assert all(set(one) == PENDING for one in pending)
    assert all(later["next"] >= one["next"] + 1_000 for one, later in pairwise(pending))
    assert [one["end"] for one in pending] == sorted(one["end"] for one in pending)
    assert pending[0]["end"] == int(dict(first.headers())["TXB_END"])
    assert set(entry) == PENDING | {"reason", "at"}
    assert (entry["reason"], entry["checks"]) == ("MAX_CHECKS", 4)
    checks = [
        check for check in bridge.read(client.check_topic) if dict(check.headers())["UNIQ_KEY"] == half[2].encode()
    ]
    assert [check_times(check) for check in checks] == [1, 2, 3, 4]
    wait_outcome(bridge, half, "discard")

    partition, offset = entry["at"]
    discard = record_at(bridge, internal(bridge, "TRANS_CHECK_MAX_TIME_TOPIC"), partition, offset)
    assert (discard.key(), discard.value()) == (b"abc", b"value")
    # No END was written since the discard, so END has the same end offset as then.
    _, end_position = client.consumer.get_watermark_offsets(TopicPartition(client.end_topic, half[0]), 10)
    assert discard.headers() == [
        *half_record(bridge, half).headers(),
        ("TRANSACTION_CHECK_TIMES", b"4"),
        ("TXB_HALF", f"{half[0]}:{half[1]}".encode()),
        ("TXB_END", str(end_position).encode()),
        ("TXB_REASON", b"MAX_CHECKS"),
    ]

    client.end((half, COMMIT))  # too late
    pass_by(bridge, client, topic, b"abc")
    assert values(bridge, topic) == [b"sentinel"]
    client.end((half, UNKNOWN), source="resume")
    eventually(lambda: "resumed" in (parked(bridge, half)[-1] or {}), 40, "it was not resumed")
    resumed = entry_of(bridge, half, "pending")
    assert set(resumed) == PENDING | {"resumed"}
    assert resumed["resumed"] >= discard.timestamp()[1]
    (check,) = wait_checks(client, half)
    while dict(check.headers())["TXB_END"] == dict(first.headers())["TXB_END"]:  # skips checks from before the discard
        (check,) = wait_checks(client, half)
    assert check_times(check) == 1
    client.answer(check, lambda check: COMMIT)
    wait_delivered(bridge, topic, half)
    wait_outcome(bridge, half, "discard", "commit")
    wait_tombstone(bridge, half)
