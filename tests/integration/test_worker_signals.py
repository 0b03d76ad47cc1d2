"""A worker that is told to end while it waits for Kafka."""

from __future__ import annotations

from pathlib import Path

from tests.harness import WorkerProcess


def test_sigterm_ends_a_worker_that_waits_for_kafka_and_it_is_no_failure(tmp_path: Path):
    """It has a handler of its own for that, without which process 1 of a container would not hear the signal."""
    worker = WorkerProcess(["--bootstrap-servers=127.0.0.1:1", "--log-format=json"], tmp_path / "log", {})
    worker.wait_logged("kafka_unreachable", 60)
    assert worker.stop() == 0
    assert worker.events("kafka_unreachable")[0]["level"] == "warning"
