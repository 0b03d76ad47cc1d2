"""Findings about open Kafka transactions in the internal topics.

Readers of committed records stop at the last stable offset, which is the first offset of the oldest open transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public there, but re-exported without saying so

from txbridge.doctor.cluster_view import ClusterView, internal_topics
from txbridge.doctor.finding import Check, Finding, ok, problem, unknown, warning
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.text import duration

#: The coordinator aborts a transaction after its time-out. It checks every 10 s
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
_ABORTED_AFTER_MS = 10_000
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def transactions(view: ClusterView, now: int) -> Iterator[Finding]:
    """Findings about transactions that are open for longer than a worker's can be, and about any in END or HALF."""
    patience = view.settings.commit_timeout + _ABORTED_AFTER_MS
    try:
        latest = _read_offsets(view, _LATEST)
        stable = _read_offsets(view, _LATEST, IsolationLevel.READ_COMMITTED)
        # First offset of the records that are young enough, or -1.
        young = _read_offsets(view, OffsetSpec.for_timestamp(max(0, now - patience)))
    except KafkaException as failure:
        yield unknown(
            Check.TRANSACTIONS,
            f"the offsets of the internal topics could not be read: {failure.args[0].str()}",
            "see the findings about topics, replication and rights",
        )
        return
    names = view.names
    never = {
        names.end: "what it aborts decides nothing, and the decisions behind it wait",
        names.half: "a half message that it aborts stays a half message, is checked, and can be committed",
    }
    fine = True
    for (topic, partition), offset in stable.items():
        if offset >= latest[topic, partition]:
            continue
        where = f"{topic}[{partition}] has an open Kafka transaction at offset {offset}"
        if topic in never:
            fine = False
            yield warning(
                Check.TRANSACTIONS,
                f"{where}, where none may be: {never[topic]}",
                "let that application send with a producer without transactional.id",
            )
        # HALF is read uncommitted: an open transaction blocks no reader.
        if topic != names.half and not 0 <= young[topic, partition] <= offset:
            fine = False
            yield problem(
                Check.TRANSACTIONS,
                f"{where} for more than {duration(patience)}: nobody reads beyond it",
                "stop the process that keeps it open. If there is none, it hangs: kafka-transactions.sh find-hanging "
                "and abort; see docs/incidents.md",
            )
    if fine and view.partitions:
        yield ok(Check.TRANSACTIONS, "no Kafka transaction hangs in the internal topics")


def _read_offsets(
    view: ClusterView, spec: Any, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> Mapping[tuple[str, int], int]:
    """The offset of each partition with a leader. Raises KafkaException."""
    wanted = {
        TopicPartition(topic, partition): spec
        for topic in internal_topics(view.names)
        if (described := view.described.get(topic))
        for partition, place in enumerate(described.places)
        if place.leader >= 0
    }
    if not wanted:
        return {}
    answers = view.cluster.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return {(one.topic, one.partition): answer.result().offset for one, answer in answers.items()}
