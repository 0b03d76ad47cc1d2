"""Relays that share the work while they are killed, and while Kafka is away: each row once, and in order by key."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine

from tests.support.command_line import run_txbridge
from tests.support.harness import Bridge, eventually
from tests.support.relays import add_rows, relaying, require_exact, rows_left, wait_relayed

_WRITERS = 4


class Writers:
    """Threads that write rows at the same time, those of a key from one thread each."""

    def __init__(self, url, topic, count, seconds):
        """All of it takes at least so many seconds."""
        self._url, self._topic, self._count = url, topic, count
        self._pause = seconds * _WRITERS * 10 / count
        self._threads = [threading.Thread(target=self._write, args=[number]) for number in range(_WRITERS)]

    def _write(self, first):
        engine = create_engine(self._url)
        add_rows(engine, self._topic, range(first, self._count, _WRITERS), keys=_WRITERS * 5, pause=self._pause)
        engine.dispose()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join()

    @property
    def are_busy(self):
        return any(thread.is_alive() for thread in self._threads)


@pytest.mark.parametrize(("count", "kills"), [(20_000, 8), pytest.param(100_000, 20, marks=pytest.mark.long)])
def test_p3_p14_two_relays_that_are_killed(bridge, url, engine, count, kills):
    topic = bridge.create_topic("orders", partitions=4)
    bridge.worker(transaction_check_max=100)
    chance = random.Random(7)
    with ExitStack() as running, Writers(url, topic, count, kills * 2.5) as writers:
        relays = [running.enter_context(relaying(bridge, url)) for _ in range(2)]
        done = 0
        while done < kills and (writers.are_busy or rows_left(engine)):
            time.sleep(chance.uniform(1.0, 4.0))
            victim = chance.randrange(2)
            relays[victim].send_signal(signal.SIGKILL)
            relays[victim] = running.enter_context(relaying(bridge, url))
            done += 1
        assert done > kills // 2
        wait_relayed(bridge, topic, count, timeout=60)
        # What the dead have left behind is rolled back.
        eventually(lambda: {tuple(one) for one in bridge.outcomes().values()} <= {("commit",), ("rollback",)}, 60)
        eventually(lambda: len(bridge.outcomes()) == len(bridge.read(bridge.names.half)), 60)
    require_exact(bridge, topic, count)
    assert rows_left(engine) == 0
    where = ("--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace)
    audit = run_txbridge("audit", *where, "--format", "json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    report = json.loads(audit.stdout)
    assert report["violations"]["total"] == 0
    assert report["transactions"] == len(bridge.outcomes())


def test_p3_kafka_goes_away_and_comes_back(own_kafka, request, url, engine):
    with Bridge(own_kafka.bootstrap_servers, request.node.name) as bridge:
        topic = bridge.create_topic("orders")
        bridge.worker(transaction_check_max=100)
        with relaying(bridge, url) as relay:
            add_rows(engine, topic, range(100))
            wait_relayed(bridge, topic, 100, relay)
            own_kafka.pause()
            add_rows(engine, topic, range(100, 300))
            # Longer than a half message is tried for.
            time.sleep(8)
            assert rows_left(engine) == 200
            own_kafka.resume()
            add_rows(engine, topic, range(300, 400))
            wait_relayed(bridge, topic, 400, relay, timeout=60)
        require_exact(bridge, topic, 400)
        assert rows_left(engine) == 0
