"""The files of Compose and the manifests of Kubernetes: their parts fit, and the programs accept their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from txbridge_rocketmq.door_options import SECRET_VARIABLE
from typer.testing import CliRunner

from tests.support.source import ROOT
from txbridge.cli.app import app
from txbridge.cli.dev import INSTALLED_EXAMPLES
from txbridge.cli.options import DATABASE_VARIABLE
from txbridge.config.sources import load_settings
from txbridge.config.worker import OPTIONS
from txbridge.errors import UsageError
from txbridge.testing.containers import KAFKA_IMAGE, WORKER_IMAGE

COMPOSE = ROOT / "compose"
SHOP = ROOT / "examples" / "shop"
#: Variables of the front door.
DOORS = {
    SECRET_VARIABLE,
    *(f"TXBRIDGE_ROCKETMQ_{name}" for name in ("LISTEN", "ADVERTISED", "GRPC_LISTEN")),
    *(f"TXBRIDGE_ROCKETMQ_{name}" for name in ("METRICS_HOST", "METRICS_PORT")),
}
#: The variable that chooses a release, with its default.
CHOSEN = re.compile(r"\$\{TXBRIDGE_VERSION:-([^}]+)\}")


def services(folder: Path = COMPOSE) -> dict[str, dict]:
    return yaml.safe_load((folder / "compose.yaml").read_text())["services"]


def test_the_images_are_those_that_make_builds_and_the_tests_use():
    images = {name: CHOSEN.sub(r"\1", service["image"]) for name, service in services().items()}
    assert images["kafka"] == KAFKA_IMAGE
    assert {images[name] for name in ("topics", "worker-1", "worker-2")} == {WORKER_IMAGE}
    for other in ("answer-checks", "rocketmq", "demo"):
        assert images[other] == WORKER_IMAGE.replace("worker", other)


def test_every_service_that_runs_on_is_started_again():
    ends = {"kafka", "topics", "demo", "prometheus", "grafana"}
    assert {name for name, one in services().items() if one.get("restart") != "unless-stopped"} == ends


def test_every_published_port_is_on_localhost():
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert len(ports) == 5
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_file_that_is_mounted_exists():
    mounts = [mount for service in services().values() for mount in service.get("volumes", ())]
    assert len(mounts) == 5
    for mount in mounts:
        assert (COMPOSE / mount.partition(":")[0]).is_file(), mount
        assert mount.endswith(":ro")


def test_prometheus_scrapes_both_workers_on_the_port_that_the_image_opens():
    config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    [port] = re.findall(r"TXBRIDGE_METRICS_PORT=(\d+)", (COMPOSE / "Dockerfile").read_text())
    workers = [name for name in services() if name.startswith("worker")]
    assert job["static_configs"][0]["targets"] == [f"{worker}:{port}" for worker in workers]


def test_grafana_finds_the_board_where_it_is_mounted():
    mounts = dict(mount.split(":")[:2] for mount in services()["grafana"]["volumes"])
    provider = yaml.safe_load((COMPOSE / "grafana" / "dashboards.yaml").read_text())["providers"][0]
    board = mounts["../observability/grafana-board.json"]
    assert Path(board).parent == Path(provider["options"]["path"])
    assert services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == board


def test_the_images_set_options_that_exist():
    files = [(COMPOSE / "Dockerfile").read_text(), (COMPOSE / "compose.yaml").read_text()]
    named = set(re.findall(r"\b(TXBRIDGE_[A-Z_]+)[=:]", "".join(files))) - {"TXBRIDGE_VERSION"}
    assert named == {
        "TXBRIDGE_LOG_FORMAT",
        "TXBRIDGE_METRICS_HOST",
        "TXBRIDGE_METRICS_PORT",
        "TXBRIDGE_BOOTSTRAP_SERVERS",
        DATABASE_VARIABLE,
        *DOORS,
    }
    door = typer.main.get_command(app).get_command(None, "rocketmq")
    assert {SECRET_VARIABLE, *(one.envvar for one in door.params)} >= DOORS
    assert named - DOORS <= {DATABASE_VARIABLE, *(option.variable for option in OPTIONS)}


def test_the_door_of_compose_listens_where_its_port_is_published_and_its_health_is_asked():
    door = services()["rocketmq"]
    said = door["environment"]
    inside = {port.rpartition(":")[2] for port in door["ports"]}
    assert inside == {said[f"TXBRIDGE_ROCKETMQ_{kind}LISTEN"].rpartition(":")[2] for kind in ("", "GRPC_")}
    [port] = re.findall(r"TXBRIDGE_METRICS_PORT=(\d+)", (COMPOSE / "Dockerfile").read_text())
    assert re.findall(r"TXBRIDGE_ROCKETMQ_METRICS_PORT=(\d+)", (COMPOSE / "Dockerfile").read_text()) == [port]


def test_the_image_has_the_demo_where_the_command_looks_for_it():
    [(place,)] = [
        re.findall(r"^COPY flights /opt/txbridge/(\S+)$", (COMPOSE / "demo.Dockerfile").read_text(), re.MULTILINE)
    ]
    assert Path(place) == INSTALLED_EXAMPLES / "flights"


def test_the_shop_of_the_tutorial_has_the_images_topics_and_settings_that_its_programs_use():
    shop = services(SHOP)
    images = {name: CHOSEN.sub(r"\1", service["image"]) for name, service in shop.items()}
    assert images == {
        "kafka": KAFKA_IMAGE,
        "postgres": "postgres:18",
        **dict.fromkeys(("topics", "worker"), WORKER_IMAGE),
        "answer-checks": WORKER_IMAGE.replace("worker", "answer-checks"),
        **dict.fromkeys(("tables", "shop", "billing"), "shop"),
    }
    ports = [port for service in shop.values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
    programs = {file.name: file.read_text("utf-8") for file in SHOP.glob("*.py")}
    topics = {word for word in shop["topics"]["command"] if word.startswith("orders.")}
    assert topics == set(re.findall(r'"(orders\.\w+)"', programs["shop.py"]))
    assert topics == set(re.findall(r'"(orders\.\w+)":', programs["billing.py"]))
    assert programs.keys() == set(re.findall(r"\b\w+\.py\b", (SHOP / "Dockerfile").read_text("utf-8")))
    for service in (shop[name] for name in ("tables", "shop", "billing")):
        for variable in service["environment"]:
            assert re.search(rf"^    {variable.removeprefix('SHOP_').lower()}: ", programs["settings.py"], re.MULTILINE)
    for name in ("topics", "worker", "answer-checks"):
        assert shop[name]["environment"].keys() <= {DATABASE_VARIABLE, *(option.variable for option in OPTIONS)}


MANIFESTS = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
#: Time to end, as in docs/operations.md.
ENDS_WITHIN_S = 25


def manifests() -> dict[str, Any]:
    """By kind and name."""
    found = [one for file in MANIFESTS for one in yaml.safe_load_all(file.read_text("utf-8"))]
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
