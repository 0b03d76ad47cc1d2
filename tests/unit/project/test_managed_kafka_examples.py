"""The configuration examples of docs/how-to/managed-kafka.md: a worker and a cluster accept them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from txbridge.config.sources import load_settings

PAGE = (Path(__file__).parents[3] / "docs/how-to/managed-kafka.md").read_text("utf-8")
#: Settings without which records may be lost.
VITAL = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_worker_takes_each_configuration_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(text)
    settings = load_settings({}, file, {"TXBRIDGE_KAFKA": '{"sasl.password": "secret"}'})
    assert settings.kafka["sasl.password"] == "secret"
    assert settings.kafka["security.protocol"] in {"SASL_SSL", "SSL"}
    assert settings.bootstrap_servers.rpartition(":")[2].isdecimal()


def test_the_brokers_settings_are_those_that_a_worker_relies_on() -> None:
    (text,) = blocks("properties")
    given = dict(line.split("=", 1) for line in text.split())
    assert given.items() >= VITAL.items()
    defaults = load_settings({"bootstrap_servers": "b-1:9096"}, None, {})
    assert int(given["transaction.max.timeout.ms"]) >= defaults.commit_timeout
    assert int(given["group.min.session.timeout.ms"]) <= defaults.session_timeout


def test_strimzis_resources_are_replicated() -> None:
    (text,) = blocks("yaml")
    cluster, topic = yaml.safe_load_all(text)
    config = {name: str(value).lower() for name, value in cluster["spec"]["kafka"]["config"].items()}
    assert config.items() >= VITAL.items()
    assert config["transaction.state.log.replication.factor"] == config["offsets.topic.replication.factor"] == "3"
    assert config["transaction.state.log.min.isr"] == "2"
    assert topic["metadata"]["labels"]["strimzi.io/cluster"] == cluster["metadata"]["name"]
    assert (topic["spec"]["replicas"], topic["spec"]["config"]["min.insync.replicas"]) == (3, 2)
