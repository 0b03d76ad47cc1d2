"""The process that reads topics for the status page: it ends in time, and with its worker."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from txbridge.config.worker import WorkerSettings
from txbridge.errors import EnvironmentProblemError
from txbridge.worker.http.topic_reading import read_topics


@pytest.fixture
def settings() -> Iterator[WorkerSettings]:
    """A Kafka that accepts connections and never answers."""
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        yield WorkerSettings(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}")


def test_one_that_takes_too_long_is_ended(settings: WorkerSettings) -> None:
    with pytest.raises(EnvironmentProblemError, match="took longer than"):
        read_topics(settings, 0.5, of="0:1")


@pytest.mark.long
def test_the_reason_for_which_it_can_not_read_is_its_answer(settings: WorkerSettings) -> None:
    with pytest.raises(EnvironmentProblemError, match="cannot be reached"):
        read_topics(settings, 120, of="0:1")


def test_it_ends_when_its_worker_has_ended(settings: WorkerSettings) -> None:
    command = [sys.executable, "-m", "txbridge.worker.http.topic_reader"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"settings": settings.model_dump(mode="json")}).encode() + b"\n")
        # As when the worker is killed.
        process.stdin.close()
        assert process.wait(120) == 1
