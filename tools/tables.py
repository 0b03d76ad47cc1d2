"""Tables of the docs site that are made from the code: `python -m tools.tables options` prints one.

A page asks for one by a comment, `<!-- table: options -->`. In the repository the comment cannot be seen, and the text
beside it names the command or the file that says the same.
"""

from __future__ import annotations

import csv
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from tests.support.partition_builder import COMMIT, Partition, end, entry
from txbridge.cli.service_program import RelayMetrics
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.metrics import ClientMetrics
from txbridge.config.worker import OPTIONS
from txbridge.core.decision_record import DecisionEntry, Source
from txbridge.core.open_messages import OpenCounts
from txbridge.worker.observe.metrics import PartitionFacts, WorkerMetrics

ROOT = Path(__file__).parents[1]
#: The packages that applications import from.
PACKAGES = ["txbridge", "txbridge_sqlalchemy", "txbridge_django"]
PACKAGES += ["txbridge.testing", "txbridge.operations", "txbridge_audit"]
PARITY = ROOT / "tests" / "parity.csv"
#: Tables that a page shows as they are.
FILES = {"log-events": ROOT / "observability" / "log-events.csv", "goals": ROOT / "tests" / "bench" / "goals.csv"}
_PAGE = re.compile(r"\b[\w-]+\.md(?:#[\w-]+)?")


def registries() -> dict[str, CollectorRegistry]:
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
    RelayMetrics(relay, SimpleNamespace(blocks=[SimpleNamespace(row=row)]))._show_blocked()  # noqa: SLF001  its thread does it
    return {"worker": worker.registry, "client": client, "relay": relay}


def families(registry: CollectorRegistry) -> Iterator[tuple[str, Metric, frozenset[str]]]:
    """Our own metrics, by the names that queries use, and their labels."""
    for family in registry.collect():
        if family.name.startswith("txbridge_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield name, family, frozenset(label for sample in family.samples for label in sample.labels) - {"le"}


def of_metrics(process: str) -> str:
    """The metrics of a process, with the text that `/metrics` has as HELP."""
    rows = (
        (f"`{name}`", family.type, ", ".join(f"`{label}`" for label in sorted(labels)), family.documentation)
        for name, family, labels in families(registries()[process])
    )
    return _table(("name", "type", "labels", "meaning"), rows)


def of_options() -> str:
    """The worker's options, with the text of `txbridge worker --help`."""
    rows = ((f"`{one.name}`", f"`{one.default}`" if one.default else "", one.unit, one.help) for one in OPTIONS)
    return _table(("option", "default", "unit", "meaning"), rows)


def of_names() -> str:
    """What the public packages export, with the first sentence of each docstring."""
    rows = []
    for package in map(import_module, PACKAGES):
        for name in package.__all__:
            one = getattr(package, name)
            said = (inspect.getdoc(one) or "") if callable(one) else f"{type(one).__module__}.{type(one).__name__}"
            rows.append((f"`{package.__name__}.{name}`", re.split(r"(?<=\.)\s", said.replace("\n", " "))[0]))
    return _table(("name", "what it is"), rows)


def of_file(path: Path) -> str:
    """The rows of a file. Names of pages become links."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    return _table(tuple(head), (tuple(_PAGE.sub(r"[\g<0>](\g<0>)", cell) for cell in row) for row in rows))


def of_parity(letter: str) -> str:
    """The rows of one part of tests/parity.csv."""
    with PARITY.open(encoding="utf-8", newline="") as file:
        rows = [
            (row["key"], row["rocketmq"], row["txbridge"], row["verdict"], row["issues"].replace(" ", ", "))
            for row in csv.DictReader(file)
            if row["key"].startswith(f"{letter}.")
        ]
    return _table(("key", "RocketMQ", "txbridge", "verdict", "issues"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    # Angle brackets would be HTML.
    return "".join(f"| {' | '.join(one.replace('<', '&lt;') for one in line)} |\n" for line in lines)


def main() -> None:
    """Print the table that the command names: `options`, `names`, `log-events`, `metrics-worker`, `parity-C` ..."""
    name = sys.argv[1]
    kind, _, part = name.partition("-")
    makers = {"metrics": of_metrics, "parity": of_parity}
    if name in FILES:
        sys.stdout.write(of_file(FILES[name]))
    else:
        sys.stdout.write(makers[kind](part) if part else {"options": of_options, "names": of_names}[kind]())


if __name__ == "__main__":
    main()
