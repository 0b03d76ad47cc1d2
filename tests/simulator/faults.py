"""Kinds of faults and their chances. Each seed chooses a different few of them.

A run with every fault at once seldom gets far, while one with a few explores a lot (swarm testing).
"""

from __future__ import annotations

from tests.simulator.world import World

#: Chance per occasion. Mishaps of the scheduler have weights of their own: here they only have to be listed.
CHANCES = {
    "offsets not answered": 0.02,
    "fetch slow": 0.05,
    "fetch small": 0.3,
    "fetch failed": 0.01,
    "metadata not answered": 0.02,
    "group not answered": 0.2,
    "group answered late": 0.3,
    "group client falls silent": 0.05,
    "group coordinator remembered": 0.05,
    "controller remembered": 0.02,
    "InitProducerId late": 0.05,
    "EndTxn lost": 0.08,
    "EndTxn late": 0.1,
    "EndTxn resent": 0.15,
    "EndTxn not answered": 0.1,
    "commit must be aborted": 0.08,
    "producer's queue full": 0.05,
    "Produce refused": 0.03,
    "coordinator moved": 0.1,
    "records timed out": 0.03,
    "Produce lost": 0.05,
    "Produce not answered": 0.05,
    "acknowledgement lost": 0.15,
    "half message sent twice": 0.15,
    "END event skipped": 0.2,
    "END event out of order": 0.2,
    "END event repeated": 0.2,
    "crash": 1.0,
    "pause": 1.0,
    "rebalance": 1.0,
    "clock jump": 1.0,
    "topic gone": 1.0,
    "application death": 1.0,
    "former leader": 1.0,
}

#: The same for faults with a random source of their own. They are so rare that most runs are not slower.
RARE = {
    "leader cut off": 1.0,
    "broker not answering": 0.1,
    "OFFSET lost its tail": 1.0,
    "OP lost its tail": 1.0,
    "Produce answered late": 0.1,
    "brokers' clock set": 1.0,
    # The next two are of a service with SQL transactions, which runs have only with one of these.
    "sender waits before its row": 1.0,
    "two stores under one group": 1.0,
    "group without members": 1.0,
    "no room for a marker": 1.0,
}
_RARE_SHARE = 0.1


def choose_faults(world: World) -> None:
    """Choose some of the faults, or none in a few runs."""
    share = world.random.choice((0.0, 0.15, 0.3, 0.3, 0.5, 0.8))
    world.faults = {name: chance for name, chance in CHANCES.items() if world.random.random() < share}
    side = world.side("rare faults")
    world.faults |= {name: chance for name, chance in RARE.items() if share and side.random() < _RARE_SHARE}
