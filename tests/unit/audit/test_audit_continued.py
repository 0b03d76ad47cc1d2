"""Continued audits: the parts that need no Kafka."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from txbridge_audit.audit import follow
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import TopicPartition

from txbridge.core.names import Names

NAMES = Names("big")


def test_a_follower_refuses_a_namespace_before_kafka_is_asked(tmp_path: Path) -> None:
    """There is no Kafka here."""
    with pytest.raises(CouldNotAuditError, match=r"'a b' cannot be a namespace: .* check --namespace"):
        follow("127.0.0.1:1", str(tmp_path), stop=threading.Event(), namespace="a b")


def test_quiet_cluster_has_no_news() -> None:
    half, check, a, b = (NAMES.half, 0), (NAMES.check("billing"), 0), ("orders", 0), ("orders", 1)
    there = {NAMES.half: 1, "orders": 2, "somebody's": 1}
    ends = {half: 5, a: 7, b: 0, check: 1}
    known = {half: 5, a: 7, b: 0}
    asked: list[str] = []

    def partition_counts() -> dict[str, int]:
        asked.append("metadata")
        return there

    def has_news(positions: dict[TopicPartition, int]) -> bool:
        known = [(*key, offset) for key, offset in positions.items()]
        facts: dict[str, Any] = {"progress": {"namespace": "big", "positions": known}}
        cluster = SimpleNamespace(
            partition_counts=partition_counts,
            forget_leaders=lambda: None,
            high_watermarks=lambda keys: {key: ends[key] for key in keys},
        )
        source = SimpleNamespace(cluster=cluster, names=NAMES, partitions={NAMES.half: [half]})
        state = SimpleNamespace(read_fact=lambda name, default=None: facts.get(name, default))
        return LocalSteps(cast(AuditedTopics, source), cast(StateStore, state)).has_news()

    assert not has_news(known)
    assert asked == ["metadata"], "the metadata of all topics is requested once"
    assert has_news({**known, a: 6}), "a record was written"
    assert has_news({a: 7, b: 0}), "nothing was read of HALF yet"
    assert has_news({**known, ("gone", 0): 3}), "a topic was deleted"
    there[NAMES.check("billing")] = 1
    assert has_news(known), "there is a new check topic"
    assert not has_news({**known, check: 1})
