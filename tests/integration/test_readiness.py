"""Readiness of every program in every outage of Kafka: it says no soon, says yes soon after, and stays with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.harness import Bridge, eventually
from tests.support.kafka_proxy import EndTxnProxy
from tests.support.programs import Program, all_programs
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

#: Seconds within which a program is not ready: the limit of a proof, an interval of questions, and a time-out of one.
#: After the outage a client needs two answers, and a worker takes its partitions over again.
NOT_READY_S, READY_S = 10.0, 20.0
#: Connections that have broken in the outage were noticed twelve seconds after it.
LATER_S = 15.0


class Link(EndTxnProxy):
    """The network between Kafka and all its clients."""

    is_cut = False

    def carry(self, request: bytes) -> bool:
        return not self.is_cut and super().carry(request)

    def cut(self) -> None:
        """Let no request pass. Connections stay open."""
        self.is_cut = True

    def mend(self) -> None:
        """Let new connections pass. Those of before lack some requests, and end."""
        self.is_cut = False
        self.end_all()


#: By fault: its beginning, its end, and its duration (s).
Fault = tuple[Callable[[EmbeddedKafka, Link], object], Callable[[EmbeddedKafka, Link], object], float]
FAULTS: dict[str, Fault] = {
    "paused": (lambda kafka, _: kafka.pause(), lambda kafka, _: kafka.resume(), 0),
    "paused for long": (lambda kafka, _: kafka.pause(), lambda kafka, _: kafka.resume(), 80),
    "killed": (lambda kafka, _: kafka.kill(), lambda kafka, _: kafka.restart(), 0),
    "killed for long": (lambda kafka, _: kafka.kill(), lambda kafka, _: kafka.restart(), 30),
    "cut off": (lambda _, link: link.cut(), lambda _, link: link.mend(), 0),
}


@contextmanager
def linked_kafka() -> Iterator[tuple[EmbeddedKafka, Link]]:
    """A Kafka that its clients reach over a link."""
    port = free_port()
    with Link() as link:
        link.connect_to(port)
        # The controller must not declare the broker dead while it is paused.
        config = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{link.port}", "broker.session.timeout.ms": "180000"}
        with EmbeddedKafka(port, config=config) as kafka:
            yield kafka, link


def until(ready: bool, programs: dict[str, Program], limit: float) -> dict[str, float]:
    """Wait until each program is ready, or is not; the seconds that it took."""
    began, found = time.monotonic(), dict[str, float]()

    def all_are() -> bool:
        for name, program in programs.items():
            if name not in found and program.is_ready() is ready:
                found[name] = round(time.monotonic() - began, 1)
        return found.keys() == programs.keys()

    eventually(all_are, limit, lambda: f"only {found}")
    return found


@pytest.mark.parametrize(
    "fault", [name if name == "paused" else pytest.param(name, marks=pytest.mark.long) for name in FAULTS]
)
def test_every_program_says_no_in_an_outage_and_yes_after_it(
    fault: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    begin, end, seconds = FAULTS[fault]
    # Kafka counts its pause, too. A session of 6 s, the default, may end at the end of it.
    session = 30_000 if fault == "paused" else 6_000
    with (
        linked_kafka() as (kafka, link),
        Bridge(f"127.0.0.1:{link.port}", request.node.name) as bridge,
        all_programs(bridge, tmp_path, session_timeout=session) as programs,
    ):
        until(True, programs, 60)
        begin(kafka, link)
        lost = until(False, programs, NOT_READY_S)
        # An outage may be short or long; nobody may take it for over meanwhile.
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            assert not any(program.is_ready() for program in programs.values())
            assert {programs[name].status("/livez") for name in programs if name != "client"} == {200}
            time.sleep(1)
        end(kafka, link)
        back = until(True, programs, READY_S)
        print(f"{fault}: not ready after {lost} s; ready {back} s after the end")
        # A late report of broken connections is no second outage.
        over = time.monotonic() + LATER_S
        while time.monotonic() < over:
            wrong = {name: why for name, program in programs.items() if (why := program.why_not_ready())}
            if seconds:
                # The worker's session has ended. It joins its group again and takes its partitions over.
                assert "coordinator" not in wrong.pop("worker", "")
            assert wrong == {}
            time.sleep(0.5)
