"""Runs of a range of seeds on several processes, and the sum of their results."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.simulator.simulation import Result, Simulation

#: Number of seeds that a process runs at a time: about one second.
_CHUNK = 50


@dataclass(slots=True)
class Totals:
    """Results of a range of seeds."""

    seeds: int = 0
    seconds: float = 0.0
    #: Processor time of all processes.
    cpu_seconds: float = 0.0
    io_calls: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    violations: list[Result] = field(default_factory=list)
    #: Digest of each chunk, by its first seed. Equal ranges have equal ones.
    digests: dict[int, str] = field(default_factory=dict)


def run_chunk(first_seed: int, seeds: int, steps: int) -> Totals:
    """Run these seeds in this process, one after the other."""
    totals, digest, started = Totals(), hashlib.sha256(), time.process_time()
    for seed in range(first_seed, first_seed + seeds):
        result = Simulation(seed, steps).run()
        digest.update(result.digest.encode())
        totals.seeds += 1
        totals.io_calls += result.io_calls
        totals.counters.update(result.counters)
        if result.violation is not None:
            totals.violations.append(result)
    totals.cpu_seconds = time.process_time() - started
    totals.digests[first_seed] = digest.hexdigest()
    return totals


def run_range(
    first_seed: int,
    seeds: int,
    steps: int = 200,
    *,
    processes: int | None = None,
    on_progress: Callable[[Totals], None] = lambda _: None,
) -> Totals:
    """Run a range of seeds. After a violation no more chunks are begun."""
    totals, started = Totals(), time.monotonic()
    behind = first_seed + seeds
    chunks = ((start, min(_CHUNK, behind - start)) for start in range(first_seed, behind, _CHUNK))
    workers = processes or os.cpu_count() or 1
    # Processes are not forked: the parent may have threads, and other log settings.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Totals]] = set()
        while True:
            while len(running) < 2 * workers and not totals.violations and (chunk := next(chunks, None)):
                running.add(pool.submit(run_chunk, *chunk, steps))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                _add(totals, future.result())
                totals.seconds = time.monotonic() - started
                on_progress(totals)
    totals.violations.sort(key=lambda result: result.seed)
    return totals


def _add(totals: Totals, more: Totals) -> None:
    totals.seeds += more.seeds
    totals.cpu_seconds += more.cpu_seconds
    totals.io_calls += more.io_calls
    totals.counters.update(more.counters)
    totals.violations.extend(more.violations)
    totals.digests.update(more.digests)
