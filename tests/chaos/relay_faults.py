"""The faults of tests.chaos.relay_run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.chaos.relay_run import RelayRun
from tests.support.relays import RELAY_POINTS

Fault = Callable[[RelayRun], None]

#: At which passage of a step a relay fails: it has sent some batches then.
_PASSAGE = 5
#: The steps of a batch. A relay passes the others once.
_STEPS = tuple(f"{point.partition('@')[0]}@{_PASSAGE}" for point in RELAY_POINTS[3:])
#: Longer than every time-out of the database's sessions and of Kafka's transactions.
LONG_PAUSE_S = 25.0
SHORT_PAUSE_S = 2.5


def _named(name: str, fault: Fault) -> Fault:
    fault.__name__ = name
    return fault


def kill_at(point: str) -> Fault:
    """A relay kills itself at this point."""

    def fault(run: RelayRun) -> None:
        relay = run.add_relay(point)
        run.let_work(relay, lambda: relay.is_killed)

    return _named(f"kill -9 at {point}", fault)


def end_sessions_at(point: str) -> Fault:
    """PostgreSQL ends all sessions of a relay at this point, and it goes on."""

    def fault(run: RelayRun) -> None:
        relay = run.add_relay(f"{point}/SIGSTOP")
        run.let_work(relay, lambda: relay.is_stopped)
        run.end_sessions(relay.name)
        relay.go_on()
        run.replace_oldest(relay)

    return _named(f"sessions end at {point}", fault)


def pause_at(point: str, seconds: float) -> Fault:
    """The owner stands still at this point, loses its lock while another one works, and goes on."""

    def fault(run: RelayRun) -> None:
        relay = run.add_relay(f"{point}/SIGSTOP")
        run.let_work(relay, lambda: relay.is_stopped)
        run.end_sessions(relay.name)
        time.sleep(seconds)
        relay.go_on()
        run.replace_oldest(relay)

    return _named(f"paused at {point} for {seconds:.0f} s", fault)


def kill_again_and_again(run: RelayRun) -> None:
    """kill -9 of relays at random moments."""
    for _ in range(6):
        time.sleep(random.uniform(0, 1.5))
        run.kill_relay()


def end_sessions_at_random(run: RelayRun) -> None:
    """PostgreSQL ends sessions of relays at random moments."""
    for _ in range(30):
        time.sleep(random.uniform(0, 0.4))
        run.end_sessions("relay-%", at_most=1)


def kafka_is_away(run: RelayRun) -> None:
    """Kafka is killed, and away for some seconds."""
    run.kafka.kill()
    time.sleep(5)
    run.kafka.restart()


def database_crashes(run: RelayRun) -> None:
    """PostgreSQL ends as in a crash, and starts again."""
    run.postgres.stop()
    time.sleep(1)
    run.postgres.start()


def prepared_transaction_is_orphaned(run: RelayRun) -> None:
    """A prepared transaction holds rows back while a relay is killed. Somebody commits it later."""
    commit = run.prepare_orders()
    time.sleep(2)
    run.kill_relay()
    time.sleep(2)
    commit()


#: Where most depends on what comes next: the batch is open, is visible, and its rows are about to go.
_WORST = tuple(f"{point}@{_PASSAGE}" for point in ("commit.flushed", "commit.committed", "relay.confirming"))

FAULTS: tuple[Fault, ...] = (
    *(kill_at(point) for point in (*RELAY_POINTS[:3], *_STEPS)),
    kill_again_and_again,
    *(pause_at(point, SHORT_PAUSE_S) for point in _WORST),
    end_sessions_at_random,
    *(end_sessions_at(point) for point in _WORST),
    kafka_is_away,
    database_crashes,
    prepared_transaction_is_orphaned,
    *(pause_at(point, LONG_PAUSE_S) for point in _WORST[::2]),
    kafka_is_away,
    kill_again_and_again,
)
#: One of each kind that takes some seconds.
SHORT: tuple[Fault, ...] = (
    kill_at(f"commit.committed@{_PASSAGE}"),
    pause_at(f"commit.flushed@{_PASSAGE}", SHORT_PAUSE_S),
    end_sessions_at_random,
    prepared_transaction_is_orphaned,
)
