from __future__ import annotations

from pathlib import Path

import pytest

from txbridge.embedded import config, jars
from txbridge.errors import UsageError


def test_rendering_is_what_java_reads_back():
    assert config.render_properties(
        {"log.dirs": "/data/a b", "x y": " lead", "w": r"C:\k", "u": "ä€😀", "n": "1\n2"}
    ) == ("log.dirs=/data/a b\nx\\ y=\\ lead\nw=C:\\\\k\nu=\\u00e4\\u20ac\\ud83d\\ude00\nn=1\\n2\n")


def test_the_node_is_on_loopback_and_overrides_win():
    properties = config.broker_properties(19092, 19093, Path("/d/kafka"), {"min.insync.replicas": "2"})
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:19092"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:19093"
    assert properties["log.dirs"] == "/d/kafka"
    # Neither a stall nor a shutdown leaves partitions without a leader (see embedded/fencing.py).
    assert properties["broker.session.timeout.ms"] == "2147483647"
    assert properties["controlled.shutdown.enable"] == "false"
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["min.insync.replicas"] == "2"


def test_a_controller_that_ends_the_former_session_has_no_broker_in_it():
    properties = config.fencing_properties(19093, Path("/d/kafka"), {"log.retention.ms": "5"})
    assert properties["process.roles"] == "controller"
    assert properties["listeners"] == "CONTROLLER://127.0.0.1:19093"
    assert properties["broker.session.timeout.ms"] == "100"
    assert properties["log.dirs"] == "/d/kafka"
    assert properties["log.retention.ms"] == "5"
    assert "advertised.listeners" not in properties
    assert "inter.broker.listener.name" not in properties


def test_what_would_break_the_node_is_refused():
    with pytest.raises(UsageError, match=r"'log\.dirs' is set by txbridge; use EmbeddedKafka\(data_dir=\.\.\.\)"):
        config.check_overrides({"log.dirs": "/elsewhere"})
    with pytest.raises(UsageError, match=r"'num\.partitions' must be a text, as in server\.properties, not 3"):
        config.check_overrides({"num.partitions": 3})
    with pytest.raises(
        UsageError, match=r"'broker\.rack' is set by txbridge; use nothing: broker N is in the rack rack-N"
    ):
        config.check_overrides({"broker.rack": "a"}, brokers=3)
    assert config.check_overrides({"broker.rack": "a"}) == {"broker.rack": "a"}


@pytest.mark.parametrize("heap", ["512m", "2g", "1G", "900000k"])
def test_heap_as_java_writes_it(heap):
    assert config.check_heap(heap) == heap


@pytest.mark.parametrize("heap", ["", "512", "512 m", "0m", "-1g", "1t", "1g -XX:+Evil"])
def test_heap_that_java_would_refuse(heap):
    with pytest.raises(UsageError, match="heap must be a size as Java writes it, such as '512m' or '2g'"):
        config.check_heap(heap)


def test_profiles():
    fast = config.jvm_flags("fast-start", "512m", Path("/d/logs"), Path("/d/log4j2.xml"))
    assert fast[:3] == ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    assert "-Dtxbridge.logs=/d/logs" in fast
    throughput = config.jvm_flags("throughput", "2g", Path("/d/logs"), Path("/d/log4j2.xml"))
    assert throughput[:2] == ["-Xmx2g", "-XX:+UseG1GC"]
    assert "-XX:TieredStopAtLevel=1" not in throughput
    with pytest.raises(UsageError, match="jvm_profile must be one of fast-start, throughput, not 'slow'"):
        config.check_profile("slow")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"TXBRIDGE_CACHE_DIR": "/t", "XDG_CACHE_HOME": "/x"}, "/t"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/txbridge"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/txbridge"),
        ({}, "/home/me/.cache/txbridge"),
    ],
)
def test_cache_root(env, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert jars.cache_root(env) == Path(expected)


def test_a_cache_folder_that_no_class_path_can_name():
    with pytest.raises(UsageError, match="has a ':' in its name"):
        jars.cache_root({"TXBRIDGE_CACHE_DIR": "/a:b"})


def test_default_data_dir(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert jars.default_data_dir({}) == Path("/home/me/.local/share/txbridge/kafka")
    assert jars.default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/txbridge/kafka")
