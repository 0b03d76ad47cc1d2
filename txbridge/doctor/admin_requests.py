"""Requests that librdkafka does not have: the state of transactions, the quorum's clock, the features of each broker.

They go through aiokafka, which the worker needs anyway. Nothing here changes anything on the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka import errors as kafka_errors
from aiokafka.client import CoordinationType
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest
from confluent_kafka import KafkaError

from txbridge.deadline import Deadline
from txbridge.doctor.admin_schemas import DescribeProducers, DescribeQuorum, DescribeTransactions
from txbridge.doctor.cluster_view import COORDINATOR_COMES, RETRY_S
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.kafka.aiokafka_client import aiokafka_client
from txbridge.kafka.broker_features import ApiKey, Asked, Versions, ask_versions, lacking
from txbridge.kafka.log import without_aiokafka

_Result = TypeVar("_Result")

#: Requests that identify a release: DescribeTransactions came with Kafka 3.0, Fetch 17 with 3.9, and 4.0 removed Fetch
#: versions below 4.
_FETCH_OF_3_9, _FETCH_OF_4 = 17, 4
#: Names of releases that are not supported or not tested.
TOO_OLD, UNTESTED = "older than 3.0", "3.0 to 3.8"
#: The one error that neither of our clients has a name for. The transactional id was never used, or not for a week.
ID_NOT_FOUND = "TRANSACTIONAL_ID_NOT_FOUND"
_NAMES = {105: ID_NOT_FOUND}
#: AddPartitionsToTxn checks the right before everything else. No producer has this id, and no topic this partition, so
#: that the request has no effect.
_NO_PRODUCER, _NO_PARTITION = -1, 2**31 - 1
#: Time limit (s) for all requests together, after each broker was asked for its versions. A healthy cluster needs
#: milliseconds. A broker that hangs from then on takes REQUEST_TIMEOUT_S for a request.
_ALL_REQUESTS_S = 30.0
#: Part of it (s): the wait for coordinators that are being created, elected or loaded. A fresh cluster creates them at
#: the first look-up, in a second; the rest is for busy machines.
_COORDINATORS_COME_S = 20.0
#: Transactional ids that are examined at the same time.
_AT_ONCE = 20
#: Errors of a request without an answer. aiokafka raises the last one for a broker that does not know the request.
_NO_ANSWER = (kafka_errors.KafkaError, OSError, TimeoutError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The coordinator's state of a transactional id. Times in ms."""

    #: Empty when the user may not see it, or the coordinator does not know the id.
    state: str
    error: str = ""
    timeout: int = 0
    #: Begin of the current transaction, or of one that has ended; -1 when there is none.
    since: int = -1
    producer_id: int = -1


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """A producer that writes to a partition in Kafka transactions, as far as its leader remembers producers."""

    topic: str
    partition: int
    producer_id: int
    #: First offset of its open Kafka transaction; -1 when it has none.
    start_offset: int
    #: Time of its last record, ms.
    last_record: int


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to the requests that librdkafka does not have. A failed one is an error text instead."""

    #: By broker: "4.x", "3.9", UNTESTED or TOO_OLD.
    releases: Mapping[int, str]
    #: By broker: the requests that txbridge needs and the broker lacks.
    lacking: Mapping[int, str]
    unreachable: Mapping[int, str]
    #: The controller's clock minus ours, and the uncertainty of it, both ms; or the error.
    clock: tuple[float, float] | str
    #: By transactional id.
    transactions: Mapping[str, Transaction]
    #: Whether WRITE is granted on each transactional id; None when it could not be asked.
    may_write: Mapping[str, bool | None]
    transactional: Sequence[TransactionalProducer] | str


def ask(
    kafka: Mapping[str, Any], transactional_ids: Sequence[str], leaders: Mapping[int, Mapping[str, Sequence[int]]]
) -> Answers:
    """Send all requests, over connections of their own. `leaders` has the partitions to look at, by their leader.

    Raises EnvironmentProblemError when no connection can be made, UsageError for settings that aiokafka cannot use.
    """
    try:
        # aiokafka's log lines would mix with our output. The answers contain its errors.
        with without_aiokafka():
            return asyncio.run(_Client(kafka).ask(transactional_ids, leaders))
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        raise EnvironmentProblemError(
            f"a worker's second Kafka client, aiokafka, cannot connect with these settings: {_text(error)}"
        ) from None


def release_of(versions: Versions) -> str:
    """The release of a broker, by the oldest and the newest version of each request that it knows."""
    if ApiKey.DESCRIBE_TRANSACTIONS not in versions:
        return TOO_OLD
    least, most = versions.get(ApiKey.FETCH, (0, 0))
    if least >= _FETCH_OF_4:
        return "4.x"
    return "3.9" if most >= _FETCH_OF_3_9 else UNTESTED


class _Client:
    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._kafka: Any = None
        self._asked = Asked({}, {})
        self._deadline = Deadline()
        #: One wait for all ids.
        self._coordinators_come = Deadline()

    async def ask(
        self, transactional_ids: Sequence[str], leaders: Mapping[int, Mapping[str, Sequence[int]]]
    ) -> Answers:
        self._kafka = aiokafka_client(self._properties, "doctor", REQUEST_TIMEOUT_S)
        try:
            await self._kafka.bootstrap()
            self._asked = await ask_versions(self._kafka)
            self._deadline = Deadline(_ALL_REQUESTS_S)
            clock = await self._or_error(self._clock())
            self._coordinators_come = Deadline(_COORDINATORS_COME_S)
            slots = asyncio.Semaphore(_AT_ONCE)
            found = await asyncio.gather(*(self._about(one, slots) for one in transactional_ids))
            transactional = await self._or_error(self._transactional(leaders))
        finally:
            await self._kafka.close()
        return Answers(
            releases={node: release_of(known) for node, known in self._asked.versions.items()},
            lacking={node: what for node, known in self._asked.versions.items() if (what := lacking(known))},
            unreachable=self._asked.unreachable,
            clock=clock,
            transactions={one: transaction for one, (transaction, _) in zip(transactional_ids, found, strict=True)},
            may_write={one: may_write for one, (_, may_write) in zip(transactional_ids, found, strict=True)},
            transactional=transactional,
        )

    async def _or_error(self, question: Coroutine[Any, Any, _Result]) -> _Result | str:
        """The answer, or the text of the error when there is none before the deadline."""
        try:
            return await asyncio.wait_for(question, self._deadline.left)
        except _NO_ANSWER as error:
            return _text(error)

    async def _clock(self) -> tuple[float, float]:
        """The controller's clock minus ours, and the uncertainty (ms). The leader reports itself as caught up *now*."""
        before = _now()
        answer = await self._send_to_any(DescribeQuorum())
        after = _now()
        _raise_for(answer.error_code)
        [(_, [(_, error, leader, _, _, voters, _, _)], _)] = answer.topics
        _raise_for(error)
        theirs = next((caught_up for replica, _, _, caught_up, _ in voters if replica == leader), None)
        if theirs is None:
            raise kafka_errors.KafkaError("the quorum has no leader")
        return theirs - (before + after) / 2, (after - before) / 2

    async def _about(self, transactional_id: str, slots: asyncio.Semaphore) -> tuple[Transaction, bool | None]:
        """The state of a transactional id, and whether WRITE is granted on it. Both need the same coordinator."""
        async with slots:
            node = await self._or_error(self._coordinator(transactional_id))
            if isinstance(node, str):
                return Transaction("", node), None
            transaction = await self._or_error(self._transaction(node, transactional_id))
            may_write = await self._or_error(self._may_write(node, transactional_id))
        return (
            Transaction("", transaction) if isinstance(transaction, str) else transaction,
            None if isinstance(may_write, str) else may_write,
        )

    async def _transaction(self, node: int, transactional_id: str) -> Transaction:
        while True:
            answer = await self._send(node, DescribeTransactions([transactional_id]))
            [(code, _, state, timeout, since, producer_id, _, _, _)] = answer.transaction_states
            if not code:
                return Transaction(state, "", timeout, since, producer_id)
            if code not in COORDINATOR_COMES or self._coordinators_come.is_over:
                return Transaction("", _name_of(code))
            await asyncio.sleep(RETRY_S)
            node = await self._coordinator(transactional_id)

    async def _may_write(self, node: int, transactional_id: str) -> bool:
        topic = transactional_id.partition("@")[0]
        request = AddPartitionsToTxnRequest(transactional_id, _NO_PRODUCER, -1, [(topic, [_NO_PARTITION])])
        answer = await self._send(node, request)
        codes = {code for _, partitions in answer.errors for _, code in partitions}
        return kafka_errors.TransactionalIdAuthorizationFailed.errno not in codes

    async def _transactional(self, leaders: Mapping[int, Mapping[str, Sequence[int]]]) -> list[TransactionalProducer]:
        found = []
        for node, topics in leaders.items():
            answer = await self._send(node, DescribeProducers(topics))
            for topic, partitions, _ in answer.topics:
                for partition, code, _, producers, _ in partitions:
                    _raise_for(code, f"{topic}[{partition}]")
                    found += [
                        TransactionalProducer(topic, partition, producer, start, last)
                        for producer, _, _, last, coordinator_epoch, start, _ in producers
                        # The coordinator epoch is known once a marker has ended a Kafka transaction here.
                        if start >= 0 or coordinator_epoch >= 0
                    ]
        return found

    async def _coordinator(self, transactional_id: str) -> int:
        """The coordinator's broker."""
        while True:
            answer = await self._send_to_any(FindCoordinatorRequest(transactional_id, CoordinationType.TRANSACTION))
            if not answer.error_code:
                found: int = answer.coordinator_id
                return found
            if answer.error_code not in COORDINATOR_COMES or self._coordinators_come.is_over:
                raise kafka_errors.for_code(answer.error_code)
            await asyncio.sleep(RETRY_S)

    async def _send_to_any(self, request: Any) -> Any:
        """Send a request that any broker answers, to one that has just answered if there is one."""
        return await self._send(next(iter([*self._asked.versions, *self._asked.unreachable])), request)

    async def _send(self, node: int, request: Any) -> Any:
        if node in self._asked.unreachable:
            # Each further attempt could take REQUEST_TIMEOUT_S.
            raise kafka_errors.NodeNotReadyError(f"broker {node} does not answer")
        return await self._kafka.send(node, request)


def _now() -> float:
    return time.time() * 1000


def _name_of(code: int) -> str:
    return _NAMES.get(code) or str(KafkaError(code).name())


def _raise_for(code: int, where: str = "") -> None:
    if code:
        raise kafka_errors.KafkaError(f"{_name_of(code)}{where and ' at '}{where}")


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return _name_of(KafkaError.REQUEST_TIMED_OUT)
    code = getattr(error, "errno", None)
    if isinstance(error, kafka_errors.BrokerResponseError) and code is not None:
        return _name_of(code)
    return str(error) or type(error).__name__
