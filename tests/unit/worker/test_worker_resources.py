"""A worker's file descriptors, which give room for partitions, and its memory."""

from __future__ import annotations

import ctypes
import resource
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from txbridge.doctor.run import _descriptors
from txbridge.kafka.descriptors import capacity, needed
from txbridge.worker import startup
from txbridge.worker.partition_context import NoRoomError, PartitionSlots


@pytest.mark.parametrize(
    ("partitions", "brokers", "most"), [(4, 1, 224), (32, 1, 1_120), (4, 3, 344), (16, 3, 1_016), (32, 3, 1_912)]
)
def test_the_need_of_a_worker_that_takes_over_all(partitions: int, brokers: int, most: int) -> None:
    assert needed(partitions, brokers) == most
    assert capacity(most, brokers) == partitions
    assert capacity(most - 1, brokers) == partitions - 1
    assert capacity(0, brokers) == 0


def test_there_is_room_again_when_a_partition_is_given_up() -> None:
    slots = PartitionSlots(1, "too few")
    for _ in range(2):
        with slots.one_slot(), pytest.raises(NoRoomError, match="too few"), slots.one_slot():
            pass
    with pytest.raises(KeyError), slots.one_slot():
        raise KeyError
    with slots.one_slot():
        pass


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [(256, 4_096, 1_120), (256, resource.RLIM_INFINITY, 1_120), (256, 512, 512), (2_000, 4_096, None)],
)
def test_the_soft_limit_is_raised_to_the_need(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, limit: int | None
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(startup.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(startup.resource, "setrlimit", lambda _, limits: calls.append(limits))
    with capture_logs() as logs:
        slots = startup.slots_for(32, 1)
    assert calls == ([] if limit is None else [(limit, hard)])
    assert [line["event"] for line in logs] == (["few_file_descriptors"] if limit == 512 else [])
    if limit == 512:
        assert "enough for 13 of 32 partitions" in logs[0]["note"]
        with ExitStack() as served:
            for _ in range(13):
                served.enter_context(slots.one_slot())
            with pytest.raises(NoRoomError, match="to 1120, or start more workers"):
                served.enter_context(slots.one_slot())


def test_the_doctor_tells_the_need_when_it_is_above_the_usual_limit() -> None:
    few = SimpleNamespace(partitions=16, brokers={1: "a", 2: "b", 3: "c"})
    assert list(_descriptors(few)) == []  # type: ignore[arg-type]
    many = SimpleNamespace(partitions=32, brokers={1: "a", 2: "b", 3: "c"})
    [finding] = _descriptors(many)  # type: ignore[arg-type]
    assert finding.text == (
        "a worker that takes over all 32 partitions may have 1912 file descriptors open (with 3 brokers)"
    )


def test_a_c_library_without_these_functions_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    startup.return_freed_memory()
    assert "txbridge-malloc" not in {thread.name for thread in threading.enumerate()}
