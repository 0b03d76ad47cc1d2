"""The intake: each record becomes mentions, and each mention goes to its transaction or to the records without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from txbridge.core.names import Names
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.transaction import SetAside
from txbridge_audit.protocol import client_records, worker_records
from txbridge_audit.protocol.mentions import AsideMention, HalfMention, Mention, UnreadableMention
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.protocol.worker_records import AuditCheckpoint
from txbridge_audit.report.sums import OddRecords


class Intake:
    """Takes records topic by topic. Those of the discard topic must come before those of END."""

    def __init__(self, names: Names, put: Callable[[Mention], None]) -> None:
        self._names, self._put = names, put
        self.odd = OddRecords(names)
        self.asides = SetAside(names)
        #: The last checkpoint of each partition.
        self.checkpoints: dict[int, AuditCheckpoint] = {}
        #: Real topics that well-formed half messages name.
        self.named: set[str] = set()

    def take_halves(self, records: Iterable[KafkaRecord]) -> None:
        for record in records:
            half = client_records.half_mention(record)
            self._put(half)
            if half.fault is not None:
                self.odd.add(half)
            elif half.parts is not None:
                self.named.update(part.topic for part in half.parts)
            else:
                self.named.add(str(half.real_topic))

    def take_offsets(self, records: Iterable[KafkaRecord]) -> None:
        """Records of OFFSET. Raises CouldNotAuditError when one of a worker has a version that is not known."""
        ours = f"{self._names.half}@".encode()
        for record in records:
            if (record.key or b"").startswith(ours) and (version := worker_records.unknown_version(record)):
                raise unknown_version(record.topic, record.partition, record.offset, version)
            told = worker_records.offset_mention(record, self._names)
            if isinstance(told, AuditCheckpoint):
                self.checkpoints[record.partition] = told
            elif told is not None:
                self._put(told)

    def take_discards(self, records: Iterable[KafkaRecord]) -> None:
        for record in records:
            told = worker_records.discard_mention(record)
            if isinstance(told, AsideMention):
                self.asides.add(told)
                self.odd.add(told)
                if told.source_topic == self._names.half:
                    self._put(told)
            elif told is not None:
                self._put(told)

    def take_others(self, records: Iterable[KafkaRecord], counts: Mapping[str, int], *, exactly: bool) -> None:
        """Records of END, OP, real topics (`counts`: how many partitions each has) and check topics.

        `exactly` is that of `client_records.end_mentions`. Raises CouldNotAuditError when a record of OP has a version
        that is not known.
        """
        names = self._names
        for record in records:
            found: Iterable[Mention | None] | UnreadableMention
            if record.topic == names.end:
                found = client_records.end_mentions(record, exactly=exactly)
                if not isinstance(found, UnreadableMention):
                    found = self.asides.counting(found)
            elif record.topic == names.op:
                found = worker_records.outcome_mentions(record)
                if isinstance(found, UnreadableMention) and found.version is not None:
                    raise unknown_version(record.topic, record.partition, record.offset, found.version)
            elif record.topic in counts:
                found = [worker_records.copy_mention(record, counts[record.topic])]
            else:
                found = [worker_records.check_mention(record)]
            if isinstance(found, UnreadableMention):
                self.odd.add(found)
                continue
            for mention in found:
                if mention is not None:
                    self._put(mention)


def unknown_version(topic: str, partition: int, offset: int, version: str) -> CouldNotAuditError:
    """The error for a record that only workers write, of another version of the protocol."""
    return CouldNotAuditError(
        f"{topic}/{partition}@{offset} has TXB_V={version[:20]}, which this audit does not know: a newer worker wrote "
        "it, and its meaning for the verdict is not known; use the audit of that version",
    )


def identities_of(records: Iterable[KafkaRecord]) -> set[tuple[int, int, str]]:
    """Half partition, offset and id of the half messages in these records of HALF."""
    return {_identity(half) for half in map(client_records.half_mention, records) if half.id is not None}


def _identity(half: HalfMention) -> tuple[int, int, str]:
    return half.partition, half.half, str(half.id)


def named_identities_of(records: Iterable[KafkaRecord]) -> set[tuple[int, int, str]]:
    """Half partition, offset and id of the half messages that these records of END name."""
    return {
        (end.partition, end.half, end.id)
        for found in map(client_records.end_mentions, records)
        if not isinstance(found, UnreadableMention)
        for end in found
        if end.half is not None
    }
