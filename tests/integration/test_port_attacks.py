"""Attacks on the ports of every program: a worker still delivers, and every probe is answered."""

from __future__ import annotations

import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.port_attacks import ATTACKS, under
from tests.support.programs import all_programs

#: Descriptors of each program: the limit that a system gives by default.
DESCRIPTORS = 1_024


@pytest.mark.parametrize(
    "attack", [name if name == "silent" else pytest.param(name, marks=pytest.mark.long) for name in ATTACKS]
)
def test_p8_commits_are_delivered_and_probes_answered_during(bridge: Bridge, tmp_path: Path, attack: str) -> None:
    topic = bridge.create_topic("real")
    with all_programs(bridge, tmp_path) as programs, ExitStack() as attacks:
        programs.pop("client")
        for program in programs.values():
            eventually(program.is_ready, 60)
            resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        for program in programs.values():
            attacks.enter_context(under(attack, program.port))
        for number in range(3):
            bridge.decide(bridge.prepare(topic, b"%d" % number), COMMIT)
            bridge.wait_visible(topic, [b"%d" % one for one in range(number + 1)], 20)
            for name, program in programs.items():
                assert (name, program.status("/livez")) == (name, 200)
                assert program.is_ready(), name
                # Some dozens are the program's own.
                assert len(list(Path(f"/proc/{program.pid}/fd").iterdir())) < 300, name
