"""Names in the documentation, the alert rules and the dashboard, which must exist in the code, and vice versa."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client import CollectorRegistry
from txbridge_rocketmq.door_options import DoorMetrics

from tests.support.partition_builder import COMMIT, Partition, end, entry
from tests.support.source import ROOT
from tests.unit.project.test_documents import anchors
from txbridge.cli.service_program import RelayMetrics
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.metrics import ClientMetrics
from txbridge.core.decision_record import DecisionEntry, Source
from txbridge.core.open_messages import OpenCounts
from txbridge.worker.observe.metrics import CAUSES, PartitionFacts, WorkerMetrics

RULES = ROOT / "observability" / "txbridge.rules.yml"
BOARD = ROOT / "observability" / "grafana-board.json"
ALERT_TESTS = sorted((ROOT / "tests" / "alerts").glob("*.yml"))
PROMETHEUS_OF_CI = ROOT / "build" / "prometheus" / "usr" / "bin"
#: Metrics of ProcessCollector, which knows them on Linux only, and of Prometheus itself.
OTHERS = {"process_cpu_seconds_total": set(), "process_resident_memory_bytes": set()}
#: Every scraped sample has these.
TARGET = {"job", "instance"}


def registries() -> list[CollectorRegistry]:
    """The registries of worker, client and relay, with each label used once."""
    worker, client, relay = WorkerMetrics(), CollectorRegistry(), CollectorRegistry()
    partition = Partition().prepare(0, 1)
    draft = partition.step(7_000, end(0, entry(0, COMMIT)))
    assert draft.checks
    worker.note_commit(draft, [], 0.1, 7_000)
    open_ = OpenCounts({"orders": {0: 1}}, {})
    worker.watch_partitions(
        lambda: [PartitionFacts(0, serving=True, open=open_, end_lag=0, checks_overdue=0.0, clock_ahead=0.0)],
        lambda: True,
    )
    ticket = Ticket(DecisionEntry(1, "A" * 32, COMMIT), 1)
    metrics = ClientMetrics(client)
    metrics.of_group("orders").watch_end(0, Source.CHECK, ticket, None)
    metrics.count_stored("orders")
    row = SimpleNamespace(id=17, topic="orders.placed")
    RelayMetrics(relay, SimpleNamespace(blocks=[SimpleNamespace(row=row)]))._show_blocked()
    return [worker.registry, client, relay]


@cache
def families() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of metrics by their documented name."""
    found = {}
    for registry in registries():
        for family in registry.collect():
            if family.name.startswith("txbridge_"):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                found[name] = (family.type, frozenset(labels))
    return found


@cache
def samples() -> dict[str, set[str]]:
    """Labels of all samples that a query may name."""
    found = dict(OTHERS)
    # tests/unit/connectors compares the door's with its own page.
    for one in DoorMetrics().registry.collect():
        name = f"{one.name}_total" if one.type == "counter" else one.name
        found[name] = {label for sample in one.samples for label in sample.labels}
    for name, (kind, labels) in families().items():
        if kind == "histogram":
            found |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": {*labels}, f"{name}_count": {*labels}}
        else:
            found[name] = {*labels}
    return found


def test_the_pages_list_every_metric_as_it_is():
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("metrics.md", "relay.md"))
    rows = re.findall(r"^\| `(txbridge_\w+)` \| (\w+) \|(.*?)\|", pages, re.MULTILINE)
    documented = {name: (kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert len(documented) == len(rows)
    assert documented == families()


def test_names_and_units_are_as_prometheus_wants_them():
    for name, (kind, labels) in families().items():
        assert re.fullmatch(r"txbridge(_[a-z]+)+", name), name
        assert (kind == "counter") == name.endswith("_total"), name
        assert not re.search(r"_(ms|milliseconds|millis|minutes|kb|mb|count|sum|bucket)(_|$)", name), name
        # It has a series for each row that is blocked, and 100 at most.
        topic = {"topic"} - ({"topic"} if name == "txbridge_relay_blocked_row" else set())
        assert not labels & {"job", "instance", "le", "transaction", "transaction_id", "client", *topic}, name


def test_every_cause_is_a_log_event_that_the_page_explains():
    page = (ROOT / "docs" / "logs.md").read_text()
    assert [cause for cause in CAUSES if f"`{cause}`" not in page.partition("## Log events")[2]] == []


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def board() -> dict:
    return json.loads(BOARD.read_text())


def queries() -> list[tuple[str, str]]:
    """Places and expressions of all queries."""
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    for panel in board()["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
    return found


@pytest.mark.parametrize(("where", "query"), queries())
def test_queries_name_what_exists(where, query):
    bare = re.sub(r'"[^"]*"', '""', query)
    named = re.findall(r"\b((?:txbridge|process)_\w+)(?:\{([^}]*)\})?", bare)
    assert named
    available = set()
    for name, selector in named:
        assert name in samples(), f"{where}: there is no {name}"
        available |= samples()[name]
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert used <= samples()[name] | TARGET, f"{where}: {name} has no {used - samples()[name]}"
    for grouping in re.findall(r"\bby \(([^)]*)\)", bare):
        by = {label.strip() for label in grouping.split(",")}
        assert by <= available | TARGET, f"{where}: nothing has {by - available}"
    # A bare counter only shows how long the process has run.
    for name in re.findall(r"\b(txbridge_\w+_(?:total|bucket))\b", bare):
        assert re.search(rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[", bare), f"{where}: {name} without a rate"


def test_label_values_in_queries_exist():
    values: dict[str, set[str]] = {}
    for registry in registries():
        for family in registry.collect():
            for sample in family.samples:
                for label, value in sample.labels.items():
                    values.setdefault(label, set()).add(value)
    for where, query in queries():
        for label, wanted in re.findall(r'(\w+)=~?"([^"$]*)"', query):
            for value in wanted.split("|"):
                assert value in values[label], f"{where}: {label} is never {value}"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_means_and_where_to_read_on(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Txbridge[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in anchors(ROOT / page)
    # Labels in the summary must be in the result.
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"] + rule["annotations"]["description"]))
    grouped = {label.strip() for by in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for label in by.split(",")}
    assert shown <= (grouped or TARGET)


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' own checker of rules. `.ci/run` installs it where that is allowed."""
    found = shutil.which("promtool") or shutil.which("promtool", path=str(PROMETHEUS_OF_CI))
    if found is None:
        pytest.skip("no promtool: Debian has it in its package prometheus")
    return found


def test_promtool_takes_the_rules_and_the_boards_queries(promtool, tmp_path):
    # The queries as Grafana sends them: Prometheus sees its variables as text.
    found = [
        query.replace("$__rate_interval", "1m").replace("$job", "txbridge")
        for panel in board()["panels"]
        for query in (target["expr"] for target in panel.get("targets", ()))
    ]
    assert not [query for query in found if "$" in query]
    recorded = [{"record": f"board:{number}", "expr": query} for number, query in enumerate(found)]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": recorded}]}))
    for file in (RULES, tmp_path / "board.yml"):
        subprocess.run([promtool, "check", "rules", file], check=True)


@pytest.mark.parametrize("series", ALERT_TESTS, ids=lambda path: path.stem)
def test_alerts_on_series_written_by_hand(promtool, series):
    subprocess.run([promtool, "test", "rules", str(series)], check=True)


def test_every_alert_has_series_in_which_it_fires():
    firing = (ROOT / "tests" / "alerts" / "firing.yml").read_text()
    assert sorted(set(re.findall(r'alertname="(\w+)"', firing))) == sorted(rule["alert"] for rule in rules())


def test_the_boards_panels_do_not_overlap_and_have_a_source():
    taken, ids = set(), set()
    for panel in board()["panels"]:
        assert panel["id"] not in ids
        ids.add(panel["id"])
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]
    assert {variable["name"] for variable in board()["templating"]["list"]} == {"datasource", "job"}
