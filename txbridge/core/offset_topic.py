"""What OFFSET says of one partition: the checkpoint and the parked entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint, offset_headers
from txbridge.core.half_entry import HalfEntry
from txbridge.core.headers import MalformedRecordError, NewerVersionError, OurHeaders, whole_number
from txbridge.core.names import Headers, Names
from txbridge.core.parked_table import ParkedTable
from txbridge.core.states import TransactionState

#: From the drafting of a check to its append it takes less, also when the process is stopped for a minute in between. A
#: due time that is further away comes from another interval.
_LONGEST_DRAFT_MS = 120_000
#: What a worker writes: a million records need not be looked at header by header.
_OURS = offset_headers()


class ParkedEntries(Mapping[int, HalfEntry]):
    """Parked entries by half offset, those that are pending and nothing else in columns."""

    def __init__(self, entries: Iterable[HalfEntry] = ()) -> None:
        self._plain = ParkedTable()
        self._others: dict[int, HalfEntry] = {}
        for entry in entries:
            self.take(entry.offset, entry.encode(0))

    def __getitem__(self, half_offset: int) -> HalfEntry:
        row = self._plain.get(half_offset)
        return self._others[half_offset] if row is None else row

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self._others or (isinstance(half_offset, int) and half_offset in self._plain)

    def __iter__(self) -> Iterator[int]:
        yield from self._plain.offsets()
        yield from self._others

    def __len__(self) -> int:
        return len(self._plain) + len(self._others)

    def take(self, half_offset: int, value: bytes | None, next_check: int = 0) -> None:
        """Fold one record; None is a tombstone. Raises MalformedRecordError.

        `next_check` (ms): not earlier is the next check due when this record was written for a check. Not when
        that is very much later: then the interval was another one when the record was written.
        """
        entry = None if value is None else HalfEntry.decode(half_offset, value)
        if (
            entry is not None
            and entry.next_due < next_check <= entry.next_due + _LONGEST_DRAFT_MS
            and _tells_of_check(entry)
        ):
            entry = entry._replace(next_due=next_check)
        if entry is not None and entry.is_plain:
            self._others.pop(half_offset, None)
            self._plain.put(entry)
            return
        self._plain.remove(half_offset)
        if entry is None:
            self._others.pop(half_offset, None)
        else:
            self._others[half_offset] = entry

    def release(self) -> tuple[ParkedTable, list[HalfEntry]]:
        """Hand over what is here, the pending ones as a sorted table: a million need not be there twice."""
        plain, others = self._plain, self._others
        self._plain, self._others = ParkedTable(), {}
        plain.sort()
        return plain, list(others.values())


class OffsetTopic:
    """What OFFSET says of one partition, folded record by record.

    `policy`: of whoever goes on with it. An interval between two checks then counts from when the first was appended,
    in one Kafka transaction with its parked entry, and not from when that transaction began.
    """

    def __init__(self, topic_names: Names, partition: int, policy: CheckPolicy | None = None) -> None:
        self.partition = partition
        self._policy = policy
        self._checkpoint_key = topic_names.checkpoint_key(partition)
        self._parked_prefix = self._checkpoint_key + b"/"
        self.checkpoint: Checkpoint | None = None
        #: Where the last checkpoint stands in OFFSET, if `take` was told.
        self.checkpoint_offset = -1
        self.parked = ParkedEntries()
        #: OFFSET offset up to which it is folded; kept by whoever reads.
        self.position = 0
        #: By key, offset and text of the last record when that one speaks a later version.
        self._newer: dict[bytes, tuple[int, str]] = {}

    @property
    def newer(self) -> tuple[int, str] | None:
        """OFFSET offset of, and what is wrong with, the first record of a later version that still counts."""
        return min(self._newer.values(), default=None)

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        offset: int = -1,
        appended: int | None = None,
    ) -> None:
        """Fold one record. Raises MalformedRecordError, and folds nothing, for one that no worker of ours writes.

        `appended`: its append time (ms).
        Of a later version (NewerVersionError) it is remembered as such, until a record that can be read has its key.
        """
        try:
            self._take(key, value, headers, offset, appended)
        except NewerVersionError as error:
            self._newer[key or b""] = (offset, str(error))
            raise
        if self._newer:
            self._newer.pop(key or b"", None)

    def _take(
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
        self.parked.take(half_offset, value, next_check)

    def _half_offset(self, key: bytes) -> int:
        """Which half message the key of a parked entry names."""
        digits = key.removeprefix(self._parked_prefix)
        if len(digits) == len(key) or not digits.isdigit():
            raise MalformedRecordError(f"not a key of this partition: {key[:80]!r}")
        # Bounded before int(), which refuses thousands of digits with another exception.
        return whole_number(digits.decode(), "half offset of the key")


def _tells_of_check(entry: HalfEntry) -> bool:
    """Whether it was written together with a check: then it is pending, and its next check was not put off since."""
    return entry.state is TransactionState.PENDING and entry.error is None and entry.checks > 0
