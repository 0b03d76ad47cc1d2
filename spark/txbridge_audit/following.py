"""`follow`: audit new records until it is stopped, and raise each new violation once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from txbridge_audit.audit import AuditEngine
from txbridge_audit.cluster import facts
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import Plan, Progress
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local import follow as local
from txbridge_audit.engines.violations_topic import existing_partitions
from txbridge_audit.judge.facts import AuditLimits
from txbridge_audit.judge.selection import AuditSelection
from txbridge_audit.report import formats
from txbridge_audit.report.alarms import AuditStep
from txbridge_audit.report.formats import LedgerFormat
from txbridge_audit.report.model import AuditReport


def follow(
    bootstrap_servers: str,
    ledger_path: str,
    *,
    stop: threading.Event,
    violations_topic: str | None = None,
    interval: float = local.INTERVAL,
    namespace: str = "",
    kafka_options: Mapping[str, str] | None = None,
    real_topics: Collection[str] = (),
    engine: AuditEngine | None = None,
    limits: AuditLimits | None = None,
    ledger_format: LedgerFormat = LedgerFormat.PARQUET,
    progress: Progress = lambda _: None,
    on_ready: Callable[[], None] = lambda: None,
    on_step: Callable[[AuditStep], None] = lambda _: None,
) -> AuditReport:
    """Audit new records until `stop` is set. Then write the ledger and return the report of everything so far.

    `ledger_path` is that of `run_audit` with `continued`, and each of the two may continue the ledger of the other. New
    violations are passed to `on_step`. If a `violations_topic` is given, each is written there once, even after a
    crash. The local engine follows: another `engine`, and a `ledger_format` other than Parquet, are refused.

    `on_ready` is called when the first step is about to begin.

    Raises CouldNotAuditError. When it is called again, it continues after the last step that counts.
    """
    by_spark = engine is AuditEngine.SPARK
    formats.refuse_to_continue(AuditSelection(), ledger_path, ledger_format, by_spark=by_spark, with_overview=False)
    names, folder = facts.named(namespace), formats.local_folder(ledger_path, continued=True)
    assert folder is not None  # Others were refused.
    formats.refuse_without_library()
    settings = kafka_settings(bootstrap_servers, kafka_options)
    cluster = AuditedCluster(settings)
    topics = facts.internal_topics(cluster, names)
    if violations_topic is not None:
        existing_partitions(cluster, violations_topic)

    def plan(now: int) -> Plan:
        return Plan(now, limits or AuditLimits(), AuditSelection(), frozenset(real_topics), local.SETTLE_TIMEOUT)

    how = local.Following(stop, violations_topic, interval, plan, on_ready, on_step)
    report = local.follow(AuditedTopics(cluster, settings, names, topics, progress), folder, how)
    formats.write_summary(report.to_json(), folder)
    return report
