"""Requests to one broker after the other, over connections of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from txbridge.kafka.aiokafka_client import aiokafka_client, aiokafka_runner
from txbridge.kafka.proven_end import AskEachBroker, View
from txbridge.log import get_logger

#: Longest wait for an answer (s). A healthy broker answers in milliseconds, over a connection that takes up to a second
#: with TLS. A broker that does not answer in time is left out.
_ANSWER_S = 2.0
#: ListOffsets: the timestamp that asks for the log end, and the replica id of a client.
_LATEST, _NO_REPLICA = -1, -1
#: Records of open Kafka transactions count: acknowledged records are in the log.
_READ_UNCOMMITTED = 0

#: UNKNOWN_TOPIC_OR_PARTITION: it stands for an answer that does not name the partition.
_UNKNOWN = 3

_T = TypeVar("_T")
_log = get_logger("txbridge.worker")


def each_broker(kafka: Mapping[str, Any]) -> AskEachBroker:
    """A function that opens connections to each broker of a cluster; `kafka` holds librdkafka's properties."""

    @contextmanager
    def ask() -> Iterator[_Connections]:
        with aiokafka_runner() as runner:
            yield _Connections(runner, kafka)

    return ask


class _Connections:
    """Connections to the brokers of a cluster, and an event loop of their own."""

    def __init__(self, runner: asyncio.Runner, kafka: Mapping[str, Any]) -> None:
        self._runner = runner
        self._kafka = kafka
        self._client: AIOKafkaClient | None = None

    def list_nodes(self) -> Collection[int]:
        return self._answer_of(self._list_brokers()) or ()

    async def _list_brokers(self) -> list[int]:
        if self._client is None:
            self._client = aiokafka_client(self._kafka, "each-broker", _ANSWER_S)
            await self._client.bootstrap()
        return [broker.nodeId for broker in self._client.cluster.brokers()]

    def view_of(self, node: int, topic: str, partition: int) -> View | None:
        answer = self._answer_of(self._send_to(node, MetadataRequest([topic], allow_auto_topic_creation=False)))
        if answer is None:
            return None
        partitions = ((name, (number, *rest)) for _, name, _, of in answer.topics for _, number, *rest in of)
        leader, replicas, *_ = _fields_of(partitions, topic, partition) or (-1, ())
        return View(leader, frozenset(replicas)) if replicas else None

    def end_of(self, node: int, topic: str, partition: int) -> int | None:
        request = OffsetRequest(_NO_REPLICA, _READ_UNCOMMITTED, [(topic, [(partition, _LATEST)])])
        answer = self._answer_of(self._send_to(node, request))
        if answer is None:
            return None
        partitions = ((name, one) for name, of in answer.topics for one in of)
        code, _, offset, *_ = _fields_of(partitions, topic, partition) or (_UNKNOWN, 0, -1)
        return int(offset) if code == 0 else None

    async def _send_to(self, node: int, request: Any) -> Any:
        assert self._client is not None
        return await asyncio.wait_for(self._client.send(node, request), _ANSWER_S)

    def _answer_of(self, question: Coroutine[Any, Any, _T]) -> _T | None:
        try:
            return self._runner.run(question)
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            _log.debug("broker_not_answering", error=str(error) or type(error).__name__)
            return None


def _fields_of(partitions: Iterable[tuple[str, Sequence[Any]]], topic: str, partition: int) -> Sequence[Any] | None:
    """The fields about one partition in an answer, without its number. None if the answer does not name it."""
    return next((rest for name, (number, *rest) in partitions if (name, number) == (topic, partition)), None)
