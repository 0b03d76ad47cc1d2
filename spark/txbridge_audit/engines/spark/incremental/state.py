"""The state that one step leaves to the next: its end offsets, and facts not to be read again. Plain data, as JSON.

The rows that go with it (working_set.py) are Parquet files beside it. Both are in a folder of the ledger (store.py).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txbridge_audit.cluster.seen import Edges, Seen
from txbridge_audit.engines.spark.judge.loss_evidence import Anchor
from txbridge_audit.engines.spark.judge.summary import Counts, Key, Listed
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.entry import Entry, Place

#: Version of the JSON form. It is raised when an older audit could misread the form.
FORMAT = 4
#: Anchors kept of one half partition in one partition of a real topic. Retention of the real topic removes the oldest
#: one. Of 64 that are spread over its whole length the next one is not much younger. An anchor costs 100 bytes.
ANCHORS = 64


@dataclass(frozen=True, slots=True)
class Archive:
    """Rows of the transactions that one step has closed, with their lowest and highest half offset by partition."""

    step: int
    lowest: Mapping[int, int]
    highest: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AuditState:
    """Everything that is known after a step."""

    #: Name of this sequence of steps. Alarms carry it.
    audit: str
    namespace: str
    #: Number of the last step, from 1.
    step: int = 0
    #: Offset up to which each partition was read.
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Kafka's id of each topic that was read.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[int, AuditCheckpoint] = field(default_factory=dict)
    #: See gather.Seen.
    edges: Mapping[int, Edges] = field(default_factory=dict)
    checks_since: Mapping[str, int] = field(default_factory=dict)
    #: Real topics that half messages name.
    named: frozenset[str] = frozenset()
    #: Sums over the closed transactions.
    closed: Counts = field(default_factory=Counts)
    #: Visible records without a half message, by kind; they are judged once.
    strays: Mapping[str, int] = field(default_factory=dict)
    stray_entries: tuple[Entry, ...] = ()
    #: Violations and findings of closed transactions, the first ones of each kind.
    listed: tuple[Listed, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    archives: tuple[Archive, ...] = ()
    #: Kind and half coordinates of the violations that alarms were raised for. Strays are left out: they are judged
    #: once.
    raised: frozenset[tuple[str, Key]] = frozenset()
    #: Offsets of the violations topic below which no later step writes an alarm.
    alarms: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Time (ms) at which closed transactions were last written to the ledger.
    ledger_at: int = 0

    @property
    def seen(self) -> Seen:
        """The facts that the next step needs to read only newer records."""
        return Seen(self.positions, self.checkpoints, self.edges, self.checks_since, self.named)

    def to_json(self) -> str:
        """The state as one line of JSON."""
        return json.dumps(
            {
                "format": FORMAT,
                "audit": self.audit,
                "namespace": self.namespace,
                "step": self.step,
                "positions": _nested(self.positions),
                "topic_ids": dict(self.topic_ids),
                "checkpoints": {p: dataclasses.astuple(seen) for p, seen in self.checkpoints.items()},
                "edges": dict(self.edges),
                "checks_since": dict(self.checks_since),
                "named": sorted(self.named),
                "closed": dataclasses.asdict(self.closed),
                "strays": dict(self.strays),
                "stray_entries": [dataclasses.asdict(entry) for entry in self.stray_entries],
                "listed": [[one.key, one.closed, dataclasses.asdict(one.entry)] for one in self.listed],
                "anchors": [dataclasses.astuple(anchor) for anchor in self.anchors],
                "archives": [[a.step, dict(a.lowest), dict(a.highest)] for a in self.archives],
                "raised": sorted([kind, *key] for kind, key in self.raised),
                "alarms": _nested(self.alarms),
                "ledger_at": self.ledger_at,
            },
        )

    @classmethod
    def from_json(cls, text: str) -> AuditState:
        """The state from its JSON. Raises CouldNotAuditError for a form that this audit does not know."""
        told = json.loads(text)
        if told["format"] != FORMAT:
            raise CouldNotAuditError(
                f"the state of the ledger has the form {told['format']}, which this audit does not know: "
                "use the audit that wrote it, or begin a new ledger",
            )
        return cls(
            audit=told["audit"],
            namespace=told["namespace"],
            step=told["step"],
            positions=_flat(told["positions"]),
            topic_ids=told["topic_ids"],
            checkpoints={int(p): AuditCheckpoint(*seen) for p, seen in told["checkpoints"].items()},
            edges={int(p): tuple(edges) for p, edges in told["edges"].items()},
            checks_since=told["checks_since"],
            named=frozenset(told["named"]),
            closed=Counts(**told["closed"]),
            strays=told["strays"],
            stray_entries=tuple(_entry(entry) for entry in told["stray_entries"]),
            listed=tuple(Listed(tuple(key), closed, _entry(entry)) for key, closed, entry in told["listed"]),
            anchors=tuple(Anchor(*anchor) for anchor in told["anchors"]),
            archives=tuple(Archive(n, _by_partition(a), _by_partition(b)) for n, a, b in told["archives"]),
            raised=frozenset((kind, (partition, half)) for kind, partition, half in told["raised"]),
            alarms=_flat(told["alarms"]),
            ledger_at=told["ledger_at"],
        )


def thinned(anchors: Iterable[Anchor], starts: Mapping[TopicPartition, int]) -> tuple[Anchor, ...]:
    """Those whose record is still in its real topic (`starts`: log starts), at most ANCHORS for one place."""
    by_place: dict[tuple[int, str, int], list[Anchor]] = {}
    for anchor in sorted(set(anchors)):
        place = (anchor.real_topic, anchor.copy_partition)
        if place in starts and anchor.copy_at >= starts[place]:
            by_place.setdefault((anchor.partition, *place), []).append(anchor)
    # Every second one is dropped, never the oldest, which proves the most.
    return tuple(one for kept in by_place.values() for one in (kept[::2] if len(kept) > ANCHORS else kept))


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {(topic, int(partition)): offset for topic, of in nested.items() for partition, offset in of.items()}


def _by_partition(told: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): value for partition, value in told.items()}


def _entry(told: dict[str, Any]) -> Entry:
    return Entry(**(told | {"evidence": tuple(Place(**place) for place in told["evidence"])}))
