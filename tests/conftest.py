"""One real Kafka for the whole run; every test has a namespace of its own, so tests do not see each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import Bridge
from txbridge.embedded import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """A started Kafka that tests share. A test that stops or pauses a broker takes `own_kafka`."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def own_kafka() -> Iterator[EmbeddedKafka]:
    """A started Kafka for one test alone."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def bridge(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Bridge]:
    """Topics of a fresh namespace with two partitions, and ways to start workers, write and read."""
    with Bridge(kafka.bootstrap_servers, request.node.name) as made:
        yield made
