"""The environment of a measurement: the machine, and the versions of all components."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.peer.jars import ROCKETMQ_VERSION
from tools.optimised import is_optimised
from txbridge.embedded import KAFKA_VERSION
from txbridge.embedded.java import find_java
from txbridge.errors import EnvironmentProblemError

_PACKAGES = ("txbridge", "confluent-kafka", "faust-streaming", "aiokafka", "pyspark")


def environment() -> dict[str, Any]:
    """The machine and the versions. A missing one is None."""
    return {
        "environment": {
            "python": platform.python_version(),
            "python_is_optimised": is_optimised(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "cpu": _field(Path("/proc/cpuinfo"), "model name"),
            "memory": _field(Path("/proc/meminfo"), "MemTotal"),
            "kernel": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "kafka": KAFKA_VERSION,
            "rocketmq": ROCKETMQ_VERSION,
            "librdkafka": confluent_kafka.libversion()[0],
            "java": _java(),
            "commit": _commit(),
            **{name: _package(name) for name in _PACKAGES},
        },
    }


def load() -> list[float]:
    """Load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _field(path: Path, name: str) -> str | None:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return None


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _java() -> str | None:
    try:
        return find_java().version
    except EnvironmentProblemError:
        return None


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        # Not a git checkout.
        return None
    return done.stdout.strip()
