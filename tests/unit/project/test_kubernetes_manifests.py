"""The manifests of docs/how-to/kubernetes.md: their parts name each other, and the programs accept their options.

No cluster runs them in these tests.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.support.source import ROOT
from txbridge.cli.app import app
from txbridge.cli.options import DATABASE_VARIABLE
from txbridge.config.sources import load_settings
from txbridge.errors import UsageError

PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text("utf-8")
#: Time to end, as in docs/operations.md.
ENDS_WITHIN_S = 25


def manifests() -> dict[str, Any]:
    """By kind and name."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    found = [one for block in blocks for one in yaml.safe_load_all(block)]
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


WORKER, JOB, RELAY = "Deployment txbridge-worker", "Job txbridge-topics", "Deployment txbridge-relay"
AUDIT, PURGE = "CronJob txbridge-audit", "CronJob txbridge-purge"
ANSWERS, SERVICE = "Deployment txbridge-answer-checks", "Deployment shop"


def pod(name: str) -> dict[str, Any]:
    spec = manifests()[name]["spec"]
    found: dict[str, Any] = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(
    ("name", "user"), [(WORKER, "worker"), (JOB, "worker"), (RELAY, "relay"), (AUDIT, "worker"), (ANSWERS, "answers")]
)
def test_a_program_takes_its_file_and_its_secret(tmp_path: Path, name: str, user: str) -> None:
    found, runs = manifests(), pod(name)
    file = tmp_path / "worker.toml"
    file.write_text(found["ConfigMap txbridge"]["data"]["worker.toml"])
    [container] = runs["containers"]
    config, secret = container["env"][:2]
    assert config == {"name": "TXBRIDGE_CONFIG", "value": "/etc/txbridge/worker.toml"}
    where = secret["valueFrom"]["secretKeyRef"]
    given = found[f"Secret {where['name']}"]["stringData"][where["key"]]
    settings = load_settings({}, None, {"TXBRIDGE_CONFIG": str(file), secret["name"]: given})
    # The file lies where it is looked for.
    [mount] = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == "/etc/txbridge"]
    [volume] = [one for one in runs["volumes"] if one["name"] == mount]
    assert volume["configMap"]["name"] == "txbridge"
    assert settings.bootstrap_servers == "kafka-bootstrap:9093"
    assert settings.kafka == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": f"txbridge-{user}",
        "sasl.password": "change me",
    }


@pytest.mark.parametrize("name", [WORKER, RELAY, ANSWERS, SERVICE])
def test_labels_and_ports_name_each_other_and_a_program_has_time_to_end(name: str) -> None:
    found = manifests()
    labels = found[name]["spec"]["template"]["metadata"]["labels"]
    assert found[name]["spec"]["selector"]["matchLabels"] == labels
    [container] = pod(name)["containers"]
    [port] = container["ports"]
    probes = {kind: one["httpGet"] for kind, one in container.items() if kind.endswith("Probe")}
    assert probes.pop("readinessProbe")["path"] == "/readyz"
    assert {probe["path"] for probe in probes.values()} == {"/livez"}
    assert {one["httpGet"]["port"] for kind, one in container.items() if kind.endswith("Probe")} == {port["name"]}
    assert pod(name)["terminationGracePeriodSeconds"] > ENDS_WITHIN_S
    if name == SERVICE:
        assert container["args"][-1] == str(port["containerPort"])
        return
    # The port of the image.
    assert f"TXBRIDGE_METRICS_PORT={port['containerPort']}" in (ROOT / "compose/Dockerfile").read_text("utf-8")


def test_the_service_has_the_probes_of_the_page_about_it() -> None:
    program = (ROOT / "examples/shop/shop.py").read_text("utf-8")
    [container] = pod(SERVICE)["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert f'@routes.get("{container[probe]["httpGet"]["path"]}")' in program
    assert container["args"][:3] == ["uvicorn", "--factory", "shop:create_app"]
    assert "def create_app(" in program


def test_the_budget_is_that_of_the_workers() -> None:
    found = manifests()
    budget = found["PodDisruptionBudget txbridge-worker"]["spec"]["selector"]["matchLabels"]
    assert budget == found[WORKER]["spec"]["selector"]["matchLabels"]


def test_purge_relay_and_answer_checks_are_commands_that_there_are(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(manifests()["ConfigMap txbridge"]["data"]["worker.toml"])
    for [container] in (pod(name)["containers"] for name in (PURGE, RELAY, ANSWERS)):
        assert container["env"][-1]["name"] == DATABASE_VARIABLE
        # Their options are right, and the address is not.
        environment = {DATABASE_VARIABLE: "no address", "TXBRIDGE_CONFIG": str(file)}
        done = CliRunner().invoke(app, container["args"], env=environment)
        assert isinstance(done.exception, UsageError), done.output
        assert str(done.exception).startswith("--database-url cannot be used")


@pytest.mark.parametrize("name", [JOB, AUDIT])
def test_the_job_is_a_command_that_there_is(name: str) -> None:
    [container] = pod(name)["containers"]
    # Without an address it gets no further than its options.
    done = CliRunner().invoke(app, [*container["args"], "--bootstrap-servers", ""], env={"TXBRIDGE_CONFIG": ""})
    assert isinstance(done.exception, UsageError), done.output
    assert str(done.exception) == "--bootstrap-servers: must not be empty, not ''"
