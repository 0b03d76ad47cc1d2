"""Continued audits: the parts that need neither Spark nor Kafka."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from txbridge_audit.audit import run_audit
from txbridge_audit.engines.spark.incremental.state import AuditState
from txbridge_audit.engines.spark.incremental.steps import Increments
from txbridge_audit.engines.spark.incremental.store import Store
from txbridge_audit.engines.spark.judge.summary import FINDINGS_LISTED, first_of_each
from txbridge_audit.engines.spark.read.kafka_source import AuditSource
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.following import follow

from txbridge.core.names import Names

NAMES = Names("big")
INTERNAL = (NAMES.half, NAMES.end, NAMES.op, NAMES.offset, NAMES.discard)
#: Log starts and ends of HALF: 900,000 and 500,000 offsets are there.
STARTS = {(NAMES.half, 0): 100_000, (NAMES.half, 1): 0}
ENDS = {(NAMES.half, 0): 1_000_000, (NAMES.half, 1): 500_000}


class SparkStartedError(Exception):
    """Ends an audit where Spark would start."""


@pytest.mark.parametrize(
    ("read", "continued", "small"),
    [
        # 1,000 and 2,000 offsets are left.
        ({0: 999_000, 1: 498_000}, True, True),
        # 900,000 are left of the first partition, because retention has removed the others.
        ({0: 50_000, 1: 500_000}, True, False),
        ({}, True, False),
        # An audit that is not continued reads all of HALF.
        ({0: 999_000, 1: 498_000}, False, False),
    ],
)
def test_a_short_audit_of_a_large_half_gets_a_spark_for_short_audits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: dict[int, int], continued: bool, small: bool
) -> None:
    folder = tmp_path / "_state"
    folder.mkdir()
    positions = {(NAMES.half, partition): offset for partition, offset in read.items()}
    (folder / "000000009.json").write_text(AuditState("ab12", "big", step=9).to_json())
    (folder / "000000010.json").write_text(AuditState("ab12", "big", step=10, positions=positions).to_json())
    # The JVM's Hadoop writes such a file beside each one.
    (folder / ".000000010.json.crc").touch()
    started: list[bool] = []

    def spark_session(*_: object, small: bool, **__: object) -> None:
        started.append(small)
        raise SparkStartedError

    cluster = SimpleNamespace(
        partition_counts=lambda: dict.fromkeys(INTERNAL, 2),
        forbidden_topics=lambda _: [],
        log_starts=lambda keys: {key: STARTS[key] for key in keys},
        high_watermarks=lambda keys: {key: ENDS[key] for key in keys},
    )
    monkeypatch.setattr("txbridge_audit.audit.AuditedCluster", lambda _: cluster)
    monkeypatch.setattr("txbridge_audit.engines.spark.run.spark_session", spark_session)
    with pytest.raises(SparkStartedError):
        run_audit("127.0.0.1:1", namespace="big", ledger_path=f"file://{tmp_path}", continued=continued)
    assert started == [small]


def test_a_follower_refuses_a_namespace_before_kafka_is_asked(tmp_path: Path) -> None:
    """There is no Kafka here."""
    with pytest.raises(CouldNotAuditError, match=r"'a b' cannot be a namespace: .* check --namespace"):
        follow("127.0.0.1:1", str(tmp_path), stop=threading.Event(), namespace="a b")


def test_a_look_for_news_requests_the_metadata_of_all_topics_once() -> None:
    asked: list[str] = []
    half, check = (NAMES.half, 0), (NAMES.check("billing"), 0)

    def partition_counts() -> dict[str, int]:
        asked.append("metadata")
        return {NAMES.half: 1, NAMES.check("billing"): 1}

    cluster = SimpleNamespace(
        partition_counts=partition_counts,
        forget_leaders=lambda: None,
        high_watermarks=lambda keys: dict.fromkeys(keys, 5),
    )
    source = SimpleNamespace(cluster=cluster, names=NAMES, partitions={NAMES.half: [half]})
    state = AuditState("ab12", "big", step=1, positions={half: 5, check: 5})
    assert not Increments(cast(AuditSource, source), "ledger", cast(Store, None), state).has_news()
    assert asked == ["metadata"]


def test_the_first_of_each_kind_are_listed_in_the_order_in_which_the_kinds_occur() -> None:
    many = [("LATE", number) for number in range(FINDINGS_LISTED + 1)]
    found = first_of_each([("REPEAT", 7), *many, ("REPEAT", 8)], lambda one: one[0])
    assert found == [("REPEAT", 7), ("REPEAT", 8), *many[:1_000]]
