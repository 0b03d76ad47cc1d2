"""The DAG of docs/how-to/airflow.md: the audit has its options, and its acceptances may be a header line alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer
from txbridge_audit.report.acceptances import read_acceptances

from txbridge.cli.app import app

DOCS = Path(__file__).parents[3] / "docs"


def test_the_audit_has_the_options_of_the_dag() -> None:
    found = re.search(r"```python\n(.*?)```", (DOCS / "how-to/airflow.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    command = next(node for node in ast.parse(found[1]).body if "AUDIT" in ast.unparse(node).split(" = ")[0])
    given = set(re.findall(r"'(--[a-z-]+)'", ast.unparse(command)))
    known = {name for option in typer.main.get_command(app).commands["audit"].params for name in option.opts}  # type: ignore[attr-defined]
    assert {"--ledger", "--continue", "--accept", "--csv"} <= given <= known


def test_acceptances_may_be_a_header_line_alone() -> None:
    assert read_acceptances("id,who,why,until\n", "accepted.csv") == ()
