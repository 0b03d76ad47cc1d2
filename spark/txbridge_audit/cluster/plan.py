"""The parameters of one audit, whatever engine makes it: from options, and the offsets from which it has to read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from txbridge.core.names import Names, is_topic
from txbridge.text import iso_time
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.past import PastAudit
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import CLOCK_MARGIN_MS, AuditLimits, AuditSelection, TopicPartition

#: Called with a short text for each phase.
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of an audit."""

    #: Start of the audit, ms.
    now: int
    limits: AuditLimits
    selection: AuditSelection
    real_topics: frozenset[str]
    settle_timeout: float
    #: An earlier audit that is made again at its cuts, and when that begins, ms.
    past: PastAudit | None = None
    again_at: int = 0

    @property
    def read_at(self) -> int:
        """When the topics are read, ms."""
        return self.again_at or self.now


def selection_of(since: str | None, until: str | None, topics: Sequence[str]) -> AuditSelection:
    """The selection from options of a command line. Raises CouldNotAuditError when they are wrong."""
    for topic in topics:
        if not is_topic(topic) or Names.is_forbidden(topic):
            raise CouldNotAuditError(f"{topic!r} cannot be a real topic: check --only-topic")
    chosen = AuditSelection(_parsed(since, "--since"), _parsed(until, "--until"), frozenset(topics))
    if chosen.since is not None and chosen.until is not None and chosen.until <= chosen.since:
        raise CouldNotAuditError("--until must be later than --since")
    return chosen


def _parsed(text: str | None, option: str) -> int | None:
    """A time of ISO 8601 as ms since 1970; without an offset it is UTC."""
    if text is None:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise CouldNotAuditError(
            f"{option} {text!r} is not a time: write it as 2026-11-21, 2026-11-21T08:30 or 2026-11-21T08:30:00+01:00"
        ) from error
    return round((time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def begin(
    cluster: AuditedCluster,
    selection: AuditSelection,
    half: Sequence[TopicPartition],
    others: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets from which internal topics are read: log starts; HALF, and END and OP (`others`), from the range of time.

    Records of END and OP about a transaction come after its birth. The clocks of two brokers may differ by
    CLOCK_MARGIN_MS.
    Raises CouldNotAuditError when retention has removed half messages of the range.
    """
    if selection.since is None:
        return dict(starts)
    shortened = [key for key in half if starts[key] > 0]
    for (topic, partition), oldest in cluster.first_timestamps(shortened).items():
        if oldest is None or oldest > selection.since:
            left = "nothing" if oldest is None else f"nothing before {iso_time(oldest)}"
            raise CouldNotAuditError(
                f"retention has left {left} in {topic}/{partition}: what was prepared since "
                f"{iso_time(selection.since)} is gone in part, and so would be the verdict; give a later --since, or "
                "none to audit what is left"
            )
    found = cluster.offsets_at([*half, *others], selection.since - CLOCK_MARGIN_MS)
    return {**starts, **{key: max(starts[key], offset) for key, offset in found.items()}}
