"""`python -m tests.simulator --seeds N --first-seed S`: runs of seeds, with exit code 1 on a violation."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulator.runner import Totals, run_range
from tests.simulator.simulation import Result, Simulation
from tests.simulator.sometimes import EXPECTED, not_reached

#: Seconds between two lines of progress.
_PROGRESS_EVERY_S = 5.0


def main() -> int:
    """0: no violation; 1: a promise was broken; 2: wrong arguments (argparse)."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=_positive, default=1_000, help="how many seeds to run")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=_positive, default=200, help="choices of the scheduler before faults stop")
    parser.add_argument("--processes", type=_positive, default=None, help="default: one for each processor")
    parser.add_argument("--verbose", action="store_true", help="print the trace of every seed; one process")
    arguments = parser.parse_args()
    if arguments.verbose:
        return _verbose(arguments.first_seed, arguments.seeds, arguments.steps)
    last = [time.monotonic()]

    def progress(totals: Totals) -> None:
        if time.monotonic() - last[0] > _PROGRESS_EVERY_S:
            last[0] = time.monotonic()
            print(f"{totals.seeds} of {arguments.seeds} seeds in {totals.seconds:.0f} s", flush=True)

    totals = run_range(
        arguments.first_seed, arguments.seeds, arguments.steps, processes=arguments.processes, on_progress=progress
    )
    return report(totals, arguments.steps)


def report(totals: Totals, steps: int) -> int:
    """Print the results and return the exit code."""
    _report(totals)
    for result in totals.violations:
        _explain(result, steps)
    return 1 if totals.violations else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _verbose(first_seed: int, seeds: int, steps: int) -> int:
    violations = 0
    for seed in range(first_seed, first_seed + seeds):
        simulation = Simulation(seed, steps, keep_trace=True)
        result = simulation.run()
        print(f"--- seed {seed} ---")
        print("\n".join(simulation.world.lines or []))
        print(f"--- seed {seed}: {result.violation or 'no violation'}, trace {result.digest}")
        violations += result.violation is not None
    return 1 if violations else 0


def _report(totals: Totals) -> None:
    width = max(len(name) for name in EXPECTED)
    print("sometimes:")
    for name in sorted({*EXPECTED, *totals.counters}):
        print(f"  {name:<{width}} {totals.counters.get(name, 0):>9}")
    rate = totals.seeds / totals.seconds if totals.seconds else 0.0
    print(
        f"{totals.seeds} seeds in {totals.seconds:.1f} s ({rate:.1f} a second, {totals.cpu_seconds:.1f} s of processor "
        f"time), {totals.io_calls} I/O calls of owners, {len(totals.violations)} violations"
    )
    missing = not_reached(totals.counters)
    if missing:
        print(f"not reached: {', '.join(missing)}")


def _explain(result: Result, steps: int) -> None:
    print(f"\nseed {result.seed} VIOLATION {result.violation}")
    print("the end of its trace:")
    print("\n".join(f"  {line}" for line in result.tail[-25:]))
    print("replay it with:")
    print(f"  python -m tests.simulator --first-seed {result.seed} --seeds 1 --steps {steps} --verbose")


if __name__ == "__main__":
    sys.exit(main())
