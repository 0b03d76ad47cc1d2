"""Fixtures for the tests of the images in containers (`make test-containers`).

`make test` leaves these tests out, because they need Docker.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from txbridge.errors import EnvironmentProblemError
from txbridge.testing.containers import WORKER_IMAGE, ContainerBackend


@pytest.fixture(scope="session")
def backend() -> Iterator[ContainerBackend]:
    """Kafka and workers in containers. Without Docker no test here proves anything, so the run ends."""
    backend = ContainerBackend(WORKER_IMAGE)
    try:
        backend.start()
    except EnvironmentProblemError as error:
        pytest.exit(f"NO CONTAINER WAS TESTED: {error}", returncode=3)
    yield backend
    backend.stop()
