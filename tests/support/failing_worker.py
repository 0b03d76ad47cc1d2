"""`python -m tests.support.failing_worker FAULT ...`: `txbridge worker`, in which one part of Faust or aiokafka fails.

Each fault comes with the signal FAIL. Most reach into private parts: no setting makes a library's task end.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import GroupAuthorizationFailedError

from tests.support.harness import FAIL
from txbridge.cli.main import main
from txbridge.worker.app import BridgeApp
from txbridge.worker.partitions import PartitionOwner

#: aiokafka leaves the group after this long without a fetch (s). Faust's default is 1,000 s.
SHORT_POLL_INTERVAL_S = 2.0
_FOR_EVER_S = 86_400.0


class _Parts:
    """The latest parts of the worker in this process."""

    app: BridgeApp
    coordinator: GroupCoordinator
    #: The event loop of Faust's consumer thread.
    loop: asyncio.AbstractEventLoop


def _in_consumer_thread(action: Callable[[], Any]) -> None:
    _Parts.loop.call_soon_threadsafe(action)


async def _never(*_: Any, **__: Any) -> None:
    await asyncio.sleep(_FOR_EVER_S)


async def _denied(*_: Any, **__: Any) -> None:
    raise GroupAuthorizationFailedError("injected")


def _block_forever() -> None:
    time.sleep(_FOR_EVER_S)


def _assignment_is_lost() -> None:
    _Parts.app.consumer._thread.on_partitions_assigned = _denied


def _revocation_hangs() -> None:
    _Parts.app.consumer.on_partitions_revoked = _never


def _heartbeat(instead: Callable[..., Any]) -> Callable[[], None]:
    def replace() -> None:
        _Parts.coordinator._do_heartbeat = instead

    return replace


def _aiokafka_fetcher_ends() -> None:
    fetcher = _Parts.app.consumer._thread._consumer._fetcher
    _in_consumer_thread(fetcher._fetch_task.cancel)


def _faust_fetcher_ends() -> None:
    loop, task = _Parts.app.loop, _Parts.app._fetcher._drainer
    if task is None:
        # Faust fetches nothing before it has finished its part of the first rebalance.
        loop.call_soon_threadsafe(loop.call_later, 0.05, _faust_fetcher_ends)
    else:
        loop.call_soon_threadsafe(task.cancel)


def _agent_ends() -> None:
    for agent in _Parts.app.agents.values():
        for actor in agent._actors:
            actor.actor_task.cancel()


def _owner_ends() -> None:
    def end(_owner: PartitionOwner) -> bool:
        raise SystemExit

    PartitionOwner._told_to_stop = end  # type: ignore[method-assign]


#: By name; the tests name them, too.
FAULTS: dict[str, Callable[[], Any]] = {
    "coordination-ends": lambda: _in_consumer_thread(_Parts.coordinator._coordination_task.cancel),
    "heartbeat-denied": _heartbeat(_denied),
    "heartbeat-hangs": _heartbeat(_never),
    "leaves-group": lambda: _in_consumer_thread(_Parts.coordinator.maybe_leave_group),
    "consumer-thread-blocks": lambda: _in_consumer_thread(_block_forever),
    "event-loop-blocks": lambda: _Parts.app.loop.call_soon_threadsafe(_block_forever),
    "assignment-lost": _assignment_is_lost,
    "revocation-hangs": _revocation_hangs,
    "aiokafka-fetcher-ends": _aiokafka_fetcher_ends,
    "faust-fetcher-ends": _faust_fetcher_ends,
    "agent-ends": _agent_ends,
    "owner-ends": _owner_ends,
    # This one is there from the start, and needs no signal.
    "short-poll-interval": lambda: None,
}


def _remember_parts(fault: str) -> None:
    init_app, init_coordinator = BridgeApp.__init__, GroupCoordinator.__init__

    def new_app(app: BridgeApp, *args: Any, **kwargs: Any) -> None:
        _Parts.app = app
        init_app(app, *args, **kwargs)

    def new_coordinator(coordinator: GroupCoordinator, *args: Any, **kwargs: Any) -> None:
        _Parts.coordinator, _Parts.loop = coordinator, asyncio.get_running_loop()
        if fault == "short-poll-interval":
            kwargs["max_poll_interval_ms"] = round(SHORT_POLL_INTERVAL_S * 1000)
        init_coordinator(coordinator, *args, **kwargs)

    BridgeApp.__init__ = new_app  # type: ignore[method-assign]
    GroupCoordinator.__init__ = new_coordinator


def run(fault: str) -> None:
    """Run the command line of `txbridge` with this fault."""

    def fail(_signal: int, _frame: FrameType | None) -> None:
        FAULTS[fault]()

    signal.signal(FAIL, fail)
    _remember_parts(fault)
    main()


if __name__ == "__main__":
    name = sys.argv.pop(1)
    run(name)
