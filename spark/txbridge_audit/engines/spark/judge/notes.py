"""The findings that come from cuts and log starts instead of a row of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Ends, Range
from txbridge_audit.engines.spark.judge import findings, reach
from txbridge_audit.judge.facts import Facts, TopicPartition
from txbridge_audit.report.entry import Entry, Place


def open_transactions(stayed: Mapping[TopicPartition, tuple[int, int]], internal: Collection[str]) -> list[Entry]:
    """Findings of Kafka transactions that `stayed` open: stable offset and high watermark of each partition."""
    return [
        Entry(
            findings.OPEN_TRANSACTION,
            f"{findings.SAYS[findings.OPEN_TRANSACTION]}: {topic}/{partition} from {stable} to {target}",
            real_topic=None if topic in internal else topic,
            evidence=(Place("open", topic, partition, stable),),
        )
        for (topic, partition), (stable, target) in sorted(stayed.items())
    ]


def range_gone(names: Names, known: Facts) -> list[Entry]:
    """Findings of half partitions whose HALF begins above the low watermark: what was between them is not known."""
    return [
        Entry(
            findings.HALF_RANGE_GONE,
            f"{findings.SAYS[findings.HALF_RANGE_GONE]}: {names.half}/{fact.partition} "
            f"from {fact.low} to {fact.log_start}",
            evidence=(Place("half", names.half, fact.partition, fact.log_start),),
        )
        for fact in known.partitions
        if fact.low is not None and fact.low < fact.log_start
    ]


def missing_rights(known: Facts) -> list[Entry]:
    """Findings of real topics whose `cleanup.policy` we may not see."""
    return [
        Entry(
            findings.RIGHT_MISSING,
            f"{findings.SAYS[findings.RIGHT_MISSING]}: DESCRIBE_CONFIGS on {fact.topic}",
            real_topic=fact.topic,
        )
        for fact in known.topics
        if not fact.policy_known
    ]


def emptied(names: Names, starts: Ends, spans: Mapping[TopicPartition, Range]) -> list[TopicPartition]:
    """The partitions of HALF that have held half messages, if it holds none any more. `starts` are log starts."""
    ends = {key: span.end for key, span in spans.items() if key[0] == names.half}
    gone = [key for key, end in ends.items() if end > 0]
    return sorted(gone) if all(starts[key] >= end for key, end in ends.items()) else []


def blind(told: Mapping[str, int], empty: Collection[TopicPartition]) -> list[Entry]:
    """Findings of rules that judged nothing (reach.tell), and of all rules if HALF is `empty`."""
    reasons = reach.by_rule(told)
    entries = [
        Entry(
            findings.BLIND,
            f"{rule} could judge none of {sum(reasons[rule].values()):,}: "
            + "; ".join(reach.SAYS[reason] for reason in reasons[rule]),
        )
        for rule in reach.blind(told)
    ]
    if empty:
        where = ", ".join(f"{topic}/{partition}" for topic, partition in empty)
        entries.append(Entry(findings.BLIND, f"no rule could judge anything: retention has left nothing in {where}"))
    return entries
