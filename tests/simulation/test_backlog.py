"""A large unread backlog in HALF: the worker keeps a bounded part of it in memory, and serves at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import structlog

from tests.simulator.applications import COMMIT
from tests.simulator.partition_log import Stored
from tests.simulator.records import half_headers
from tests.simulator.small_world import SmallWorld, take_turn
from txbridge.core.half_entry import HalfEntry
from txbridge.core.open_messages import OpenMessages
from txbridge.worker.ingest.half_log import HALF_BATCH

UNREAD = 30_000
#: Limit of unfinished half messages, above which they are parked.
LIMIT = 2_000


class _Halves:
    """The records of HALF, each made when it is read."""

    def __len__(self) -> int:
        return UNREAD

    def __getitem__(self, offset: int) -> Stored:
        headers = half_headers("orders", "group", f"{offset:032X}")
        born = 1_750_000_000_000
        return Stored(offset, "data", b"key", b"%d" % offset, headers, born, born)


class Backlog:
    """A single worker that takes over a partition with this backlog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        structlog.configure(processors=[self._on_log], cache_logger_on_first_use=False)
        self.small = SmallWorld("orders", park_after_records=LIMIT)
        cluster = self.small.world.cluster
        cluster.logs[self.small.names.half, 0].entries = cast(list[Stored], _Halves())
        # The checker would keep all of them.
        cluster.on_finished = lambda _: None
        #: The highest number of half messages that were objects at the same time.
        self.most = 0
        add = OpenMessages.add_entry

        def counted(entries: OpenMessages, entry: HalfEntry) -> None:
            add(entries, entry)
            self.most = max(self.most, len(entries._objects))

        monkeypatch.setattr(OpenMessages, "add_entry", counted)
        self.process = self.small.start_owner()
        self.logged: list[str] = []

    def _on_log(self, _logger: object, _method: str, event: dict[str, object]) -> str:
        self.logged.append(str(event["event"]))
        raise structlog.DropEvent

    def decide(self, offset: int) -> None:
        self.small.decide(offset, f"{offset:032X}", COMMIT)

    def turns(self, most: int) -> Iterator[int]:
        """Run the worker in small steps; yield the number of each step."""
        for turn in range(most):
            take_turn(self.small.world, self.process, 1)
            yield turn
        pytest.fail(f"not done after {most} turns: {self.logged[-3:]}")

    def delivered(self) -> list[bytes | None]:
        return [record.value for record in self.small.visible("orders")]


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backlog]:
    made = Backlog(monkeypatch)
    yield made
    made.small.close()
    structlog.reset_defaults()


def test_a_take_over_serves_before_it_has_read_the_backlog(backlog: Backlog) -> None:
    for _ in backlog.turns(100):
        if backlog.process.owner.status.serving:
            break
    assert backlog.most <= LIMIT + HALF_BATCH
    # A decision about one of the first messages is applied before the rest is read.
    backlog.decide(3)
    for _ in backlog.turns(200):
        if backlog.delivered() == [b"3"]:
            break


def test_an_end_that_names_a_far_offset_parks_what_lies_between(backlog: Backlog) -> None:
    backlog.decide(UNREAD - 1)
    for _ in backlog.turns(10_000):
        if backlog.delivered():
            break
    assert backlog.delivered() == [b"%d" % (UNREAD - 1)]
    assert 0 < backlog.most <= LIMIT + HALF_BATCH


def test_all_of_the_backlog_becomes_known_and_little_of_it_objects(backlog: Backlog) -> None:
    for _ in backlog.turns(10_000):
        service = backlog.process.owner._service
        if service is not None and service.state.queue.read_position == UNREAD:
            break
    assert backlog.most <= LIMIT + HALF_BATCH
