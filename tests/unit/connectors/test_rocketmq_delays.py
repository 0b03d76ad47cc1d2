"""A delayed message through the door: its due time, and the record in Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

import pytest
from confluent_kafka import KafkaError
from txbridge_rocketmq import identity, mapping, sends
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.codes import RequestError, ResponseCode
from txbridge_rocketmq.decision_outlet import DecisionOutlet
from txbridge_rocketmq.delays import refuse_in_batch, time_of_delivery
from txbridge_rocketmq.door_metrics import DoorMetrics
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.grpc_messages import orphan_of
from txbridge_rocketmq.requests import SendRequest
from txbridge_rocketmq.sends import Sends, StoredRecord
from txbridge_rocketmq.setting import DoorSetting

from txbridge.client.message import Message, MessageExt, MessageLimits
from txbridge.core.names import Names

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
        self,
        topic: str,
        value: Any,
        _key: Any,
        headers: Any,
        *,
        partition: int = -1,
        timestamp: int | None = None,
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


class Way:
    """Sends of a door, with their records in Kafka and their answers to the client."""

    def __init__(self) -> None:
        setting = DoorSetting(
            names=Names(),
            partitions=2,
            limits=MessageLimits(1_000, 1_000),
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

    def note_group(self, group: str) -> asyncio.Task[None]:
        self.groups.append(group)
        return asyncio.create_task(asyncio.sleep(0))

    async def submit(self, **properties: str) -> None:
        """Begin to send a message."""
        self.sending = asyncio.create_task(self.send(**properties))
        await asyncio.sleep(0)

    async def send(self, **properties: str) -> None:
        given = {"UNIQ_KEY": "01AB", **properties}
        send = SendRequest("plain", "orders", 3, 0, 1, 0, given, is_batch=False)
        try:
            self.told.append(await self.sends.send_message(send, b"body", "1.2.3.4:5"))
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


@pytest.mark.parametrize("more", [{}, {"TRAN_MSG": "true", "PGROUP": "plain"}])
async def test_a_longer_delay_than_the_worker_allows_is_refused(more: dict[str, str]) -> None:
    way = Way()
    await way.send(TIMER_DELIVER_MS=str(NOW + 72 * HOUR + 1), **more)
    [refused] = way.told
    assert refused.code is ResponseCode.MESSAGE_ILLEGAL
    assert "longest delay is 3d" in refused.remark


def test_a_check_says_when_it_is_to_be_delivered() -> None:
    message = Message("orders", b"body", headers={"ROCKETMQ_UNIQ_KEY": "01AB"}, deliver_at=NOW + 5)
    asked = MessageExt.for_execution(message, "0" * 32, 1, 7, 1_000)
    stored = mapping.checked(asked, "plain", (IPv4Address("1.2.3.4"), 5))
    assert stored.properties["TIMER_DELIVER_MS"] == str(NOW + 5)
    orphan = orphan_of(ClientCheck("plain", "01AB", "0" * 12, asked)).recover_orphaned_transaction_command
    assert orphan.message.system_properties.delivery_timestamp.ToMilliseconds() == NOW + 5
