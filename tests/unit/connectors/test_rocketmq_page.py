"""Requests, log events and metrics in docs/rocketmq.md: those of the code, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from txbridge_rocketmq.codes import REFUSALS, RequestCode
from txbridge_rocketmq.door_options import DoorMetrics
from txbridge_rocketmq.grpc_messages import SERVICE
from txbridge_rocketmq.grpc_service import REFUSALS as REFUSED_CALLS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "rocketmq.md").read_text("utf-8")
LEVELS = {"debug", "info", "warning", "error"}


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_request_is_on_the_page_as_it_is_treated() -> None:
    lines = re.findall(r"^\| ([\d, ]+) \| (`[^|]+`) \| (.+?) \|$", section("Requests"), re.MULTILINE)
    rows = [
        (code, name, treated)
        for codes, names, treated in lines
        for code, name in zip(codes.split(", "), re.findall(r"`(\w+)`", names), strict=True)
    ]
    assert {int(code): name for code, name, _ in rows} == {one.value: one.name for one in RequestCode}
    assert len(rows) == len(RequestCode)
    refused = {int(code) for code, _, treated in rows if treated.startswith("refused: ")}
    assert refused == set(REFUSALS)
    sent = {int(code) for code, _, treated in rows if treated == "sent by the door"}
    assert sent == {RequestCode.CHECK_TRANSACTION_STATE}
    assert all(treated.startswith("served") for code, _, treated in rows if int(code) not in refused | sent)


def test_every_call_of_grpc_is_on_the_page_as_it_is_treated() -> None:
    lines = re.findall(r"^\| (`[^|]+`) \| (served|refused)", section("Clients that speak gRPC"), re.MULTILINE)
    rows = {name: treated for names, treated in lines for name in re.findall(r"`(\w+)`", names)}
    assert set(rows) == {method.name for method in SERVICE.methods}
    assert {name for name, treated in rows.items() if treated == "refused"} == set(REFUSED_CALLS)


def test_the_events_of_the_door() -> None:
    found = {}
    for file in (ROOT / "connectors" / "txbridge_rocketmq").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("_log"), attr=level), args=[ast.Constant(event), *_]):
                    found[event] = level
    assert set(found.values()) <= LEVELS
    assert dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section("Log events"), re.MULTILINE)) == found


def test_the_metrics_of_the_door() -> None:
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in DoorMetrics().registry.collect()}
    assert set(re.findall(r"^\| `(\w+)` \|", section("Metrics"), re.MULTILINE)) == names
