"""Folders and ports of a cluster, the sender on a link, and a broker's metadata of the cluster."""

from __future__ import annotations

import struct
import time

import pytest

from txbridge.embedded import layout, links, metadata, stopping
from txbridge.errors import UsageError


@pytest.mark.parametrize(
    ("brokers", "why"),
    [
        (0, ""),
        (2, ": with two, none may be away (a quorum of two needs both)"),
        (10, ": each one needs a JVM of its own"),
    ],
)
def test_sizes_that_are_refused(brokers, why):
    with pytest.raises(UsageError) as refused:
        layout.check_size(brokers)
    assert str(refused.value) == f"brokers must be 1, or 3 to 9, not {brokers}{why}"


def test_further_brokers_take_the_ports_behind_the_first(monkeypatch):
    """The result does not depend on the ports that other programs of this machine use."""
    monkeypatch.setattr(layout, "require_free", lambda _: None)
    assert layout.check_port(65_533, 3) == 65_533
    with pytest.raises(UsageError, match="port must be between 1 and 65533, or None for a free one, not 65534"):
        layout.check_port(65_534, 3)
    members = layout.choose_members([1, 2, 3, 101], 40_000, separate_controllers=True, with_links=False)
    assert [one.port for one in members] == [40_000, 40_001, 40_002, 0]
    assert [one.is_controller for one in members] == [False, False, False, True]
    assert all(one.controller_link == one.controller for one in members)


def test_a_port_that_is_chosen_is_not_one_that_is_wanted(monkeypatch):
    monkeypatch.setattr(layout, "require_free", lambda _: None)
    chosen = iter([20_001, 20_002, *range(30_000, 30_010)])
    monkeypatch.setattr(layout, "free_port", lambda: next(chosen))
    members = layout.choose_members([1, 2, 3], 20_000, separate_controllers=False, with_links=False)
    assert [one.port for one in members] == [20_000, 20_001, 20_002]
    assert [one.internal for one in members] == [30_000, 30_002, 30_004]


def test_links_have_ports_of_their_own():
    members = layout.choose_members([1, 2, 3, 4], None, separate_controllers=False, with_links=True)
    used = [port for one in members for port in (one.port, one.internal, one.internal_link, one.controller)]
    used += [one.controller_link for one in members]
    assert len(set(used)) == len(used)
    assert [one.is_controller for one in members] == [True, True, True, False]
    first, last = members[0], members[3]
    assert layout.ways(first) == [
        (first.internal_link, first.internal),
        (first.controller_link, first.controller),
    ]
    assert layout.ways(last) == [(last.internal_link, last.internal)]


def formatted(folder):
    (folder / "kafka").mkdir(parents=True)
    (folder / "kafka" / "meta.properties").write_text("")


def test_a_folder_is_started_with_as_many_nodes_as_it_has(tmp_path):
    assert layout.folders(tmp_path, 1, separate_controllers=False) == {1: tmp_path}
    cluster = {1: tmp_path / "broker-1", 2: tmp_path / "broker-2", 3: tmp_path / "broker-3"}
    assert layout.folders(tmp_path, 3, separate_controllers=False) == cluster
    for folder in cluster.values():
        formatted(folder)
    assert layout.node_folders(tmp_path) == list(cluster.values())
    assert layout.folders(tmp_path, 3, separate_controllers=False) == cluster
    with pytest.raises(UsageError, match=r"belongs to a Kafka of 3 brokers: start it with as many \(--brokers"):
        layout.folders(tmp_path, 1, separate_controllers=False)
    with pytest.raises(UsageError, match="belongs to a Kafka of 3 brokers: "):
        layout.folders(tmp_path, 3, separate_controllers=True)


def test_a_folder_of_one_node_is_no_cluster(tmp_path):
    formatted(tmp_path)
    with pytest.raises(UsageError, match="belongs to a Kafka of 1 broker: start it with as many"):
        layout.folders(tmp_path, 3, separate_controllers=False)


@pytest.mark.parametrize(
    ("client_id", "node"),
    [("broker-2-fetcher-0", 2), ("raft-client-101", 101), ("3", 3), ("admin", None), ("", None)],
)
def test_who_sends_on_a_link(client_id, node):
    name = client_id.encode()
    request = struct.pack(">ihhih", 10 + len(name), 18, 3, 1, len(name)) + name
    assert links.sender(request) == node


def test_metadata_as_kafka_writes_them():
    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    brokers = struct.pack(">ii", 2, 1) + text("127.0.0.1") + struct.pack(">i", 9092) + text("rack-1")
    brokers += struct.pack(">i", 3) + text("127.0.0.1") + struct.pack(">ih", 9094, -1)
    partition = struct.pack(">hii", 0, 0, 3) + struct.pack(">iiii", 3, 1, 2, 3) + struct.pack(">iii", 2, 3, 1)
    alone = struct.pack(">hii", 5, 1, -1) + struct.pack(">ii", 1, 2) + struct.pack(">ii", 1, 2)
    topic = struct.pack(">h", 0) + text("orders") + struct.pack(">bi", 0, 2) + partition + alone
    answer = brokers + text("c") + struct.pack(">i", 1) + struct.pack(">i", 1) + topic
    told = metadata.parse(answer)
    assert told == metadata.Metadata(
        "c",
        frozenset({1, 3}),
        {"orders/0": metadata.Partition(3, (1, 2, 3), (3, 1)), "orders/1": metadata.Partition(-1, (2,), (2,))},
    )
    assert [one.is_whole for one in told.partitions.values()] == [False, False]
    assert metadata.Partition(3, (1, 3), (3, 1)).is_whole


class Stubborn:
    """Ends by SIGTERM unless it needs a quorum that is gone."""

    def __init__(self, name, ended, obeys):
        self.name, self.ended, self.obeys = name, ended, obeys

    def is_running(self):
        return self.name not in self.ended

    def terminate(self):
        if self.obeys:
            self.ended.append(self.name)

    def kill(self):
        if self.is_running():
            self.ended.append(f"{self.name} killed")
            self.ended.append(self.name)


def test_the_last_node_is_not_waited_for_when_there_is_no_quorum(monkeypatch):
    monkeypatch.setattr(stopping, "_WITHOUT_QUORUM_S", 0.1)
    ended = []
    nodes = [Stubborn("1", ended, True), Stubborn("2", ended, True), Stubborn("3", ended, False)]
    since = time.monotonic()
    stopping.stop_together(nodes, 1_000)
    assert time.monotonic() - since < 500
    assert ended == ["1", "2", "3 killed", "3"]
