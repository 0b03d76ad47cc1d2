"""Evidence of a cell with violations: logs, and the contents of the internal topics."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

from tests.support.harness import Bridge


def keep(cell: str, bridge: Bridge, folder: Path, files: Path) -> Path:
    """Copy the evidence below `folder` and return its path. `files` are those of the clients."""
    where = folder / re.sub(r"[^a-z0-9]+", "-", cell.lower()).strip("-")
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for number, worker in enumerate(bridge.workers, 1):
        shutil.copy(worker.log_file, where / f"worker-{number}.log")
    for file in (*files.glob("*.told"), *files.glob("*.log")):
        shutil.copy(file, where)
    names = bridge.names
    for topic in (names.half, names.end, names.op, names.discard):
        with gzip.open(where / f"{topic.removeprefix(bridge.namespace + '.')}.jsonl.gz", "wt") as lines:
            for message in bridge.read(topic):
                lines.write(json.dumps(_record(message)) + "\n")
    return where


def _record(message: Any) -> dict[str, object]:
    value = message.value()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "time": message.timestamp()[1],
        "epoch": message.leader_epoch(),
        "headers": {
            name: None if text is None else text.decode("utf-8", "replace") for name, text in message.headers()
        },
        "value": None if value is None else value.decode("utf-8", "replace"),
    }
