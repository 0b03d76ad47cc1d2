"""Folders and ports of a cluster, and its common stop."""

from __future__ import annotations

import time

import pytest

from txbridge.embedded import datadir, process
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
        datadir.check_size(brokers)
    assert str(refused.value) == f"brokers must be 1, or 3 to 9, not {brokers}{why}"


def test_further_brokers_take_the_ports_behind_the_first():
    assert datadir.check_port(65_533, 3) == 65_533
    with pytest.raises(UsageError, match="port must be between 1 and 65533, or None for a free one, not 65534"):
        datadir.check_port(65_534, 3)
    members = datadir.choose_ports(4, 40_000)
    assert [one.port for one in members] == [40_000, 40_001, 40_002, 40_003]


def test_a_port_that_is_chosen_is_not_one_that_is_wanted(monkeypatch):
    chosen = iter([20_001, 20_002, *range(30_000, 30_010)])
    monkeypatch.setattr(datadir, "free_port", lambda: next(chosen))
    members = datadir.choose_ports(3, 20_000)
    assert [one.port for one in members] == [20_000, 20_001, 20_002]
    assert [one.internal for one in members] == [30_000, 30_002, 30_004]


def formatted(folder):
    (folder / "kafka").mkdir(parents=True)
    (folder / "kafka" / "meta.properties").write_text("")


def test_a_folder_is_started_with_as_many_nodes_as_it_has(tmp_path):
    assert datadir.choose_folders(tmp_path, 1) == {1: tmp_path}
    cluster = {1: tmp_path / "broker-1", 2: tmp_path / "broker-2", 3: tmp_path / "broker-3"}
    assert datadir.choose_folders(tmp_path, 3) == cluster
    for folder in cluster.values():
        formatted(folder)
    assert datadir.find_folders(tmp_path) == list(cluster.values())
    assert datadir.choose_folders(tmp_path, 3) == cluster
    with pytest.raises(UsageError, match=r"belongs to a Kafka of 3 brokers: start it with as many \(--brokers"):
        datadir.choose_folders(tmp_path, 1)


def test_a_folder_of_one_node_is_no_cluster(tmp_path):
    formatted(tmp_path)
    with pytest.raises(UsageError, match="belongs to a Kafka of 1 broker: start it with as many"):
        datadir.choose_folders(tmp_path, 3)


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
    monkeypatch.setattr(process, "_WITHOUT_QUORUM_S", 0.1)
    ended = []
    nodes = [Stubborn("1", ended, True), Stubborn("2", ended, True), Stubborn("3", ended, False)]
    since = time.monotonic()
    process.stop_together(nodes, 1_000)
    assert time.monotonic() - since < 500
    assert ended == ["1", "2", "3 killed", "3"]
