"""Scenarios through the front door: the same Java client as on RocketMQ's side, a door, a real worker and Kafka."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from txbridge_rocketmq.identity import fingerprint_in, transaction_id, unpacked
from txbridge_rocketmq.routes import broker_name

from tests.differential.rocketmq_side import RocketMqStage
from tests.differential.scenario import Answer, Fate, Stage
from tests.differential.txbridge_side import LOGS, fates_in_kafka, running
from tests.peer.client import PeerClient
from tests.peer.jars import jar_folder
from tests.peer.server import Peer
from tests.support.harness import UNKNOWN, Bridge, Prepared, WorkerProcess
from tests.support.rocketmq_door import SECRET, Door, topic_of
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.java import find_java


@contextlib.contextmanager
def door(kafka: EmbeddedKafka) -> Iterator[Callable[[str], Stage]]:
    """Start a door; yield a function that makes the stage for a scenario of this name."""
    with (
        running(kafka, "door") as (bridge, worker),
        Door(bridge) as opened,
        tempfile.TemporaryDirectory(prefix="txbridge-differential-") as folder,
    ):
        topic, address = topic_of(bridge, "real", 2), opened.address
        as_peer = Peer(find_java(), jar_folder(), address, address, Path(folder), broker_name=broker_name(address))
        try:
            with PeerClient(as_peer, "PeerClient", topic, 0) as client:
                yield lambda scenario: DoorStage(client, bridge, worker, topic, scenario)
        finally:
            (LOGS / "door.log").write_text(opened.log)


class DoorStage(RocketMqStage):
    """RocketMQ's client, with the fates of its transactions as read from Kafka."""

    def __init__(self, client: PeerClient, bridge: Bridge, worker: WorkerProcess, topic: str, scenario: str) -> None:
        self._bridge, self._worker, self._topic = bridge, worker, topic
        super().__init__(client, scenario)

    def _prepared(self, name: str) -> Prepared:
        uniq_key, place, table_offset = self._client.ask("stored", body=self._body(name))
        partition, offset = unpacked(int(place))
        fingerprint = fingerprint_in(int(table_offset))
        return Prepared(partition, offset, transaction_id(SECRET.encode(), self._group, uniq_key, fingerprint))

    def resume(self, name: str) -> None:
        prepared = self._prepared(name)
        self._bridge.end([prepared.entry(UNKNOWN)], prepared.partition, group=self._group, source="resume")

    def fates(self) -> Mapping[str, Fate]:
        fate = fates_in_kafka(self._bridge, self._worker, self._topic)
        checks = self._client.ask("state")["checks"]
        return {
            # A door answers an END before the worker reads it. Only what the door itself refuses is in its answer.
            name: fate(self._body(name), checks.get(self._body(name), 0), self._prepared(name), self._refused[name])
            for name in self._names
        }

    def decide(self, name: str, decision: Answer, *, stranger: bool = False) -> None:
        super().decide(name, decision, stranger=stranger)
        assert not self._refused[name], "the door itself has refused the decision"

    def answer_again(self, name: str, decision: Answer) -> None:
        super().answer_again(name, decision)
        assert not self._refused[name], "the door itself has refused the answer"
