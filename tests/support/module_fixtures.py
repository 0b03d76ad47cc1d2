"""Fixtures that the tests of one file share: `kafka = module_kafka()` in a file has the place of the shared one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.harness import Bridge
from txbridge.embedded import EmbeddedKafka

#: An idle Kafka writes a record each 500 ms that says so, at more than half of its processor time.
IDLE = {"metadata.max.idle.interval.ms": "60000"}


def module_kafka(**options: Any) -> Any:
    """The fixture of a Kafka with these options."""

    @pytest.fixture(scope="module")
    def kafka() -> Iterator[EmbeddedKafka]:
        with EmbeddedKafka(**{**options, "config": IDLE | options.get("config", {})}) as broker:
            yield broker

    return kafka


def module_bridge(namespace: str, **options: Any) -> Any:
    """The fixture of a namespace with a worker of these options. The tests use different topics and groups."""

    @pytest.fixture(scope="module")
    def bridge(kafka: EmbeddedKafka) -> Iterator[Bridge]:
        with Bridge(kafka.bootstrap_servers, namespace) as made:
            made.worker(**options)
            yield made

    return bridge
