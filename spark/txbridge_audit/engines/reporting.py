"""The report of an audit, by either engine, with what is known about the audit itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from txbridge_audit.cluster.differences import Coordinates, differences
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics, Reading
from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.violations import ALTERED
from txbridge_audit.report.build import report_of
from txbridge_audit.report.entry import Entry
from txbridge_audit.report.model import AuditReport
from txbridge_audit.report.sums import OddRecords, Sums

#: Altered records that are read once more to name the differences. Each costs some milliseconds. They tend to be alike.
EXPLAINED = 50


def report_on(
    source: AuditedTopics, plan: Plan, reading: Reading, facts: Facts, sums: Sums, odd: OddRecords, *, engine: str
) -> AuditReport:
    """The report. `sums` are complete, strays included; they are used up."""
    return report_of(
        source.names,
        sums,
        odd,
        facts,
        starts=reading.starts,
        cuts={key: (span.start, span.end) for key, span in reading.spans.items()},
        hidden=reading.hidden,
        selection=plan.selection,
        limits=plan.limits,
        started_at=plan.now,
        read_at=plan.read_at,
        seconds=time.time() - plan.read_at / 1000,
        topic_ids=reading.topic_ids,
        continued=reading.continued,
        lost_since={f"{topic}/{partition}": number for (topic, partition), number in reading.lost.items()},
        bootstrap_servers=source.settings.bootstrap_servers,
        cluster_id=source.cluster.cluster_id,
        version=version("txbridge"),
        engine=engine,
    )


def with_differences(settings: KafkaSettings, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, the first of kind ALTERED with the differences."""
    pairs: dict[int, tuple[Coordinates, Coordinates]] = {}
    for number, entry in enumerate(entries):
        by_role = {at.role: (at.topic, at.partition, at.offset) for at in entry.evidence}
        # With several copies it is unknown which one was altered.
        is_clear = "half" in by_role and sum(at.role == "copy" for at in entry.evidence) == 1
        if entry.kind == ALTERED.name and is_clear and len(pairs) < EXPLAINED:
            pairs[number] = by_role["half"], by_role["copy"]
    told = dict(zip(pairs, differences(settings, list(pairs.values())), strict=True))
    return [
        replace(entry, says=f"not that of the half message in a visible copy: {told[number]}")
        if told.get(number)
        else entry
        for number, entry in enumerate(entries)
    ]
