"""The check of the jar cache, on three small files instead of Kafka's."""

from __future__ import annotations

import pytest

from txbridge.embedded import datadir, jars
from txbridge.embedded.jars import Artifact
from txbridge.errors import EnvironmentProblemError, UsageError

# Contents and their SHA-256, computed with sha256sum.
CONTENTS = {
    "one-1.jar": (b"first", "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e"),
    "two-2.jar": (b"second", "16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4"),
    "three-3.jar": (b"third", "b1e99324505bd32da0e1f85dcf5e19a09db0481e8a15f62c41eb320304a8e927"),
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    small = [
        Artifact("org.example", name.split("-")[0], name[-5], len(content), sha256)
        for name, (content, sha256) in CONTENTS.items()
    ]
    monkeypatch.setattr(jars, "kafka_jars", lambda _: small)
    monkeypatch.setenv("TXBRIDGE_CACHE_DIR", str(tmp_path))
    cache = jars.JarCache()
    cache.folder.mkdir()
    for name, (content, _) in CONTENTS.items():
        (cache.folder / name).write_bytes(content)
    return cache


@pytest.mark.parametrize(
    ("version", "number", "some"),
    [
        ("4.3.1", 46, {"kafka_2.13-4.3.1.jar", "kafka-clients-4.3.1.jar", "log4j-slf4j-impl-2.25.4.jar"}),
        ("4.2.2", 46, {"kafka_2.13-4.2.2.jar", "kafka-clients-4.2.2.jar", "log4j-slf4j-impl-2.25.4.jar"}),
        ("4.1.2", 46, {"kafka_2.13-4.1.2.jar", "kafka-clients-4.1.2.jar", "log4j-slf4j-impl-2.25.4.jar"}),
        ("4.0.2", 44, {"kafka_2.13-4.0.2.jar", "kafka-clients-4.0.2.jar", "log4j-slf4j-impl-2.25.4.jar"}),
        ("3.9.2", 58, {"kafka_2.13-3.9.2.jar", "zookeeper-3.8.4.jar", "log4j-slf4j-impl-2.25.4.jar"}),
    ],
)
def test_locks_are_complete(version, number, some):
    locked = jars.kafka_jars(version)
    names = [one.file_name for one in locked]
    assert len(set(names)) == len(names) == number
    assert some < set(names)
    assert all(len(one.sha256) == 64 and one.size > 0 and one.organisation for one in locked)


def test_releases_and_their_locked_versions():
    assert jars.locked_version("4.3") == jars.locked_version("4.3.1") == jars.KAFKA_VERSION == "4.3.1"
    assert jars.locked_version("3.9") == "3.9.2"
    with pytest.raises(
        UsageError, match=r"Kafka 2\.8 is not among the versions that can be started: 3\.9 \(3\.9\.2\), "
    ):
        jars.locked_version("2.8")


def test_class_path_is_in_the_order_of_the_lock(cache):
    folder = cache.folder
    assert cache.class_path == f"{folder}/one-1.jar:{folder}/two-2.jar:{folder}/three-3.jar"


def test_a_jar_that_is_missing_or_truncated(cache):
    assert cache.find_problem() is None
    (cache.folder / "three-3.jar").write_bytes(b"thi")
    assert cache.find_problem() == "three-3.jar has 3 bytes instead of 5"
    (cache.folder / "two-2.jar").unlink()
    assert cache.find_problem() == "two-2.jar is missing (No such file or directory)"


def test_no_space_to_fetch_and_nothing_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("txbridge.embedded.jars.shutil.disk_usage", lambda _: type("Usage", (), {"free": 40 * 2**20}))
    monkeypatch.setenv("TXBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(EnvironmentProblemError, match=r"fetching Kafka 4\.3\.1 needs 50 MB, but only 40 MB are free"):
        jars.JarCache().ensure_jars()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["kafka-4.3.1.lock"]


def test_cache_folder_that_can_not_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TXBRIDGE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(EnvironmentProblemError, match=r"cache folder .* cannot be written .*TXBRIDGE_CACHE_DIR"):
        jars.JarCache().ensure_jars()


def test_cluster_ids():
    ids = {datadir.new_cluster_id() for _ in range(300)}
    assert len(ids) == 300
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)


def test_cluster_id_is_read_from_the_folder(tmp_path):
    folder = datadir.DataDir(tmp_path)
    assert folder.cluster_id() is None
    folder.kafka.mkdir()
    meta = folder.kafka / "meta.properties"
    meta.write_text("#\n#Fri Nov 21\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\nversion=1\nnode.id=1\n")
    assert folder.cluster_id() == "MkU3OEVBNTcwNTJENDM2Qk"
    meta.write_text("version=1\n")
    with pytest.raises(EnvironmentProblemError, match=r"meta\.properties names no cluster"):
        folder.cluster_id()


def test_data_folder_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblemError) as caught:
        datadir.DataDir(tmp_path / "file").make_folders()
    assert str(caught.value) == (
        f"the data folder {tmp_path / 'file'} cannot be written (Not a directory): "
        "correct its rights, or use another one (--data-dir, in Python data_dir=...)"
    )
