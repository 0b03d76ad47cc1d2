"""The manifests of docs/how-to/kubernetes.md: their parts name each other, and a worker accepts their options.

No cluster runs them in these tests.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from tests.support.source import ROOT
from txbridge.cli.app import app
from txbridge.config.sources import load_settings
from txbridge.errors import UsageError

PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text("utf-8")
#: A worker's time for its Kafka transactions and for leaving the group, as in docs/operations.md.
ENDS_WITHIN_S = 20


def manifests() -> dict[str, Any]:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return {one["kind"]: one for block in blocks for one in yaml.safe_load_all(block)}


def pods() -> list[dict[str, Any]]:
    found = manifests()
    return [found[kind]["spec"]["template"]["spec"] for kind in ("Deployment", "Job")]


def test_a_worker_takes_its_file_and_its_secret(tmp_path: Path) -> None:
    found = manifests()
    file = tmp_path / "worker.toml"
    file.write_text(found["ConfigMap"]["data"]["worker.toml"])
    for pod in pods():
        [container] = pod["containers"]
        config, secret = container["env"]
        assert config == {"name": "TXBRIDGE_CONFIG", "value": "/etc/txbridge/worker.toml"}
        where = secret["valueFrom"]["secretKeyRef"]
        assert where["name"] == found["Secret"]["metadata"]["name"]
        environment = {"TXBRIDGE_CONFIG": str(file), secret["name"]: found["Secret"]["stringData"][where["key"]]}
        settings = load_settings({}, None, environment)
        # The file lies where it is looked for.
        [mount] = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == "/etc/txbridge"]
        [volume] = [one for one in pod["volumes"] if one["name"] == mount]
        assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
        assert settings.bootstrap_servers == "kafka-bootstrap:9093"
        assert settings.kafka == {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "txbridge-worker",
            "sasl.password": "change me",
        }


def test_labels_and_ports_name_each_other_and_a_worker_has_time_to_end() -> None:
    found = manifests()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    [worker] = pods()[0]["containers"]
    [port] = worker["ports"]
    probes = [worker[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]
    assert {probe["port"] for probe in probes} == {port["name"]}
    assert pods()[0]["terminationGracePeriodSeconds"] > ENDS_WITHIN_S
    # The port of the image.
    assert f"TXBRIDGE_METRICS_PORT={port['containerPort']}" in (ROOT / "compose/Dockerfile").read_text("utf-8")


def test_the_purge_is_a_command_that_there_is() -> None:
    [container] = manifests()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    [variable] = container["env"]
    # Its options are right, and the address is not.
    done = CliRunner().invoke(app, container["args"], env={variable["name"]: "no address"})
    assert isinstance(done.exception, UsageError), done.output
    assert str(done.exception).startswith("--database-url cannot be used")


def test_the_job_is_a_command_that_there_is() -> None:
    [container] = pods()[1]["containers"]
    # Without an address it gets no further than its options.
    done = CliRunner().invoke(app, [*container["args"], "--bootstrap-servers", ""], env={"TXBRIDGE_CONFIG": ""})
    assert isinstance(done.exception, UsageError), done.output
    assert str(done.exception) == "--bootstrap-servers: must not be empty, not ''"
