"""The folder of a ledger: nobody's files are deleted, what is incomplete is none, and an audit continues from it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyarrow import dataset  # type: ignore[import-untyped]
from txbridge_audit.audit import follow
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.ledger.place import claim_folder, prepare_folder, write_summary
from txbridge_audit.ledger.rows import batches_of, phantom_row, write_batches
from txbridge_audit.protocol.mentions import CopyMention

from txbridge.core.names import Names


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("accounts.csv", "is not empty, and no ledger there is complete: give --ledger a new folder"),
        # An audit was killed.
        ("day=2026-11-23/part-00000-0.parquet", "or delete this one if an audit that was killed has left it"),
        ("_audit/.report.json", "or delete this one if an audit that was killed has left it"),
        ("_audit/report.json", "there is a ledger in .* already"),
        # As Spark writes it.
        ("_audit/part-00000.txt", "there is a ledger in .* already"),
        ("_state/audit.sqlite", "there is a ledger in .* already"),
    ],
)
def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path, file: str, told: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("kept")
    with pytest.raises(CouldNotAuditError, match=told):
        prepare_folder(tmp_path)
    assert (tmp_path / file).read_text() == "kept"


def test_of_two_audits_that_begin_at_once_one_has_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "ledger"
    for _ in range(2):
        prepare_folder(folder)
    with claim_folder(folder):
        (folder / "day=2026-11-23").mkdir()
        with pytest.raises(CouldNotAuditError, match="is not empty"), claim_folder(folder):
            raise AssertionError
        write_summary("{}", folder)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "_audit" / "report.json"]
    assert (folder / "day=2026-11-23").is_dir()


def test_an_audit_that_fails_deletes_its_own_files_alone(tmp_path: Path) -> None:
    prepare_folder(tmp_path)

    def audit() -> None:
        with claim_folder(tmp_path):
            write_summary("{}", tmp_path)
            (tmp_path / "day=2026-11-23").mkdir()
            (tmp_path / "somebody's").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit()
    assert [path.name for path in tmp_path.iterdir()] == ["somebody's"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "ledger"):
        with pytest.raises(CouldNotAuditError, match=r"ledger in .*file.* cannot be kept there .*: check the folder"):
            prepare_folder(folder)
    with pytest.raises(CouldNotAuditError, match="cannot be kept there"):
        write_summary("{}", tmp_path / "file")


def test_topics_named_by_numbers_keep_their_names(tmp_path: Path) -> None:
    """Readers guess the types of partition columns from the names of the folders."""
    copies = (CopyMention(0, 7, at=9, topic=topic, place=0, id="F" * 32, content=0) for topic in ("007", "7"))
    write_batches(batches_of(map(phantom_row, copies)), tmp_path)
    [file] = tmp_path.rglob("*.parquet")
    assert "007" not in str(file.relative_to(tmp_path))
    assert dataset.dataset(file).to_table().to_pydict()["real_topic"] == ["007", "7"]


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
