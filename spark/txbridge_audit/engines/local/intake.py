"""The intake: each record becomes mentions, and each mention goes to its transaction or to the records without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from txbridge.core.names import Names
from txbridge_audit.cluster.cuts import Range
from txbridge_audit.cluster.kafka_config import KafkaSettings
from txbridge_audit.cluster.reader import read
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import TopicPartition
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol import client_records, worker_records
from txbridge_audit.protocol.mentions import AsideMention, Mention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import OddRecords

Spans = Mapping[TopicPartition, Range]


class LocalIntake:
    """Takes records topic by topic (see engines/gather.py), and puts each mention into a store."""

    def __init__(self, settings: KafkaSettings, names: Names, put: Callable[[Mention], None]) -> None:
        self._settings, self._names, self._put = settings, names, put
        self.odd = OddRecords(names)
        self.asides = SetAside(names)
        #: The last checkpoint of each partition.
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        #: Real topics that well-formed half messages name.
        self.named: set[str] = set()

    def _read(self, spans: Spans, *, committed: bool = True, may_vanish: bool = False) -> Iterable[KafkaRecord]:
        return read(self._settings, spans, committed=committed, may_vanish=may_vanish)

    def take_halves(self, spans: Spans) -> None:
        for record in self._read(spans, committed=False):
            half = client_records.half_mention(record)
            self._put(half)
            if half.fault is not None:
                self.odd.add_record(half)
            elif half.parts is not None:
                self.named.update(part.topic for part in half.parts)
            else:
                self.named.add(str(half.real_topic))

    def take_offsets(self, spans: Spans) -> None:
        """Records of OFFSET. Raises CouldNotAuditError when one of a worker has a version that is not known."""
        ours = f"{self._names.half}@".encode()
        for record in self._read(spans):
            if (record.key or b"").startswith(ours) and (version := worker_records.unknown_version(record)):
                raise unknown_version(record.topic, record.partition, record.offset, version)
            told = worker_records.offset_mention(record, self._names)
            if isinstance(told, AuditCheckpoint):
                self.checkpoints[record.partition] = told
            elif told is not None:
                self._put(told)

    def take_discards(self, spans: Spans) -> None:
        for record in self._read(spans):
            told = worker_records.discard_mention(record)
            if isinstance(told, AsideMention):
                self.asides.add_record(told)
                self.odd.add_record(told)
                if told.source_topic == self._names.half:
                    self._put(told)
            elif told is not None:
                self._put(told)

    def take_others(self, spans: Spans, counts: Mapping[str, int], *, exactly: bool) -> None:
        """Records of END, OP and real topics.

        Raises CouldNotAuditError when a record of OP has a version that is not known.
        """
        names = self._names
        for record in self._read(spans):
            found: Iterable[Mention | None] | UnreadableMention
            if record.topic == names.end:
                found = client_records.end_mentions(record, exactly=exactly)
                if not isinstance(found, UnreadableMention):
                    found = self.asides.entries_that_count(found)
            elif record.topic == names.op:
                found = worker_records.outcome_mentions(record)
                if isinstance(found, UnreadableMention) and found.version is not None:
                    raise unknown_version(record.topic, record.partition, record.offset, found.version)
            elif record.has_headers:
                found = [worker_records.copy_mention(record, counts[record.topic])]
            else:
                # It may claim a half message. So it is not passed over without a word.
                fault = "the name of a header is not UTF-8, so that it cannot be read here"
                found = UnreadableMention(record.partition, None, record.offset, record.topic, fault)
            if isinstance(found, UnreadableMention):
                self.odd.add_record(found)
            else:
                self._put_all(found)

    def take_checks(self, spans: Spans) -> None:
        self._put_all(map(worker_records.check_mention, self._read(spans, may_vanish=True)))

    def _put_all(self, found: Iterable[Mention | None]) -> None:
        for mention in found:
            if mention is not None:
                self._put(mention)


def unknown_version(topic: str, partition: int, offset: int, version: str) -> CouldNotAuditError:
    """The error for a record that only workers write, of another version of the protocol."""
    return CouldNotAuditError(
        f"{topic}/{partition}@{offset} has TXB_V={version[:20]}, which this audit does not know: a newer worker wrote "
        "it, and its meaning for the verdict is not known; use the audit of that version",
    )
