"""A cluster of brokers with controllers in processes of their own, or with links between the nodes that can be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.kafka_links import KafkaLinks
from txbridge.embedded import EmbeddedKafka, Node
from txbridge.embedded.config import QUORUM
from txbridge.embedded.datadir import DataDir
from txbridge.embedded.java import Java
from txbridge.embedded.ports import free_port
from txbridge.embedded.process import stop_together

# Node ids of controllers that are not brokers begin above this.
_CONTROLLER_IDS = 100
_CONTROLLER = "CONTROLLER://"
# A controller without a broker refuses these.
_BROKER_ONLY = {"advertised.listeners", "inter.broker.listener.name", "broker.rack"}


class KafkaCluster(EmbeddedKafka):
    """Three brokers or more.

    Args:
        separate_controllers: run the controllers in three further processes. Brokers can then be lost without them.
        can_cut_off: connect the nodes through a process of ours, so that `cut_off` of a node works.
        options: those of EmbeddedKafka.

    """

    def __init__(
        self, *, brokers: int = 3, separate_controllers: bool = False, can_cut_off: bool = False, **options: Any
    ) -> None:
        super().__init__(brokers=brokers, **options)
        self._separate_controllers = separate_controllers
        self._can_cut_off = can_cut_off
        self._links: KafkaLinks | None = None

    @property
    def brokers(self) -> list[Node]:
        return [node for node in super().brokers if node.node_id < _CONTROLLER_IDS]

    @property
    def controllers(self) -> list[Node]:
        """The controllers in processes of their own."""
        return [node for node in super().brokers if node.node_id > _CONTROLLER_IDS]

    def cut_off(self, node: Node) -> None:
        """Cut the node off from the other nodes. Clients still reach it."""
        assert self._links is not None, "give can_cut_off=True"
        self._links.cut(node.node_id)

    def join_again(self, node: Node) -> None:
        """End `cut_off`: data that were sent meanwhile arrive, as after an interruption of a network."""
        assert self._links is not None
        self._links.join(node.node_id)

    def kill(self) -> None:
        super().kill()
        self._close_links()

    def _make_nodes(self, data_dir: Path) -> dict[int, Node]:
        nodes = super()._make_nodes(data_dir)
        if self._separate_controllers:
            for number in range(1, QUORUM + 1):
                node_id = _CONTROLLER_IDS + number
                nodes[node_id] = Node(node_id, DataDir(data_dir / f"controller-{number}"), self._lock)
        return nodes

    def _choose_properties(self, java: Java) -> dict[int, dict[str, str]]:
        properties = super()._choose_properties(java)
        if self._separate_controllers:
            self._separate(properties)
        if self._can_cut_off:
            self._links = KafkaLinks({node_id: _put_behind_links(own) for node_id, own in properties.items()})
        return properties

    def _separate(self, properties: dict[int, dict[str, str]]) -> None:
        """Move the listeners of the quorum from the brokers to controllers."""
        voters = []
        for node in self.controllers:
            broker = properties[node.node_id - _CONTROLLER_IDS]
            *others, controller = broker["listeners"].split(",")
            own = {name: value for name, value in broker.items() if name not in _BROKER_ONLY}
            own |= {"process.roles": "controller", "node.id": str(node.node_id), "listeners": controller}
            properties[node.node_id] = own | {"log.dirs": str(node.data.kafka)}
            broker |= {"process.roles": "broker", "listeners": ",".join(others)}
            voters.append(f"{node.node_id}@{controller.removeprefix(_CONTROLLER)}")
        for own in properties.values():
            own["controller.quorum.voters"] = ",".join(voters)

    def _stop_nodes(self, timeout: float) -> None:
        # Brokers first: they can hand over their leaderships only while controllers run.
        stop_together([node for number, node in self._nodes.items() if number < _CONTROLLER_IDS], timeout)
        super()._stop_nodes(timeout)
        self._close_links()

    def _close_links(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None


def _put_behind_links(properties: dict[str, str]) -> list[tuple[int, int]]:
    """Let a node listen behind the ports that the others know. Returns pairs: the known port, and the one behind it."""
    pairs, listeners, advertised = [], [], []
    for listener in properties["listeners"].split(","):
        advertised.append(listener)
        if listener.startswith("PLAINTEXT://"):
            listeners.append(listener)
            continue
        address, _, port = listener.rpartition(":")
        pairs.append((int(port), free_port()))
        listeners.append(f"{address}:{pairs[-1][1]}")
    # The quorum tells its members the leader's address, which must be that of the link.
    properties |= {"listeners": ",".join(listeners), "advertised.listeners": ",".join(advertised)}
    return pairs
