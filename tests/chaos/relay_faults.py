"""The faults of tests.chaos.relay_run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.chaos.relay_run import RelayRun
from tests.support.relays import RELAY_POINTS

Fault = Callable[[RelayRun], None]

#: At which passage of a point a relay fails: other lanes are in the middle of their batches then.
_PASSAGE = 5
#: Longer than every session and check interval of the run, and than the client's time for a half message.
LONG_PAUSE_S = 35.0
#: Long enough for another relay to send the same rows, and too short for a check, which comes after 3 s.
SHORT_PAUSE_S = 2.5


def _named(name: str, fault: Fault) -> Fault:
    fault.__name__ = name
    return fault


def kill_at(point: str) -> Fault:
    """A relay kills itself at this point."""

    def fault(run: RelayRun) -> None:
        relay = run.add_relay(f"{point}@{_PASSAGE}")
        run.hand_lanes_to(relay, lambda: relay.is_killed)

    return _named(f"kill -9 at {point}", fault)


def end_sessions_at(point: str) -> Fault:
    """PostgreSQL ends all sessions of a relay at this point, and it goes on."""

    def fault(run: RelayRun) -> None:
        relay = run.add_relay(f"{point}@{_PASSAGE}/SIGSTOP")
        run.hand_lanes_to(relay, lambda: relay.is_stopped)
        run.end_sessions(relay.name)
        relay.go_on()
        run.replace_oldest(relay)

    return _named(f"sessions end at {point}", fault)


def pause_at(point: str, seconds: float) -> Fault:
    """A relay stands still at this point. It loses its lanes, and keeps the session of its local transaction.

    So it sends its DELETE when it goes on, or its COMMIT.
    """

    def fault(run: RelayRun) -> None:
        relay = run.add_relay(f"{point}@{_PASSAGE}/SIGSTOP")
        run.hand_lanes_to(relay, lambda: relay.is_stopped)
        run.end_sessions(relay.name, with_lanes=True)
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


FAULTS: tuple[Fault, ...] = (
    *(kill_at(point) for point in RELAY_POINTS),
    kill_again_and_again,
    pause_at("relay.half_stored", SHORT_PAUSE_S),
    end_sessions_at_random,
    *(end_sessions_at(point) for point in RELAY_POINTS),
    kafka_is_away,
    database_crashes,
    pause_at("relay.half_stored", LONG_PAUSE_S),
    kafka_is_away,
    pause_at("relay.deleted", LONG_PAUSE_S),
    kill_again_and_again,
)
#: One of each kind that takes some seconds.
SHORT: tuple[Fault, ...] = (
    kill_at("relay.deleted"),
    pause_at("relay.half_stored", SHORT_PAUSE_S),
    end_sessions_at_random,
)
