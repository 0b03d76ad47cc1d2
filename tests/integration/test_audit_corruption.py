"""Planted corruption on a real Kafka, a few thousand transactions of each seed; `make corruption` plants a million."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from txbridge_audit import run_audit, session

from tests.corruption.matrix import compare, table
from tests.corruption.writer import Writer
from txbridge.embedded import EmbeddedKafka

pytestmark = [
    # py4j closes its sockets to the JVM in finalisers.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster of our own: half messages of other namespaces would explain phantoms away."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with session.spark_session(None, lambda _: None, small=True) as own:
        yield own


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_finds_all_that_was_planted_and_nothing_else(kafka: EmbeddedKafka, spark: SparkSession, seed: int) -> None:
    writer = Writer(kafka.bootstrap_servers, f"seed{seed}", seed)
    writer.plant(transactions=3_000, each=20)
    report = run_audit(kafka.bootstrap_servers, namespace=writer.names.namespace, spark=spark)
    lines = compare(writer.truth, report)
    assert all(line.right for line in lines), "\n" + table(lines)
    violations = {"ALTERED", "CHECKED_AFTER_DECISION", "DUPLICATED", "EXPIRED", "LEAKED", "LOST", "PHANTOM"}
    violations |= {"PROGRESS_AHEAD", "STUCK", "WRONG_WINNER"}
    assert {line.kind for line in lines if line.planted >= 20} >= violations
