"""A log loses its tail and grows again: whatever the schedule was, the next owner writes nothing."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import structlog

from tests.simulator.simulation import Simulation
from txbridge.worker import restore

SEEDS = 40


def _checkpoint(simulation: Simulation) -> dict[str, object] | None:
    names = simulation.names
    log = simulation.world.cluster.logs[names.offset, 0]
    records, _ = log.visible(0, 1_000_000, committed=True)
    found = [record.value for record in records if record.key == names.checkpoint_key(0)]
    return json.loads(found[-1] or b"") if found else None


def _refused(seed: int, short: str) -> bool | None:
    """Whether an owner refuses a log that has lost its last records, one of them read; None when none was read."""
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
        log.lose(log.high_watermark - mark[0])
        for _ in range(world.random.randint(0, 4)):
            # Other transactions, at the offsets of those that are gone.
            other = world.cluster.logs[simulation.names.half, 0].entries[0]
            headers = [
                (name, b"%032X" % log.high_watermark if name == "UNIQ_KEY" else value) for name, value in other.headers
            ]
            world.cluster.append_plain((log.topic, 0), (other.key, b"another", headers, 0))
        before = _checkpoint(simulation)
        simulation.start_owner(0)
        actor = simulation.processes[-1].actor
        for _ in range(600):
            if actor.is_runnable:
                actor.run(50)
            else:
                world.now = max(world.now + 1, actor.waits_until or 0)
            for coordinated, place in world.cluster.markers_due():
                world.cluster.write_marker(coordinated, place)
        return world.counters["log refused"] > 0 and _checkpoint(simulation) == before
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
    monkeypatch.setattr(restore, "lost_tails", lambda *_: {})
    assert any(_refused(seed, short) is False for seed in range(SEEDS))
