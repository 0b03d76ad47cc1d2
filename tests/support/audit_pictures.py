"""Pictures of the status page about planted violations, for docs/audit.md: `python -m tests.support.audit_pictures`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from txbridge_audit import run_audit
from txbridge_audit.report.html import html

from tests.corruption.writer import Writer
from tests.support.browser import browser
from txbridge.embedded import EmbeddedKafka

FOLDER = Path(__file__).parents[2] / "docs" / "images"
#: Enough transactions for meaningful plots, and so few violations of each kind that the page is readable.
TRANSACTIONS, EACH = 6_000, 3


def main() -> None:
    with EmbeddedKafka() as kafka:
        writer = Writer(kafka.bootstrap_servers, "shop", seed=9)
        writer.plant(TRANSACTIONS, EACH)
        report = run_audit(kafka.bootstrap_servers, namespace="shop", with_overview=True)
    assert report.overview is not None
    sys.stdout.write(f"{report.transactions:,} transactions, {report.violations.total} violations\n")
    with tempfile.TemporaryDirectory() as folder, browser() as tab:
        page = Path(folder, "report.html")
        page.write_text(html(report, report.overview), encoding="utf-8")
        for name, width, height in (("desktop", 1_100, 1_400), ("phone", 390, 1_600)):
            tab.open(page.as_uri(), width, height, phone=name == "phone")
            tab.screenshot(FOLDER / f"audit-report-{name}.webp")


if __name__ == "__main__":
    main()
