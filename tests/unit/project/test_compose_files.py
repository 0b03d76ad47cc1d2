"""The files of compose/, and examples/shop/compose.yaml: their names are those of the rest of the project.

`make compose` and `make test-containers` run them.
"""

from __future__ import annotations

import re
from pathlib import Path

import typer
import yaml
from txbridge_rocketmq.door_options import SECRET_VARIABLE

from tests.support.source import ROOT
from txbridge.cli.app import app
from txbridge.cli.demo import INSTALLED_EXAMPLES
from txbridge.cli.options import DATABASE_VARIABLE
from txbridge.config.worker import OPTIONS
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
    door = typer.main.get_command(app).commands["rocketmq"]
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
