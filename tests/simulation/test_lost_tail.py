"""A log that loses its tail and grows again: in every schedule the next owner refuses it and writes nothing."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import structlog

from tests.simulator.records import end_headers, half_headers
from tests.simulator.simulation import Simulation
from tests.simulator.small_world import take_turn
from txbridge.kafka import state_topics

SEEDS = 40


def _checkpoint(simulation: Simulation) -> dict[str, object] | None:
    names = simulation.names
    log = simulation.world.cluster.logs[names.offset, 0]
    records, _ = log.visible(0, 1_000_000, committed=True)
    found = [record.value for record in records if record.key == names.checkpoint_key(0)]
    return json.loads(found[-1] or b"") if found else None


def _refused(seed: int, short: str) -> bool | None:
    """Whether an owner refuses a log that has lost its last records instead of going on.

    At least one of the lost records was read before. The result is None when none was read, or when the owner still
    waits for Kafka.
    """
    simulation = Simulation(seed)
    world = simulation.world
    structlog.configure(processors=[cast(Any, simulation._on_log)], cache_logger_on_first_use=False)
    try:
        for partition in range(simulation.partitions):
            simulation.start_owner(partition)
        for _ in range(150):
            simulation.step()
        world.faults.clear()
        world.former_leaders.clear()
        for process in simulation.processes:
            process.actor.crash()
        world.late_requests.clear()
        for coordinated, place in world.cluster.markers_due():
            world.cluster.write_marker(coordinated, place)
        checkpoint, log = _checkpoint(simulation), world.cluster.logs[simulation.names.identified[short], 0]
        mark = None if checkpoint is None else checkpoint.get("marks", {}).get(short)
        if mark is None:
            return None
        other = world.cluster.logs[simulation.names.half, 0].entries[0]
        log.lose(log.high_watermark - mark[0])
        for _ in range(world.random.randint(0, 4)):
            # Other transactions take the offsets of the lost records.
            headers = [
                (name, b"%032X" % log.high_watermark if name == "UNIQ_KEY" else value) for name, value in other.headers
            ]
            world.cluster.append_plain((log.topic, 0), (other.key, b"another", headers, 0))
        before = _checkpoint(simulation)
        simulation.start_owner(0)
        for _ in range(600):
            take_turn(world, simulation.processes[-1], 50)
        if _checkpoint(simulation) != before:
            return False
        return True if world.counters["log refused"] else None
    finally:
        for process in simulation.processes:
            process.actor.crash()
        structlog.reset_defaults()


@pytest.mark.parametrize("short", ["half", "end"])
def test_a_log_that_has_lost_its_tail_is_refused(short: str) -> None:
    results = [_refused(seed, short) for seed in range(SEEDS)]
    assert False not in results
    assert results.count(True) > SEEDS / 3


@pytest.mark.parametrize("short", ["half", "end"])
def test_without_marks_it_is_not_noticed(monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    monkeypatch.setattr(state_topics, "lost_tails", lambda *_: {})
    assert any(_refused(seed, short) is False for seed in range(SEEDS))


def _served_on(short: str, hidden_by: str) -> tuple[bool, list[object]]:
    """Whether an owner goes on writing after that topic has lost its last records, and the events that it logs."""
    simulation, logged = Simulation(0), list[object]()
    world, names = simulation.world, simulation.names
    world.faults.clear()

    def note(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        logged.append(event["event"])
        raise structlog.DropEvent

    def commit(number: int) -> None:
        """Write a half message and its decision, and give the owner ample time for them.

        But not so much that it would settle: a checkpoint at the ends counts no record of OP.
        """
        headers = half_headers("orders", "group0", f"{number:032X}")
        half = world.cluster.append_plain((names.half, 0), (None, b"", headers, 0))
        world.cluster.append_plain((names.end, 0), (None, b"%d,%032X,8" % (half, number), end_headers("group0"), 0))
        for _ in range(100):
            take_turn(world, process, 20)

    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        simulation.start_owner(0)
        process = simulation.processes[-1]
        commit(1)
        commit(2)
        delivered = world.cluster.logs["orders", 0]
        before = len(delivered.visible(0, 100, committed=True)[0])
        assert (simulation.lost_tails.lose_offset if short == "offset" else simulation.lost_tails.lose_op)(0)
        [lost] = world.lost_tails.values()
        lost.hidden_by = hidden_by
        commit(3)
        return len(delivered.visible(0, 100, committed=True)[0]) > before, logged
    finally:
        for one in simulation.processes:
            one.actor.crash()
        structlog.reset_defaults()


@pytest.mark.parametrize("hidden_by", ["", "records", "markers"])
@pytest.mark.parametrize("short", ["offset", "op"])
def test_an_owner_writes_no_more_when_its_own_records_are_lost(short: str, hidden_by: str) -> None:
    # This owner knows everything, so what it writes looks complete. Its successor would miss parked or finished
    # messages. What it has aborted must not hide the loss: behind that, the next records land where they should.
    goes_on, logged = _served_on(short, hidden_by)
    assert not goes_on
    assert "refused" in logged
