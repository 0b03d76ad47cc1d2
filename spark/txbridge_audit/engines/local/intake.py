"""The intake: each record becomes mentions, and each mention goes to its transaction or to the records without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.reader import read
from txbridge_audit.engines import records
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol.mentions import AsideMention, HalfMention, Mention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.relay_records import Numbering, ProgressStep, numbered
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import OddRecords

Spans = Mapping[TopicPartition, Range]


class LocalIntake:
    """Takes records topic by topic (see engines/gather.py), and puts each mention into a store.

    Raises CouldNotAuditError when a record of a worker has a version that is not known.
    """

    def __init__(self, settings: KafkaSettings, names: Names, put: Callable[[Mention], None]) -> None:
        self._settings, self._names, self._put = settings, names, put
        self.odd = OddRecords(names)
        self.asides = SetAside(names)
        #: The last checkpoint of each partition.
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        #: Real topics that well-formed half messages, and relays, name.
        self.named: set[str] = set()
        self.relays: dict[int, Numbering] = {}

    def _read(self, spans: Spans, *, committed: bool = True, may_vanish: bool = False) -> Iterable[KafkaRecord]:
        return read(self._settings, spans, committed=committed, may_vanish=may_vanish)

    def take_halves(self, spans: Spans) -> None:
        for half in records.half_mentions(self._read(spans, committed=False)):
            self._take_mention(half)
            self.named.update(records.real_topics_of(half))

    def take_offsets(self, spans: Spans) -> None:
        self._take_all(records.offset_mentions(self._names, self.checkpoints, self._read(spans)))

    def take_progress(self, spans: Spans) -> None:
        steps: list[ProgressStep] = []
        self._take_all(records.progress_mentions(steps, self.named, self._read(spans)))
        for step in steps:
            self.relays |= numbered(self.relays, step)

    def take_discards(self, spans: Spans) -> None:
        self._take_all(records.discard_mentions(self._read(spans)))

    def take_others(self, spans: Spans, counts: Mapping[str, int], *, exactly: bool) -> None:
        self._take_all(records.other_mentions(self._names, counts, self.asides, exactly, self._read(spans)))

    def take_checks(self, spans: Spans) -> None:
        self._take_all(records.check_mentions(self._read(spans, may_vanish=True)))

    def _take_all(self, found: Iterable[Mention]) -> None:
        for mention in found:
            self._take_mention(mention)

    def _take_mention(self, mention: Mention) -> None:
        if isinstance(mention, UnreadableMention):
            records.refuse_unknown_version(mention)
            self.odd.add_record(mention)
            return
        if isinstance(mention, AsideMention):
            self.asides.add_record(mention)
            self.odd.add_record(mention)
            if mention.source_topic != self._names.half:
                return
        elif isinstance(mention, HalfMention) and mention.fault is not None:
            self.odd.add_record(mention)
        self._put(mention)
