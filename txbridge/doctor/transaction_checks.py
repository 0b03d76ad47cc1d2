"""Findings about open Kafka transactions in the internal topics.

Readers of committed records stop at the last stable offset, which is the first offset of the oldest open transaction.
A transaction is open for too long if this offset stays where it is for that time. The timestamps of the records would
tell at once, but by the clock of the partition's leader, which may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public there, but re-exported without saying so

from txbridge.deadline import Deadline
from txbridge.doctor.cluster_view import RETRY_S, ClusterView
from txbridge.doctor.finding import Check, Finding, ok, problem, unknown, warning
from txbridge.kafka.admin import REQUEST_TIMEOUT_S
from txbridge.text import duration

#: The coordinator aborts a transaction after its time-out. It checks every 10 s
#: (transaction.abort.timed.out.transaction.cleanup.interval.ms).
_ABORTED_AFTER_MS = 10_000

_Offsets = Mapping[tuple[str, int], int]


def transactions(view: ClusterView) -> Iterator[Finding]:
    """Findings about transactions that are open for longer than a worker's can be, and about any in END or HALF.

    Returns at once if none is open. Otherwise it waits until they have ended, as long as a worker's may be open.
    """
    patience = view.settings.commit_timeout + _ABORTED_AFTER_MS
    names = view.names
    try:
        latest = _read_ends(view, IsolationLevel.READ_UNCOMMITTED)
        stable = _read_ends(view, IsolationLevel.READ_COMMITTED)
        begun = {where: offset for where, offset in stable.items() if offset < latest[where]}
        # HALF is read uncommitted: an open transaction blocks no reader.
        lasting = {where: offset for where, offset in begun.items() if where[0] != names.half}
        deadline = Deadline(patience / 1000)
        while lasting and not deadline.is_over:
            time.sleep(RETRY_S)
            stable = _read_ends(view, IsolationLevel.READ_COMMITTED)
            lasting = {where: offset for where, offset in lasting.items() if stable.get(where) == offset}
    except KafkaException as failure:
        yield unknown(
            Check.TRANSACTIONS,
            f"the offsets of the internal topics could not be read: {failure.args[0].str()}",
            "see the findings about topics, replication and rights",
        )
        return
    never = {
        names.end: "what it aborts decides nothing, and the decisions behind it wait",
        names.half: "a half message that it aborts stays a half message, is checked, and can be committed",
    }
    for (topic, partition), offset in begun.items():
        found = f"{topic}[{partition}] has an open Kafka transaction at offset {offset}"
        if topic in never:
            yield warning(
                Check.TRANSACTIONS,
                f"{found}, where none may be: {never[topic]}",
                "let that application send with a producer without transactional.id",
            )
        if (topic, partition) in lasting:
            yield problem(
                Check.TRANSACTIONS,
                f"{found} for more than {duration(patience)}: nobody reads beyond it",
                "stop the process that keeps it open. If there is none, it hangs: kafka-transactions.sh find-hanging "
                "and abort; see docs/incidents.md",
            )
    if view.partitions and not lasting and not any(topic in never for topic, _ in begun):
        yield ok(Check.TRANSACTIONS, "no Kafka transaction hangs in the internal topics")


def _read_ends(view: ClusterView, isolation: IsolationLevel) -> _Offsets:
    """The end of each partition with a leader, as readers of this isolation see it. Raises KafkaException."""
    wanted = {
        TopicPartition(topic, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for topic in view.names.internal
        if (described := view.described.get(topic))
        for partition, place in enumerate(described.places)
        if place.leader >= 0
    }
    if not wanted:
        return {}
    answers = view.cluster.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return {(one.topic, one.partition): answer.result().offset for one, answer in answers.items()}
