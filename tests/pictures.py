"""The pictures of the audit's page in docs/images: `make pictures`.

They show the audit of a real Kafka in which every violation that Kafka allows was planted.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from txbridge_audit import run_audit
from txbridge_audit.audit import AuditEngine
from txbridge_audit.report.html import html

from tests.support.audit_cases import plant
from tests.support.audit_log import KafkaLog
from tests.support.browser import browser
from txbridge.embedded import EmbeddedKafka

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: Width and height. The top of the page is enough: what is below looks like it.
SIZES = {"desktop": (1_280, 1_500), "phone": (390, 1_500)}


def main() -> None:
    with EmbeddedKafka() as kafka, TemporaryDirectory() as folder:
        log = KafkaLog(kafka.bootstrap_servers)
        plant(log)
        report = run_audit(log.servers, namespace=log.names.namespace, engine=AuditEngine.LOCAL, with_overview=True)
        assert report.overview is not None
        page = Path(folder) / "page.html"
        page.write_text(html(report, report.overview), encoding="utf-8")
        with browser() as tab:
            for name, (width, height) in SIZES.items():
                tab.open(page.as_uri(), width, height, phone=name == "phone")
                tab.screenshot(IMAGES / f"audit-report-{name}.webp", whole=False)
        print(f"{report.transactions} transactions, {report.violations.total} violations")


if __name__ == "__main__":
    main()
