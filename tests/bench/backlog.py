"""Cost of a million unread half messages for a worker that starts: time until a decision is visible, and memory."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from tests.bench.feed import PATIENCE_S, EndOfTopic, Feed, memory, say
from tests.bench.pending import LastCheckpoint
from tests.support.harness import Bridge, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.testing.workers import WorkerProcess

_MIB = 1024 * 1024
#: Longer than the bench: nothing is due for a check.
_NEVER = 3_600_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unread", type=int, default=1_000_000, help="half messages (default 1,000,000)")
    parser.add_argument("--size", type=int, default=200, help="bytes of each (default 200)")
    parser.add_argument("--park-after-records", type=int, default=10_000, help="of the worker (default 10,000)")
    parser.add_argument("--payload-memory", type=int, default=16 * _MIB, help="bytes, of the worker (default 16 MiB)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    with (
        EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka,
        Bridge(kafka.bootstrap_servers, "bench backlog", partitions=1) as bridge,
    ):
        return _measure(bridge, options)


def _measure(bridge: Bridge, options: argparse.Namespace) -> dict[str, Any]:
    topic, feed = bridge.create_topic("real", partitions=1), Feed(bridge)
    settings = {
        "payload_memory": options.payload_memory,
        "park_after_records": options.park_after_records,
        "transaction_timeout": _NEVER,
        "session_timeout": 6_000,
    }
    worker = bridge.worker(**settings)
    fresh = memory(worker)
    worker.stop()
    say(f"preparing {options.unread:,} half messages while no worker runs")
    prepared = feed.prepare(topic, options.unread, options.size, b"unread")
    # One of the first half messages, which has to be found again at once, and the last, for which all of HALF is read.
    feed.commit([prepared[0]])
    seen, since = EndOfTopic(bridge.bootstrap_servers, topic), time.monotonic()
    worker = bridge.worker(**settings)
    served_s = time.monotonic() - since
    seen.wait_for(1)
    first_s, serving = time.monotonic() - since, memory(worker)
    seen, asked = EndOfTopic(bridge.bootstrap_servers, topic), time.monotonic()
    feed.commit([prepared[-1]])
    seen.wait_for(1)
    last_s = time.monotonic() - asked
    last = LastCheckpoint(bridge.bootstrap_servers, bridge.names.offset, bridge.names.checkpoint_key(0))
    eventually(lambda: last.half() >= options.unread, PATIENCE_S, "not everything was parked")
    last.close()
    read_s = time.monotonic() - since
    return {
        "unread": options.unread,
        "bytes_each": options.size,
        "worker_mib": {
            "fresh": fresh // _MIB,
            "when it serves": serving // _MIB,
            "most": _most_memory(worker) // _MIB,
            "when all are parked": memory(worker) // _MIB,
        },
        "durations_s": {
            "from the start of the process until it serves": round(served_s, 1),
            "until the commit of the first is visible": round(first_s, 1),
            "from the commit of the last until it is visible": round(last_s, 1),
            "until all are read and parked": round(read_s, 1),
        },
    }


def _most_memory(worker: WorkerProcess) -> int:
    """Peak resident memory of the worker's process (bytes)."""
    for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the worker is gone")
