"""The archive of classes, which is tried once and never needed."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from txbridge.embedded import cds
from txbridge.embedded.java import Java


@pytest.fixture
def archive(tmp_path):
    return cds.archive_path(tmp_path, Java(Path("/jvm/bin/java"), 17, "17.0.15", "OpenJDK 17.0.15+6"))


def never(path):
    pytest.fail("trained again")


def test_one_archive_per_build_of_java(tmp_path, archive):
    assert archive.parent == tmp_path / "cds"
    assert archive.name.startswith("java-17.0.15-")
    other_build = Java(Path("/jvm/bin/java"), 17, "17.0.15", "OpenJDK 17.0.15+7")
    assert cds.archive_path(tmp_path, other_build) != archive


def test_made_once(archive):
    assert cds.ensure_archive(archive, lambda path: path.write_bytes(b"classes"))
    assert archive.read_bytes() == b"classes"
    assert cds.ensure_archive(archive, never)


@pytest.mark.parametrize("fail", [lambda path: 1 / 0, lambda path: None])
def test_failure_is_remembered_and_leaves_nothing_half_made(archive, fail):
    assert not cds.ensure_archive(archive, fail)
    assert not cds.ensure_archive(archive, never)
    assert sorted(path.suffix for path in archive.parent.iterdir()) == [".failed", ".lock"]


def test_an_interrupted_attempt_is_repeated_and_cleared_away(archive):
    def interrupted(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cds.ensure_archive(archive, interrupted)
    archive.with_suffix(".99999.new").write_bytes(b"of a process that was killed")
    assert cds.ensure_archive(archive, lambda path: path.write_bytes(b"classes"))
    assert sorted(path.suffix for path in archive.parent.iterdir()) == [".jsa", ".lock"]


def test_another_process_that_makes_it_is_not_waited_for(archive):
    archive.parent.mkdir()
    with archive.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not cds.ensure_archive(archive, never)
    assert cds.ensure_archive(archive, lambda path: path.write_bytes(b"classes"))


def test_given_up_after_a_crash(archive):
    cds.ensure_archive(archive, lambda path: path.write_bytes(b"classes"))
    cds.give_up(archive, "the JVM crashed")
    assert not archive.exists()
    assert not cds.ensure_archive(archive, never)


def test_slim_builds_and_openj9_have_none(tmp_path):
    java = Java(tmp_path / "bin" / "java", 17, "17.0.15", "OpenJDK 64-Bit Server VM")
    assert not cds.supports_archives(java)
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "classes.jsa").write_bytes(b"")
    assert cds.supports_archives(java)
    assert not cds.supports_archives(Java(java.executable, 17, "17.0.15", "Eclipse OpenJ9 VM"))
