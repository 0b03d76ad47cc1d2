"""docs/architecture.md: the modules that one decision passes are those that hold it in a traced worker."""

from __future__ import annotations

import re
import sys
from types import FrameType

import pytest

from tests.simulator.simulation import Simulation
from tests.support.source import ROOT
from txbridge.core.decision_record import DecisionEvent, DecisionRecord
from txbridge.core.fresh_halves import FreshHalves, Run
from txbridge.core.plan.choice import EndChoice, Slice
from txbridge.core.plan.draft import Draft
from txbridge.worker.partitions import PartitionOwner
from txbridge.worker.transaction.records import Contents

PACKAGE = f"{ROOT}/txbridge/"
#: One decision on its way: the objects that hold it.
HOLDS = (DecisionEvent, DecisionRecord, FreshHalves, Run, Slice, EndChoice, Draft, Contents)
#: On the way as well: Faust is not part of the simulation, and some modules have only bytes and offsets of it.
BEYOND = {"worker/app.py", "worker/partitions.py", "kafka/partition_reader.py", "core/checkpoint.py"}
#: A schedule with fresh half messages that are decided together.
SEED = 5


def _traced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if (
            event == "return"
            and file.startswith(PACKAGE)
            and any(isinstance(one, HOLDS) for one in frame.f_locals.values())
        ):
            found.add(file.removeprefix(PACKAGE))

    run = PartitionOwner.run

    def run_traced(self: PartitionOwner) -> None:
        # Each process of the simulation is a greenlet, with a trace of its own.
        sys.setprofile(note)
        run(self)

    monkeypatch.setattr(PartitionOwner, "run", run_traced)
    assert Simulation(SEED).run().violation is None
    sys.setprofile(None)
    return found


def test_the_page_names_the_modules_that_a_decision_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("### One END")[1].split("### One half message")[0]
    table = set(re.findall(r"^\| `txbridge/(\S+)`", section, re.MULTILINE))
    named = set(re.findall(r"`(?:txbridge/)?(\S+\.py)`", section))
    traced = _traced(monkeypatch)
    assert traced <= named
    assert table - traced == BEYOND
