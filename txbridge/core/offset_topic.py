"""The state of one partition in OFFSET: the checkpoint and the parked entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint, offset_headers
from txbridge.core.half_entry import HalfEntry
from txbridge.core.headers import MalformedRecordError, NewerVersionError, OurHeaders, whole_number
from txbridge.core.names import Headers, Names
from txbridge.core.parked_table import ParkedTable
from txbridge.core.states import TransactionState

#: Longest time from the draft of a check to its append, even if the process is stopped for a minute in between. A due
#: time that is further away comes from another interval.
_LONGEST_DRAFT_MS = 120_000
#: Headers that a worker writes. So a million records need not be looked at header by header.
_OURS = offset_headers()


class ParkedEntries(Mapping[int, HalfEntry]):
    """Parked entries by half offset. Plain ones (`HalfEntry.is_plain`) are in columns."""

    def __init__(self, entries: Iterable[HalfEntry] = ()) -> None:
        self._plain = ParkedTable()
        self._others: dict[int, HalfEntry] = {}
        for entry in entries:
            self.take_entry(entry.offset, entry.encode(0))

    def __getitem__(self, half_offset: int) -> HalfEntry:
        row = self._plain.get_row(half_offset)
        return self._others[half_offset] if row is None else row

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self._others or (isinstance(half_offset, int) and half_offset in self._plain)

    def __iter__(self) -> Iterator[int]:
        yield from self._plain.offsets()
        yield from self._others

    def __len__(self) -> int:
        return len(self._plain) + len(self._others)

    def take_entry(self, half_offset: int, value: bytes | None, next_check: int = 0) -> None:
        """Fold one record; None is a tombstone. Raises MalformedRecordError.

        `next_check` (ms): the next check is not due earlier if this record was written for a check. It is ignored if it
        is very much later than the record says. Then the record was written with another interval.
        """
        entry = None if value is None else HalfEntry.decode(half_offset, value)
        if (
            entry is not None
            and entry.next_due < next_check <= entry.next_due + _LONGEST_DRAFT_MS
            # It was written with a check, and the next one was not put off since.
            and (entry.state is TransactionState.PENDING and entry.error is None and entry.checks > 0)
        ):
            entry = entry._replace(next_due=next_check)
        if entry is not None and entry.is_plain:
            self._others.pop(half_offset, None)
            self._plain.put_row(entry)
            return
        self._plain.remove_row(half_offset)
        if entry is None:
            self._others.pop(half_offset, None)
        else:
            self._others[half_offset] = entry

    def release(self) -> tuple[ParkedTable, list[HalfEntry]]:
        """Hand over all entries, the plain ones as a sorted table. So a million of them are not in memory twice."""
        plain, others = self._plain, self._others
        self._plain, self._others = ParkedTable(), {}
        plain.sort_rows()
        return plain, list(others.values())


class OffsetTopic:
    """The state of one partition in OFFSET, folded record by record.

    `policy`: that of the process which goes on with the state. With it, the interval after a check counts from the
    append time of the check's parked entry, which is in the same Kafka transaction. Without it, it counts from the
    begin of that transaction.
    """

    def __init__(self, topic_names: Names, partition: int, policy: CheckPolicy | None = None) -> None:
        self.partition = partition
        self._policy = policy
        self._checkpoint_key = topic_names.checkpoint_key(partition)
        self._parked_prefix = self._checkpoint_key + b"/"
        self.checkpoint: Checkpoint | None = None
        #: OFFSET offset of the last checkpoint, if `take_record` was given it.
        self.checkpoint_offset = -1
        self.parked = ParkedEntries()
        #: OFFSET offset up to which it is folded. The reader keeps it.
        self.position = 0
        #: By key: offset and error of the last record, if that has a later protocol version.
        self._newer: dict[bytes, tuple[int, str]] = {}

    @property
    def newer(self) -> tuple[int, str] | None:
        """OFFSET offset and error of the first record of a later version that still counts."""
        return min(self._newer.values(), default=None)

    def take_record(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        offset: int = -1,
        appended: int | None = None,
    ) -> None:
        """Fold one record. Raises MalformedRecordError, and folds nothing, for a record that no worker of ours writes.

        `appended`: its append time (ms). A record of a later version (NewerVersionError) is remembered until a readable
        record with the same key comes.
        """
        try:
            self._take_record(key, value, headers, offset, appended)
        except NewerVersionError as error:
            self._newer[key or b""] = (offset, str(error))
            raise
        if self._newer:
            self._newer.pop(key or b"", None)

    def _take_record(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, offset: int, appended: int | None
    ) -> None:
        if key == self._checkpoint_key:
            OurHeaders(headers).require_version("checkpoint")
            if value is None:
                raise MalformedRecordError("a checkpoint without a value")
            self.checkpoint, self.checkpoint_offset = Checkpoint.decode(value), offset
            return
        half_offset = self._half_offset(key or b"")
        if headers != _OURS:
            OurHeaders(headers).require_version("parked entry")
        next_check = 0 if self._policy is None or appended is None else self._policy.next_check(appended)
        self.parked.take_entry(half_offset, value, next_check)

    def _half_offset(self, key: bytes) -> int:
        """The half offset in the key of a parked entry."""
        digits = key.removeprefix(self._parked_prefix)
        if len(digits) == len(key) or not digits.isdigit():
            raise MalformedRecordError(f"not a key of this partition: {key[:80]!r}")
        # Bounded before int(), which refuses thousands of digits with another exception.
        return whole_number(digits.decode(), "half offset of the key")
