"""Break the code once for each promise and show that a test named after the promise notices: `make broken`.

Each break is a replacement in a copy of the tree, in which the named tests must then fail. Prints a table; exit code 0
only when every break was noticed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MSG_IT = "tests/integration/test_transactional_msg.py::test_transactional_msg_it"


@dataclass(frozen=True)
class Break:
    """One replacement in a file, described in words, and the test that must notice it (arguments of pytest)."""

    promise: str
    what: str
    file: str
    old: str
    new: str
    test: str


BREAKS = (
    Break(
        "P1",
        "unknown is taken for a commit",
        "txbridge/core/states.py",
        "return Event.ROLLBACK if decision is Decision.ROLLBACK else Event.UNKNOWN",
        "return Event.ROLLBACK if decision is Decision.ROLLBACK else Event.COMMIT",
        MSG_IT,
    ),
    Break(
        "P2",
        "the first message of each part of a plan is named in OP but not delivered",
        "txbridge/worker/transaction/records.py",
        "in part.copies(partition, bodies):",
        "in [*part.copies(partition, bodies)][1:]:",
        MSG_IT,
    ),
    Break(
        "P3",
        "checkpoint does not pass the END that was applied",
        "txbridge/worker/turn/committer.py",
        "half=draft.watermark,\n            end=draft.next_end,",
        "half=last.half,\n            end=last.end,",
        "tests/integration/test_worker_crash.py::test_p3_exactly_once_when_killed_at[commit.committed@2]",
    ),
    Break(
        "P4",
        "a rollback is taken for a commit",
        "txbridge/core/states.py",
        "return Event.ROLLBACK if decision is Decision.ROLLBACK else Event.UNKNOWN",
        "return Event.COMMIT if decision is Decision.ROLLBACK else Event.UNKNOWN",
        MSG_IT,
    ),
    Break(
        "P5",
        "the last decision of a record wins",
        "txbridge/core/plan/draft.py",
        "for entry in entries:\n            reason =",
        "for entry in reversed(entries):\n            reason =",
        "tests/unit/core/test_decisions.py -k test_p5",
    ),
    Break(
        "P6",
        "a group with nobody alive is checked",
        "txbridge/core/plan/due_work.py",
        "one for one in groups if due_round.may_check(one) and due.has_checks_due(one, as_of)",
        "groups",
        "tests/unit/core/test_checks.py -k test_p6",
    ),
    Break(
        "P7",
        "the discard does not wait for the interval after the last check",
        "txbridge/core/timers.py",
        "return self._take_from(self._exhausted, now, limit)",
        "return self._take_from(self._exhausted, now + 1_000_000, limit)",
        "tests/unit/core/test_checks.py -k test_p7",
    ),
    Break(
        "P8",
        "a group with nobody alive ends the round of checks for all",
        "txbridge/core/plan/due_work.py",
        "one for one in groups if due_round.may_check(one) and due.has_checks_due(one, as_of)",
        "groups if all(map(due_round.may_check, groups)) else []",
        "tests/unit/core/test_checks.py -k test_p8",
    ),
    Break(
        "P12",
        "the last of several messages is left out",
        "txbridge/core/half_copies.py",
        "messages = half.framed\n",
        "messages = half.framed[:-1]\n",
        "tests/integration/test_several_messages.py -k test_p12_a_commit_delivers",
    ),
    Break(
        "P13",
        "a commit a moment before the time delivers at once",
        "txbridge/core/plan/draft.py",
        "if entry.deliver_at is not None and entry.deliver_at > self.due:",
        "if entry.deliver_at is not None and entry.deliver_at > self.due + 1_000_000:",
        "tests/unit/core/test_time_of_delivery.py -k test_p13",
    ),
    Break(
        "P14",
        "the messages of one END record are delivered by their birth, not by their decisions",
        "txbridge/core/plan/draft.py",
        "for entry in entries:\n            reason =",
        "for entry in sorted(entries, key=lambda one: one.half_offset):\n            reason =",
        "tests/unit/core/test_decisions.py -k test_p14",
    ),
)


def run(broken: Break) -> tuple[bool, str]:
    """Return whether the test noticed, and the line of its output that shows it."""
    with tempfile.TemporaryDirectory(prefix="txbridge-broken-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache"))
        file = copy / broken.file
        text = file.read_text()
        if text.count(broken.old) != 1:
            return False, f"{broken.file} holds {text.count(broken.old)} times: {broken.old}"
        file.write_text(text.replace(broken.old, broken.new))
        # The copy comes first on sys.path, for pytest and for the processes that the tests start.
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *broken.test.split()],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return result.returncode == 1 and bool(lines), lines[0] if lines else result.stdout.strip()[-300:]


def main() -> int:
    """Run all breaks, or those of the promises named as arguments."""
    wanted = sys.argv[1:]
    missed = 0
    for broken in BREAKS:
        if wanted and broken.promise not in wanted:
            continue
        started = time.monotonic()
        noticed, line = run(broken)
        missed += not noticed
        verdict = "noticed" if noticed else "NOT NOTICED"
        print(f"{broken.promise} {verdict} in {time.monotonic() - started:.0f} s: {broken.what}\n   {line}", flush=True)
    print(f"{missed} not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
