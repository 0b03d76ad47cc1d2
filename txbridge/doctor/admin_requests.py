"""Requests that librdkafka does not have: rights on transactional ids, features of each broker.

They go through aiokafka, which the worker needs anyway. Nothing here changes anything on the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka import errors as kafka_errors
from aiokafka.client import CoordinationType
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest
from confluent_kafka import KafkaError

from txbridge.deadline import Deadline
from txbridge.doctor.cluster_view import COORDINATOR_COMES, RETRY_S
from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.kafka.aiokafka_client import aiokafka_client, aiokafka_runner
from txbridge.kafka.broker_features import Asked, ask_versions, lacking

_Result = TypeVar("_Result")

#: AddPartitionsToTxn checks the right before everything else. No producer has this id, and no topic this partition, so
#: that the request has no effect.
_NO_PRODUCER, _NO_PARTITION = -1, 2**31 - 1
#: Time limit (s) for all requests together, after each broker was asked for its versions. A healthy cluster needs
#: milliseconds. A broker that hangs from then on takes REQUEST_TIMEOUT_S for a request.
_ALL_REQUESTS_S = 30.0
#: Part of it (s): the wait for coordinators that are being created, elected or loaded. A fresh cluster creates them at
#: the first look-up, in a second; the rest is for busy machines.
_COORDINATORS_COME_S = 20.0
_NO_RIGHT = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
#: Transactional ids that are examined at the same time.
_AT_ONCE = 20
#: Errors of a request without an answer. aiokafka raises the last one for a broker that does not know the request.
_NO_ANSWER = (kafka_errors.KafkaError, OSError, TimeoutError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers to the requests that librdkafka does not have. A failed one is an error text instead."""

    #: By broker: the requests that txbridge needs and the broker lacks.
    lacking: Mapping[int, str]
    unreachable: Mapping[int, str]
    #: The rights on each transactional id; or the error.
    id_rights: Mapping[str, frozenset[str] | str]


def ask_brokers(kafka: Mapping[str, Any], transactional_ids: Sequence[str]) -> Answers:
    """Send all requests, over connections of their own.

    Raises EnvironmentProblemError when no connection can be made, UsageError for settings that aiokafka cannot use.
    """
    try:
        # aiokafka's log lines would mix with our output. The answers contain its errors.
        with aiokafka_runner() as runner:
            return runner.run(_AdminRequests(kafka).send_all(transactional_ids))
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        raise EnvironmentProblemError(
            f"a worker's second Kafka client, aiokafka, cannot connect with these settings: {_text(error)}"
        ) from None


class _AdminRequests:
    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._kafka: Any = None
        self._asked = Asked({}, {})
        self._deadline = Deadline()
        #: One wait for all ids.
        self._coordinators_come = Deadline()

    async def send_all(self, transactional_ids: Sequence[str]) -> Answers:
        self._kafka = aiokafka_client(self._properties, "doctor", REQUEST_TIMEOUT_S)
        await self._kafka.bootstrap()
        self._asked = await ask_versions(self._kafka)
        self._deadline = Deadline(_ALL_REQUESTS_S)
        self._coordinators_come = Deadline(_COORDINATORS_COME_S)
        slots = asyncio.Semaphore(_AT_ONCE)
        found = await asyncio.gather(*(self._find_rights(one, slots) for one in transactional_ids))
        return Answers(
            lacking={node: what for node, known in self._asked.versions.items() if (what := lacking(known))},
            unreachable=self._asked.unreachable,
            id_rights=dict(zip(transactional_ids, found, strict=True)),
        )

    async def _or_error(self, question: Coroutine[Any, Any, _Result]) -> _Result | str:
        """The answer, or the text of the error when there is none before the deadline."""
        try:
            return await asyncio.wait_for(question, self._deadline.left)
        except _NO_ANSWER as error:
            return _text(error)

    async def _find_rights(self, transactional_id: str, slots: asyncio.Semaphore) -> frozenset[str] | str:
        """The rights on a transactional id, or the error. The look-up of its coordinator needs DESCRIBE."""
        async with slots:
            node = await self._or_error(self._find_coordinator(transactional_id))
            if isinstance(node, str):
                return frozenset() if node == _NO_RIGHT else node
            may_write = await self._or_error(self._may_write(node, transactional_id))
        if isinstance(may_write, str):
            return may_write
        return frozenset({"DESCRIBE", "WRITE"} if may_write else {"DESCRIBE"})

    async def _may_write(self, node: int, transactional_id: str) -> bool:
        topic = transactional_id.partition("@")[0]
        request = AddPartitionsToTxnRequest(transactional_id, _NO_PRODUCER, -1, [(topic, [_NO_PARTITION])])
        answer = await self._send_to(node, request)
        codes = {code for _, partitions in answer.errors for _, code in partitions}
        return kafka_errors.TransactionalIdAuthorizationFailed.errno not in codes

    async def _find_coordinator(self, transactional_id: str) -> int:
        """The coordinator's broker."""
        while True:
            answer = await self._send_to_any(FindCoordinatorRequest(transactional_id, CoordinationType.TRANSACTION))
            if not answer.error_code:
                return int(answer.coordinator_id)
            if answer.error_code not in COORDINATOR_COMES or self._coordinators_come.is_over:
                raise kafka_errors.for_code(answer.error_code)
            await asyncio.sleep(RETRY_S)

    async def _send_to_any(self, request: Any) -> Any:
        """Send a request that any broker answers, to one that has just answered if there is one."""
        return await self._send_to(next(iter([*self._asked.versions, *self._asked.unreachable])), request)

    async def _send_to(self, node: int, request: Any) -> Any:
        if node in self._asked.unreachable:
            # Each further attempt could take REQUEST_TIMEOUT_S.
            raise kafka_errors.NodeNotReadyError(f"broker {node} does not answer")
        return await self._kafka.send(node, request)


def _name_of(code: int) -> str:
    return str(KafkaError(code).name())


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return _name_of(KafkaError.REQUEST_TIMED_OUT)
    code = getattr(error, "errno", None)
    if isinstance(error, kafka_errors.BrokerResponseError) and code is not None:
        return _name_of(code)
    return str(error) or type(error).__name__
