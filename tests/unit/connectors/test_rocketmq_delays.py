"""Messages through the door: what it refuses, as txbridge's client does, when they are due, and their records."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError
from txbridge_rocketmq import identity, sends
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.codes import RequestError, ResponseCode
from txbridge_rocketmq.door_options import DoorMetrics, DoorSetting
from txbridge_rocketmq.grpc_messages import Code, status_of
from txbridge_rocketmq.mapping import refuse_in_batch, time_of_delivery
from txbridge_rocketmq.outlet import DecisionOutlet
from txbridge_rocketmq.requests import SendRequest
from txbridge_rocketmq.sends import Sends, StoredRecord

from txbridge.client import message as rules
from txbridge.client.message import Message, MessageLimits
from txbridge.client.options import ClientOptions, _require_group
from txbridge.core.names import Names
from txbridge.errors import UsageError

NOW, HOUR = 1_700_000_000_000, 3_600_000
SECRET = b"x" * 32


@pytest.mark.parametrize(
    ("properties", "due"),
    [
        ({}, None),
        ({"DELAY": "0"}, None),
        ({"DELAY": "1"}, NOW + 1_000),
        ({"DELAY": "3"}, NOW + 10_000),
        ({"DELAY": "5"}, NOW + 60_000),
        ({"DELAY": "14"}, NOW + 600_000),
        ({"DELAY": "15"}, NOW + 1_200_000),
        ({"DELAY": "18"}, NOW + 2 * HOUR),
        # The highest level, as in RocketMQ.
        ({"DELAY": "99"}, NOW + 2 * HOUR),
        ({"TIMER_DELAY_SEC": "5"}, NOW + 5_000),
        ({"TIMER_DELAY_MS": "5"}, NOW + 5),
        ({"TIMER_DELIVER_MS": "5"}, 5),
        ({"TIMER_DELIVER_MS": str(NOW + 7)}, NOW + 7),
        # The first property in RocketMQ's order counts.
        ({"TIMER_DELIVER_MS": "7", "TIMER_DELAY_MS": "6", "TIMER_DELAY_SEC": "5"}, NOW + 5_000),
        ({"TIMER_DELIVER_MS": "7", "DELAY": "1"}, NOW + 1_000),
        ({"TIMER_DELIVER_MS": "7", "DELAY": "0"}, 7),
    ],
)
def test_when_it_is_due(properties: dict[str, str], due: int | None) -> None:
    assert time_of_delivery(properties, NOW) == due


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "9" * 19, "\u0663"])
def test_what_is_no_delay_is_refused(name: str, text: str) -> None:
    with pytest.raises(RequestError, match=f"{name} is not a delay") as refused:
        time_of_delivery({name: text}, NOW)
    assert refused.value.code is ResponseCode.MESSAGE_ILLEGAL


def test_a_message_of_a_batch_has_no_delay() -> None:
    refuse_in_batch({"DELAY": "0", "p": "v"})
    with pytest.raises(RequestError, match="send the one with TIMER_DELAY_MS on its own"):
        refuse_in_batch({"TIMER_DELAY_MS": "1"})


class Kafka:
    """An outlet whose records the test acknowledges."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any, Mapping[str, Any], int]] = []
        self.answers: list[asyncio.Future[Any]] = []

    def send_record(
        self, topic: str, value: Any, _key: Any, headers: Any, *, partition: int = -1, timestamp: int | None = None
    ) -> asyncio.Future[Any]:
        self.records.append((topic, value, dict(headers), partition))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    async def answer(self, *report: Any) -> None:
        """Answer the last record, and let the sender act on it."""
        self.answers[-1].set_result(report)
        for _ in range(5):
            await asyncio.sleep(0)


class Topics:
    def cached_partitions(self, _topic: str) -> int:
        return 4


LIMITS = MessageLimits(1_000, 1_000)
PLACE = {"group": "plain", "topic": "orders", "queue_id": 3, "born": 1}


class Way:
    """Sends of a door, with their records in Kafka and their answers to the client."""

    def __init__(self, namespace: str = "") -> None:
        setting = DoorSetting(
            names=Names(namespace),
            partitions=2,
            limits=LIMITS,
            secret=SECRET,
            addresses=(),
            access=AccessKeys(),
            obstacle=lambda: "",
        )
        self.messages, self.ends = Kafka(), Kafka()
        self.groups: list[str] = []
        self.told: list[Any] = []
        self.sends = Sends(
            setting,
            self.messages,  # type: ignore[arg-type]
            DecisionOutlet(self.ends, setting.names.end, "door"),  # type: ignore[arg-type]
            Topics(),  # type: ignore[arg-type]
            DoorMetrics(),
            self.note_group,
        )

    async def note_group(self, group: str) -> str:
        self.groups.append(group)
        return ""

    async def submit(self, **properties: Any) -> None:
        """Begin to send a message."""
        self.sending = asyncio.create_task(self.send(**properties))
        await asyncio.sleep(0)

    async def send(self, body: bytes = b"body", where: Mapping[str, Any] = PLACE, **properties: str) -> None:
        send = SendRequest(
            **PLACE | where, sys_flag=0, flag=0, properties={"UNIQ_KEY": "01AB"} | properties, is_batch=False
        )
        try:
            self.told.append(await self.sends.send_message(send, body, "1.2.3.4:5"))
        except RequestError as error:
            self.told.append(error)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sends, "now_ms", lambda: NOW)
    monkeypatch.setattr("txbridge.client.message.now_ms", lambda: NOW)


async def test_one_without_a_transaction_is_prepared_and_committed_and_answered_when_kafka_has_both() -> None:
    way = Way()
    await way.submit(TIMER_DELAY_SEC="60", p="v")
    [(topic, value, headers, partition)] = way.messages.records
    given = {"UNIQ_KEY": "01AB", "TIMER_DELAY_SEC": "60", "p": "v"}
    fingerprint = identity.fingerprint_of(SECRET, "1.2.3.4", "orders", b"body", 0, given)
    transaction = identity.delayed_id(SECRET, "plain", "01AB", fingerprint)
    assert (topic, value, partition) == (Names().half, b"body", identity.half_partition(transaction, None, 2))
    assert (headers["TXB_DELIVER_AT"], headers["REAL_TOPIC"], headers["REAL_QID"]) == (
        b"%d" % (NOW + 60_000),
        b"orders",
        b"3",
    )
    assert (headers["PGROUP"], headers["UNIQ_KEY"], headers["p"]) == (b"plain", transaction.encode(), b"v")
    assert not {"TIMER_DELAY_SEC", "ROCKETMQ_TIMER_DELAY_SEC"} & headers.keys()
    assert way.groups == [], "there is nobody who could be asked"
    await way.messages.answer(None, 1, 7)
    assert way.told == [], "its commit is on its way"
    [(topic, value, headers, partition)] = way.ends.records
    assert (topic, value, partition) == (Names().end, f"7,{transaction},8".encode(), 1)
    assert (headers["PGROUP"], headers["SOURCE"]) == (b"plain", b"client")
    await way.ends.answer(None, 1, 0)
    assert way.told == [[StoredRecord("01AB", "", 3, 1, 7)]]


async def test_a_client_whose_commit_kafka_has_not_taken_is_told_so_and_sends_the_same_transaction_again() -> None:
    way = Way()
    for _ in range(2):
        await way.submit(TIMER_DELIVER_MS=str(NOW + HOUR))
        await way.messages.answer(None, 1, 7)
        await way.ends.answer(KafkaError(KafkaError._MSG_TIMED_OUT), 1, -1)
    assert [one.code for one in way.told] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert "the commit of the delayed message" in way.told[0].remark
    first, second = way.messages.records
    assert first[2]["UNIQ_KEY"] == second[2]["UNIQ_KEY"]


async def test_one_that_kafka_has_not_taken_is_not_committed() -> None:
    way = Way()
    await way.submit(DELAY="3")
    await way.messages.answer(KafkaError(KafkaError._MSG_TIMED_OUT), 1, -1)
    assert way.ends.records == []
    assert [one.code for one in way.told] == [ResponseCode.SERVICE_NOT_AVAILABLE]


async def test_a_time_that_has_passed_is_none() -> None:
    way = Way()
    await way.submit(TIMER_DELIVER_MS=str(NOW))
    assert [record[0] for record in way.messages.records] == ["orders"]


async def test_a_transaction_waits_for_its_decision_and_its_time() -> None:
    way = Way()
    await way.submit(TIMER_DELAY_MS="5", TRAN_MSG="true", PGROUP="plain")
    assert way.messages.records[0][2]["TXB_DELIVER_AT"] == b"%d" % (NOW + 5)
    assert way.groups == ["plain"]
    await way.messages.answer(None, 1, 7)
    assert way.ends.records == []
    assert [one.transaction != "" for one in way.told[0]] == [True]


_29, _13, _17 = ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST
LONG, IN_SECONDS, FAR = "x" * 17_000, NOW // 1_000, NOW + 73 * HOUR
Row = tuple[dict[str, Any], str, dict[str, Any], Any]
#: What the client refuses and its words, the same at the door, and the door's code or what it makes of it in HALF.
RULES: list[Row] = [
    ({"group": "a|b"}, "cannot be a producer group", {"group": "a|b"}, _29),
    ({"group": "x" * 200, "namespace": "n" * 60}, "longer than 249", {"group": "x" * 200, "namespace": "n" * 60}, _29),
    ({"topic": ""}, "the topic is empty", {"topic": ""}, _17),
    ({"topic": "a b"}, "cannot be a topic", {"topic": "a b"}, _17),
    ({"topic": "__x"}, "is forbidden", {"topic": "__x"}, ResponseCode.NO_PERMISSION),
    ({"partition": 2**31}, "partition must be", {"queue_id": 2**31}, _29),
    ({"value": bytes(1_001)}, "1001 bytes, more than", {"body": bytes(1_001)}, _13),
    ({"headers": {"a\0": "b"}}, "a NUL character", {"a\0": "b"}, _13),
    ({"key": LONG, "headers": {"KEYS": LONG}}, "key and headers take", {"KEYS": LONG}, _13),
    ({"check_immunity_time": 1_001}, "check_immunity_time", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1001"}, _13),
    ({"deliver_at": FAR}, "longest delay is 3d", {"TIMER_DELIVER_MS": str(FAR)}, _13),
    ({"deliver_at": IN_SECONDS}, "a time in seconds", {"TIMER_DELIVER_MS": str(IN_SECONDS)}, _13),
    ({"deliver_at": -1}, "deliver_at must be", {"TIMER_DELIVER_MS": "-1"}, _13),
    # The door translates these.
    ({"headers": {"TXB_V": "x"}}, "is reserved", {"TXB_V": "x"}, {"ROCKETMQ_TXB_V": b"x"}),
    ({"timestamp": 0}, "timestamp must be", {"born": 0}, {"TXB_TIMESTAMP": None}),
]


def send_by_the_client(*, group: str = "g", namespace: str = "", topic: str = "orders", **fields: Any) -> None:
    ClientOptions(group, {"bootstrap.servers": "kafka:9092"}, namespace, 1.0, 1)
    message = Message(topic, fields.pop("value", b"body"), **fields)
    rules.check_message(message, Names())
    rules.check_limits(message, LIMITS)


@pytest.mark.parametrize(("client", "words", "door", "outcome"), RULES, ids=[row[1] for row in RULES])
async def test_what_the_client_refuses_the_door_refuses_or_translates(
    client: dict[str, Any], words: str, door: dict[str, Any], outcome: Any
) -> None:
    with pytest.raises(UsageError, match=words):
        send_by_the_client(**client)
    given, way = dict(door), Way(door.get("namespace", ""))
    given.pop("namespace", None)
    where = {name: given.pop(name) for name in PLACE if name in given}
    await way.submit(where=where, TRAN_MSG="true", **given)
    if isinstance(outcome, dict):
        [(_, _, headers, _)] = way.messages.records
        assert {name: headers.get(name) for name in outcome} == outcome
        return
    [refused] = way.told
    assert (refused.code, way.messages.records, way.groups) == (outcome, [], [])
    assert status_of(refused).code >= Code.BAD_REQUEST


def test_every_rule_of_the_client_is_among_them() -> None:
    """All but the one about a Message that is none, which no protocol can send."""
    functions = (_require_group, rules.check_content, rules.check_units, rules.check_limits)
    refusals = [re.findall(r"raise UsageError|_within\(", inspect.getsource(one)) for one in functions]
    assert len(RULES) == sum(map(len, refusals)) - 1
