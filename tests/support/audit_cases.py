"""Transactions with a known fate, built by docs/protocol.md without txbridge's code, except for its names.

`CASES` plants one transaction (or none) each into a `Log`, which the unit tests keep in memory and the integration test
writes to Kafka. The expected results were written by hand.
"""

from __future__ import annotations

import itertools
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.support.message_frames import Framed, write
from txbridge.core.names import Names

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

#: Partitions of HALF: in the second one the low watermark has passed every half message of the cases.
PLAIN, PASSED = 0, 1
PARTITIONS = 2

#: Real topics: an ordinary one, one with compaction, one that does not exist, and the target of forwarded messages.
ORDERS, COMPACTED, ABSENT, FORWARDED = "orders", "orders.compacted", "orders.absent", "orders.forwarded"

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Record:
    """A record to write. `offset` is known once it is written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: Timestamp that the writer sets (ms). None: the writer sets none.
    dated: int | None = None
    at: list[int] = field(default_factory=list, compare=False)
    #: Timestamp of the stored record (ms), known once it is written.
    stamped: list[int] = field(default_factory=list, compare=False)

    @property
    def offset(self) -> int:
        return self.at[0]


@dataclass(frozen=True)
class Half:
    """A half message in the log."""

    partition: int
    offset: int
    id: str
    group: str
    topic: str
    #: Timestamp of the delivered record.
    dated: int | None = None
    key: bytes = b"key"

    def entry(self, decision: int, *, transaction_id: str | None = None, rest: str = "") -> str:
        return f"{self.offset},{transaction_id or self.id},{decision}{rest}"


def headers(**values: str | None) -> Headers:
    return [(name, None if value is None else value.encode()) for name, value in values.items()]


class Log(ABC):
    """All records of all cases, written with the terms of the protocol."""

    #: A recent time (ms): retention does not remove records with this timestamp as too old.
    recently: int

    def __init__(self, names: Names) -> None:
        self.names = names
        #: Next END offset of each partition.
        self.end_position = dict.fromkeys(range(PARTITIONS), 0)
        self._owner = itertools.count(1)

    def real(self, topic: str) -> str:
        """The real name of one of the cases' topics in this log."""
        return topic

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write a record outside of Kafka transactions."""

    @abstractmethod
    def transaction(self, *records: Record) -> None:
        """Write all records in one Kafka transaction."""

    @abstractmethod
    def aborted(self, *records: Record) -> None:
        """Write the records in a Kafka transaction that is aborted. No reader may see them."""

    def half(
        self,
        topic: str = ORDERS,
        partition: int = PLAIN,
        group: str = "billing",
        key: bytes = b"key",
        **changed: str | None,
    ) -> Half:
        topic, transaction_id = self.real(topic), secrets.token_hex(16).upper()
        ours = {
            "TXB_V": "1",
            "TRAN_MSG": "true",
            "REAL_TOPIC": topic,
            "PGROUP": group,
            "UNIQ_KEY": transaction_id,
        } | changed
        record = Record(
            self.names.half,
            partition,
            key,
            b"\xff\x00 the user's bytes",
            [("trace", b"1"), ("trace", None), *headers(**ours)],
        )
        self.write(record)
        given = changed.get("BORN_TIMESTAMP") or ""
        dated = int(given) if given.isdigit() and int(given) else record.stamped[0]
        return Half(partition, record.offset, transaction_id, group, topic, dated, key)

    def several(self, *topics: str, partition: int = PLAIN, places: Sequence[int] = (), **changed: str | None) -> Half:
        """A half message that holds one message for each of these topics."""
        transaction_id, messages = secrets.token_hex(16).upper(), self.messages(topics, places)
        ours = {
            "TXB_V": "1",
            "TRAN_MSG": "true",
            "REAL_TOPIC": messages[0].topic,
            "PGROUP": "billing",
            "UNIQ_KEY": transaction_id,
            "TXB_MESSAGES": str(len(messages)),
        } | changed
        record = Record(self.names.half, partition, messages[0].key, write(messages), headers(**ours))
        self.write(record)
        return Half(partition, record.offset, transaction_id, "billing", messages[0].topic, record.stamped[0])

    def messages(self, topics: Sequence[str], places: Sequence[int] = ()) -> list[Framed]:
        """Messages that differ in their values. One has no key, no value and no headers, and one has a timestamp."""
        found = []
        for number, topic in enumerate(topics):
            told: Headers = [("trace", b"1"), ("trace", None)]
            one = Framed(self.real(topic), b"key", b"\xff\x00 number %d" % number, told)
            one.partition = places[number] if places else -1
            one.timestamp = self.recently if number == 2 else -1
            found.append(Framed(one.topic, None, None) if number == 1 else one)
        return found

    def copies(self, half: Half, *topics: str, places: Sequence[int] = ()) -> list[Record]:
        """All records that the worker delivers for it."""
        found = []
        for number, one in enumerate(self.messages(topics), 1):
            ours = {
                "UNIQ_KEY": half.id,
                "TXB_HALF": f"{half.partition}:{half.offset}",
                "TXB_MESSAGE": f"{number}/{len(topics)}",
            }
            place = places[number - 1] if places else 0
            dated = half.dated if one.timestamp < 0 else one.timestamp
            found.append(Record(one.topic, place, one.key, one.value, [*one.headers, *headers(**ours)], dated))
        return found

    def decision_record(self, value: bytes | None, partition: int = PLAIN, **changed: str | None) -> int:
        ours: dict[str, str | None] = {"TXB_V": "1", "PGROUP": "billing", "SOURCE": "client"}
        record = Record(self.names.end, partition, None, value, headers(**(ours | changed)))
        self.write(record)
        self.end_position[partition] = record.offset + 1
        return record.offset

    def decision(self, half: Half, decision: int) -> Record:
        """An END that another client writes in a Kafka transaction."""
        ours = headers(TXB_V="1", PGROUP=half.group, SOURCE="client")
        return Record(self.names.end, half.partition, None, half.entry(decision).encode(), ours)

    def end(self, half: Half, decision: int, source: str = "client", group: str | None = None, **entry: str) -> int:
        line = half.entry(decision, **entry)  # type: ignore[arg-type]
        return self.decision_record(line.encode(), half.partition, PGROUP=group or half.group, SOURCE=source)

    def copy(self, half: Half, topic: str | None = None, partition: int = 0, **changed: str | None) -> Record:
        ours = {"UNIQ_KEY": half.id, "TXB_HALF": f"{half.partition}:{half.offset}"} | changed
        told = [("trace", b"1"), ("trace", None), *headers(**ours)]
        where = self.real(topic or half.topic)
        return Record(where, partition, half.key, b"\xff\x00 the user's bytes", told, half.dated)

    def check(self, half: Half, end: int, times: int = 1, **changed: str | None) -> Record:
        """A check request of a worker that has applied every END below `end`."""
        ours = {
            "TXB_V": "1",
            "UNIQ_KEY": half.id,
            "TXB_HALF": f"{half.partition}:{half.offset}",
            "TXB_END": str(end),
            "TRANSACTION_CHECK_TIMES": str(times),
        } | changed
        return Record(self.names.check("billing"), 0, b"key", b"\xff\x00 the user's bytes", headers(**ours))

    def op(self, outcome: str, *halves: Half, ends: str | None = None) -> Record:
        """An OP record. `ends`: the range of END entries that its Kafka transaction has applied."""
        value = ",".join(str(half.offset) for half in halves).encode()
        ours = headers(TXB_V="1", TAGS="d", OUTCOME=outcome) + ([] if ends is None else headers(TXB_ENDS=ends))
        return Record(self.names.op, halves[0].partition, None, value, ours)

    def parked(self, half: Half, state: str | None, **more: object) -> Record:
        """A parked entry, or its tombstone."""
        value = {"state": state, "id": half.id, "group": half.group, "topic": half.topic, "checks": 0, **more}
        text = None if state is None else json.dumps(value).encode()
        return Record(
            self.names.offset,
            half.partition,
            self.names.parked_key(half.partition, half.offset),
            text,
            headers(TXB_V="1"),
        )

    def progress(self, partition: int, half: int, **more: object) -> Record:
        value = {
            "half": half,
            "end": self.end_position[partition],
            "op": 0,
            "owner": "w",
            "seq": next(self._owner),
            **more,
        }
        return Record(
            self.names.offset,
            partition,
            self.names.checkpoint_key(partition),
            json.dumps(value).encode(),
            headers(TXB_V="1"),
        )

    def discard(self, half: Half, end: int | None = None, reason: str = "MAX_CHECKS") -> Record:
        position = self.end_position[half.partition] if end is None else end
        ours = {
            "UNIQ_KEY": half.id,
            "TRANSACTION_CHECK_TIMES": "15",
            "TXB_HALF": f"{half.partition}:{half.offset}",
            "TXB_END": str(position),
            "TXB_REASON": reason,
        }
        return Record(self.names.discard, 0, b"key", b"body", headers(**ours))

    def set_aside(
        self, topic: str, partition: int, offset: int, copied: Sequence[tuple[str, bytes | None]] = (), **changed: str
    ) -> Record:
        ours = {
            "TXB_V": "1",
            "TXB_REASON": "MALFORMED",
            "TXB_ERROR": "no good",
            "TXB_SOURCE": f"{topic}:{partition}:{offset}",
        } | changed
        return Record(self.names.discard, 0, None, b"as it was", [*copied, *headers(**ours)])

    def deliver(self, half: Half, *more: Record) -> Record:
        """The records of a Kafka transaction of the worker that delivers a commit."""
        copy = self.copy(half)
        self.transaction(copy, self.op("commit", half), *more)
        return copy


@dataclass(frozen=True)
class Case:
    """The records to plant, and the results that the audit must report."""

    plant: Callable[[Log], Half | None]
    fate: str | None
    state: str | None = None
    #: Violations besides the fate, and findings.
    findings: frozenset[str] = frozenset()
    #: Violations and findings that belong to no transaction of this case.
    strays: tuple[str, ...] = ()


CASES: dict[str, Case] = {}
#: Cases planted after the progress record was written: the worker has not read their ENDs.
TAIL: dict[str, Case] = {}


def case(
    fate: str | None,
    *findings: str,
    state: str | None = None,
    strays: tuple[str, ...] = (),
    tail: bool = False,
) -> Callable[[Callable[[Log], Half | None]], Callable[[Log], Half | None]]:
    def register(plant: Callable[[Log], Half | None]) -> Callable[[Log], Half | None]:
        (TAIL if tail else CASES)[plant.__name__] = Case(plant, fate, state, frozenset(findings), strays)
        return plant

    return register


# As it should be


@case("delivered")
def delivered(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("delivered")
def delivered_in_answer_to_a_check(log: Log) -> Half:
    half = log.half()
    log.end(half, UNKNOWN, rest=",,no%20idea%2C%20sorry")
    log.transaction(log.parked(half, "pending", checks=1))
    log.end(half, COMMIT, source="check", rest=",1")
    log.deliver(half, log.parked(half, None))
    return half


@case("rolled_back")
def rolled_back(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


@case("delivered")
def several_entries_in_one_end_record(log: Log) -> Half:
    first, second = log.half(), log.half()
    log.decision_record(f"{second.entry(ROLLBACK)}\n{first.entry(COMMIT)}".encode())
    log.transaction(log.copy(first), log.op("commit", first), log.op("rollback", second))
    return first


@case("rolled_back")
def aborted_copy_is_not_visible(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    log.aborted(log.copy(half), log.op("commit", half))
    log.transaction(log.op("rollback", half))
    return half


@case("delivered")
def redone_after_an_abort(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.aborted(log.copy(half), log.op("commit", half))
    log.deliver(half)
    return half


@case("rolled_back")
def decision_of_an_aborted_transaction_decides_nothing(log: Log) -> Half:
    half = log.half()
    log.aborted(log.decision(half, COMMIT))
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


@case("delivered")
def decision_of_a_committed_transaction_decides(log: Log) -> Half:
    half = log.half()
    log.transaction(log.decision(half, COMMIT))
    log.aborted(log.decision(half, ROLLBACK))
    log.deliver(half)
    return half


@case("pending", state="undecided")
def undecided(log: Log) -> Half:
    return log.half()


@case("pending", state="undecided")
def unknown_decides_nothing(log: Log) -> Half:
    half = log.half()
    log.end(half, UNKNOWN)
    log.end(half, UNKNOWN, source="check", rest=",1")
    return half


@case("pending", state="held")
def held(log: Log) -> Half:
    half = log.half(topic=ABSENT)
    end = log.end(half, COMMIT)
    log.transaction(log.parked(half, "held", decision=COMMIT, decided=end, error="no such topic"))
    return half


def schedule(log: Log, half: Half, due: int) -> int:
    end = log.end(half, COMMIT)
    log.transaction(log.parked(half, "scheduled", decision=COMMIT, decided=end, deliver=due, next=due))
    return end


#: Times in ms: long ago, and long after any test.
LONG_AGO, FAR_AWAY = 1_000_000_000_000, 5_000_000_000_000


@case("pending", state="scheduled")
def scheduled(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(FAR_AWAY))
    schedule(log, half, FAR_AWAY)
    return half


@case("pending", state="scheduled")
def scheduled_and_passed_by_the_watermark(log: Log) -> Half:
    half = log.half(partition=PASSED, TXB_DELIVER_AT=str(FAR_AWAY))
    schedule(log, half, FAR_AWAY)
    return half


@case("delivered")
def scheduled_and_delivered(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(LONG_AGO))
    schedule(log, half, LONG_AGO)
    log.deliver(half, log.parked(half, None))
    return half


@case("delivered")
def delivered_at_once_because_its_time_had_passed(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(LONG_AGO))
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("delivered", "CONTRADICTION", "REPEAT")
def scheduled_and_decided_again(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(LONG_AGO))
    schedule(log, half, LONG_AGO)
    log.end(half, COMMIT)
    log.end(half, ROLLBACK)
    log.deliver(half, log.parked(half, None))
    return half


@case("abandoned")
def scheduled_and_cancelled(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(FAR_AWAY))
    schedule(log, half, FAR_AWAY)
    log.end(half, UNKNOWN, source="abandon", rest=",,the%20customer%20called")
    abandon(log, half)
    return half


@case("pending", state="undecided")
def delayed_and_undecided(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(FAR_AWAY))
    log.transaction(log.parked(half, "pending", deliver=FAR_AWAY))
    return half


@case("delivered", "EARLY")
def delivered_before_its_time(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(FAR_AWAY))
    schedule(log, half, FAR_AWAY)
    log.deliver(half, log.parked(half, None))
    return half


@case("delivered", "EARLY")
def delivered_as_if_it_named_no_time(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(FAR_AWAY))
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("pending", "OVERDUE", state="scheduled")
def scheduled_and_forgotten(log: Log) -> Half:
    half = log.half(TXB_DELIVER_AT=str(LONG_AGO))
    schedule(log, half, LONG_AGO)
    return half


@case("pending", state="undecided")
def parked_and_passed_by_the_watermark(log: Log) -> Half:
    half = log.half(partition=PASSED)
    log.transaction(log.parked(half, "pending"))
    return half


def abandon(log: Log, half: Half) -> None:
    """The records that the worker writes when an operator abandons a held message."""
    log.transaction(log.discard(half, reason="ABANDONED"), log.op("abandon", half), log.parked(half, None))


def hold(log: Log, half: Half) -> None:
    end = log.end(half, COMMIT)
    log.transaction(log.parked(half, "held", decision=COMMIT, decided=end, error="no such topic"))


@case("abandoned")
def held_and_abandoned(log: Log) -> Half:
    half = log.half(topic=ABSENT)
    hold(log, half)
    log.end(half, UNKNOWN, source="abandon", rest=",,gone%20for%20good")
    abandon(log, half)
    return half


@case("abandoned", "REPEAT", "CONTRADICTION")
def abandoned_and_decided_again(log: Log) -> Half:
    half = log.half()
    hold(log, half)
    log.end(half, UNKNOWN, source="abandon")
    abandon(log, half)
    log.end(half, COMMIT)
    log.end(half, ROLLBACK)
    return half


@case("delivered")
def abandoned_before_it_was_held_and_so_refused(log: Log) -> Half:
    half = log.half()
    log.end(half, UNKNOWN, source="abandon")
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("pending", state="held", tail=True)
def abandoned_and_not_read_yet(log: Log) -> Half:
    half = log.half(topic=ABSENT)
    hold(log, half)
    log.end(half, UNKNOWN, source="abandon")
    return half


@case("discarded")
def discarded(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded", reason="MAX_CHECKS"))
    return half


@case("pending", state="resumed")
def resumed(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    log.end(half, UNKNOWN, source="resume")
    log.transaction(log.parked(half, "pending"))
    return half


@case("delivered")
def resumed_and_committed(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    log.end(half, UNKNOWN, source="resume")
    log.transaction(log.parked(half, "pending"))
    log.end(half, COMMIT, source="operator")
    log.deliver(half, log.parked(half, None))
    return half


@case("discarded")
def discarded_again_after_a_resume(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half))
    log.end(half, UNKNOWN, source="resume")
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    return half


# Refusals: findings beside the fate


@case("delivered", "CONTRADICTION")
def later_rollback_refused(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.end(half, ROLLBACK, source="check", rest=",1")
    log.deliver(half)
    return half


@case("rolled_back", "CONTRADICTION")
def later_commit_refused(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    log.end(half, COMMIT)
    return half


@case("rolled_back", "CONTRADICTION")
def first_line_of_one_record_wins(log: Log) -> Half:
    half = log.half()
    log.decision_record(f"{half.entry(ROLLBACK)}\n{half.entry(COMMIT)}".encode())
    log.transaction(log.op("rollback", half))
    return half


@case("delivered", "REPEAT")
def repeated(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("rolled_back", "WRONG_TRANSACTION_ID")
def wrong_transaction_id(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT, transaction_id="0" * 32)
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


@case("rolled_back", "WRONG_GROUP")
def wrong_group(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT, group="shipping")
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


@case("discarded", "LATE")
def late_after_a_discard(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    log.end(half, COMMIT)
    return half


@case("discarded", "LATE")
def late_by_the_end_position_of_the_discard(log: Log) -> Half:
    """The END was in the log when the discard was written, but the worker had not read it when it decided."""
    half = log.half()
    seen = log.end_position[half.partition]
    log.end(half, COMMIT)
    log.transaction(log.discard(half, end=seen), log.op("discard", half), log.parked(half, "discarded"))
    return half


@case("delivered", "LATE")
def late_then_resumed(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    log.end(half, ROLLBACK)
    log.end(half, UNKNOWN, source="resume")
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("rolled_back")
def resume_of_what_was_not_discarded_does_nothing(log: Log) -> Half:
    half = log.half()
    log.end(half, UNKNOWN, source="resume")
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


@case(None, strays=("NO_HALF_MESSAGE", "NO_HALF_MESSAGE"))
def end_without_half_message(log: Log) -> None:
    log.decision_record(f"987654,{'A' * 32},8\n{'9' * 30},{'A' * 32},8".encode())


# Malformed records


@case(None, strays=("MALFORMED",))
def malformed_half_message(log: Log) -> None:
    half = log.half(REAL_TOPIC="no topic")
    log.transaction(log.set_aside(log.names.half, half.partition, half.offset), log.op("discard", half))


@case("delivered")
def delivered_of_a_barrier_table(log: Log) -> Half:
    half = log.half(TXB_BARRIER="9f86d081884c7d65")
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case(None, strays=("MALFORMED",) * 2)
def half_message_of_no_barrier_table(log: Log) -> None:
    log.half(TXB_BARRIER="two words")
    log.half(TXB_BARRIER="x" * 65)


@case(None, strays=("MALFORMED",))
def half_message_of_another_version(log: Log) -> None:
    log.half(TXB_V="2")


@case(None, strays=("MALFORMED",))
def half_message_for_a_system_topic(log: Log) -> None:
    log.half(topic="__consumer_offsets")


@case(None, strays=("MALFORMED",) * 3)
def half_messages_for_internal_topics_of_another_namespace(log: Log) -> None:
    log.half(topic="other.RMQ_SYS_TRANS_OFFSET_TOPIC")
    log.half(topic="other.eu.RMQ_SYS_TRANS_CHECK.orders.placed")
    log.half(topic="other.TRANS_AUDIT_VIOLATIONS_TOPIC")


@case(None, strays=("MALFORMED",))
def half_message_that_only_the_worker_finds_malformed(log: Log) -> None:
    half = log.half()
    # One of the copied headers has a name of ours: the last one counts.
    copied = [("TXB_REASON", b"MAX_CHECKS"), ("TXB_HALF", b"0:0")]
    log.transaction(log.set_aside(log.names.half, half.partition, half.offset, copied), log.op("discard", half))


@case("rolled_back", strays=("MALFORMED",) * 9)
def malformed_ends_have_no_effect(log: Log) -> Half:
    half = log.half()
    entry = half.entry(COMMIT)
    for value, changed in (
        (None, {}),
        (b"", {}),
        (b"\xff\xfe", {}),
        (f"{entry}\n".encode(), {}),
        (f"{entry}\nnonsense".encode(), {}),
        (entry.encode(), {"TXB_V": "2"}),
        (entry.encode(), {"SOURCE": "nobody"}),
        (entry.encode(), {"PGROUP": None}),
        (entry.encode(), {"SOURCE": "resume"}),
    ):
        at = log.decision_record(value, half.partition, **changed)
        log.transaction(log.set_aside(log.names.end, half.partition, at))
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


@case("delivered")
def optional_headers_without_a_value(log: Log) -> Half:
    """Headers without a value count as absent: no decision is lost because of them."""
    half = log.half(REAL_QID=None, CHECK_IMMUNITY_TIME_IN_SECONDS=None, BORN_TIMESTAMP=None)
    log.decision_record(half.entry(COMMIT).encode(), half.partition, CLIENT_ID=None)
    log.deliver(half)
    return half


@case("pending", state="undecided", strays=("MALFORMED",))
def end_that_only_the_worker_finds_malformed(log: Log) -> Half:
    half = log.half()
    at = log.end(half, COMMIT, rest=",,one,field,more")
    log.transaction(log.set_aside(log.names.end, half.partition, at))
    return half


def sent_twice(log: Log) -> tuple[Half, Half, Record]:
    """A half message, its copy, and the worker's record that discards the copy."""
    half = log.half()
    again = log.half(UNIQ_KEY=half.id)
    first = f"{half.partition}:{half.offset}"
    aside = log.set_aside(log.names.half, again.partition, again.offset, TXB_REASON="COPY", TXB_HALF=first)
    return half, again, aside


@case("delivered", strays=("COPY",))
def sent_twice_and_the_copy_committed(log: Log) -> Half:
    half, again, aside = sent_twice(log)
    log.decision_record(f"{again.offset},{half.id},8".encode(), half.partition)
    log.deliver(half, aside, log.op("discard", again))
    return half


@case("rolled_back", "CONTRADICTION", strays=("COPY",))
def sent_twice_and_each_decided(log: Log) -> Half:
    half, again, aside = sent_twice(log)
    log.transaction(aside, log.op("discard", again))
    log.end(half, ROLLBACK)
    log.decision_record(f"{again.offset},{half.id},8".encode(), half.partition)
    log.transaction(log.op("rollback", half))
    return half


@case("delivered", strays=("COPY", "PHANTOM"))
def both_copies_delivered(log: Log) -> Half:
    half, again, aside = sent_twice(log)
    log.end(half, COMMIT)
    log.deliver(half, aside, log.op("discard", again))
    log.transaction(log.copy(half, TXB_HALF=f"{again.partition}:{again.offset}"))
    return half


# Violations


@case("LOST")
def lost_though_recorded(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.op("commit", half))
    return half


@case("LOST")
def lost_in_an_aborted_transaction(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.aborted(log.copy(half))
    log.transaction(log.op("commit", half))
    return half


@case("LOST")
def lost_because_skipped(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    return half


@case("LOST")
def lost_because_discarded_instead(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    return half


@case("LOST")
def lost_because_rolled_back_instead(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.op("rollback", half))
    return half


@case("DUPLICATED")
def duplicated(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.transaction(log.copy(half, partition=1))
    return half


@case("LEAKED")
def leaked_though_rolled_back(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    log.transaction(log.copy(half), log.op("rollback", half))
    return half


@case("LEAKED")
def leaked_though_abandoned(log: Log) -> Half:
    half = log.half()
    hold(log, half)
    log.end(half, UNKNOWN, source="abandon")
    abandon(log, half)
    log.transaction(log.copy(half))
    return half


@case("LEAKED")
def leaked_by_a_commit_after_it_was_abandoned(log: Log) -> Half:
    half = log.half()
    hold(log, half)
    log.end(half, UNKNOWN, source="abandon")
    abandon(log, half)
    log.deliver(half)
    return half


@case("LOST")
def lost_because_abandoned_by_nobody(log: Log) -> Half:
    half = log.half()
    hold(log, half)
    abandon(log, half)
    return half


@case("LOST")
def lost_because_abandoned_before_the_commit(log: Log) -> Half:
    half = log.half()
    log.end(half, UNKNOWN, source="abandon")
    hold(log, half)
    abandon(log, half)
    return half


@case("LOST", "WRONG_GROUP")
def lost_because_abandoned_by_another_group(log: Log) -> Half:
    half = log.half()
    hold(log, half)
    log.end(half, UNKNOWN, source="abandon", group="others")
    abandon(log, half)
    return half


@case("LOST", "OUTCOME_WITHOUT_DECISION")
def lost_because_abandoned_while_undecided(log: Log) -> Half:
    half = log.half()
    log.end(half, UNKNOWN, source="abandon")
    abandon(log, half)
    return half


@case("WRONG_WINNER")
def abandoned_though_rolled_back(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    log.end(half, UNKNOWN, source="abandon")
    abandon(log, half)
    return half


@case("LEAKED", "OUTCOME_WITHOUT_DECISION")
def leaked_though_undecided(log: Log) -> Half:
    half = log.half()
    log.deliver(half)
    return half


@case("LEAKED")
def leaked_though_discarded(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half))
    log.transaction(log.copy(half))
    return half


@case("LEAKED", "LATE", "OUTCOME_WITHOUT_DECISION")
def leaked_by_a_late_commit(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half))
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("LEAKED", "WRONG_TRANSACTION_ID", "OUTCOME_WITHOUT_DECISION")
def leaked_by_a_forged_commit(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT, transaction_id="0" * 32)
    log.deliver(half)
    return half


@case("LEAKED", "OUTCOME_WITHOUT_DECISION", strays=("MALFORMED",))
def leaked_by_a_malformed_commit(log: Log) -> Half:
    half = log.half()
    log.decision_record(f"{half.entry(COMMIT)}\n".encode())
    log.deliver(half)
    return half


@case("WRONG_WINNER")
def later_commit_prevailed(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("WRONG_WINNER")
def later_rollback_prevailed(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half))
    return half


def altered(log: Log, change: Callable[[Record], Record]) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(change(log.copy(half)), log.op("commit", half))
    return half


@case("delivered", "ALTERED")
def altered_value(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, value=b"\xff\x00 the user's bytes."))


@case("delivered", "ALTERED")
def altered_value_to_null(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, value=None))


@case("delivered", "ALTERED")
def altered_key(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, key=b"yek"))


@case("delivered", "ALTERED")
def altered_key_to_empty_and_value_to_both(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, key=b"", value=b"key\xff\x00 the user's bytes"))


@case("delivered", "ALTERED")
def altered_header_value(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, headers=[("trace", b"2"), *copy.headers[1:]]))


@case("delivered", "ALTERED")
def altered_null_header_to_empty(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, headers=[copy.headers[0], ("trace", b""), *copy.headers[2:]]))


@case("delivered", "ALTERED")
def altered_order_of_headers(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, headers=[copy.headers[1], copy.headers[0], *copy.headers[2:]]))


@case("delivered", "ALTERED")
def altered_by_a_header_more(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, headers=[("more", b"1"), *copy.headers]))


def altered_by_one_of_ours(log: Log, name: str) -> Half:
    return altered(log, lambda copy: replace(copy, headers=[*copy.headers, (name, b"true")]))


@case("delivered", "ALTERED")
def altered_by_a_header_of_half_messages(log: Log) -> Half:
    return altered_by_one_of_ours(log, "TRAN_MSG")


@case("delivered", "ALTERED")
def altered_by_a_reserved_header(log: Log) -> Half:
    return altered_by_one_of_ours(log, "TXB_FOO")


@case("delivered", "ALTERED")
def altered_by_the_real_topic_in_a_header(log: Log) -> Half:
    return altered_by_one_of_ours(log, "REAL_TOPIC")


@case("delivered", "ALTERED")
def altered_by_an_id_more(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, headers=[("UNIQ_KEY", b"another"), *copy.headers]))


@case("delivered")
def delivered_to_the_partition_asked_for(log: Log) -> Half:
    half = log.half(REAL_QID="1")
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=1), log.op("commit", half))
    return half


@case("delivered", "MISPLACED")
def delivered_to_another_partition_than_asked_for(log: Log) -> Half:
    half = log.half(REAL_QID="1")
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("delivered")
def delivered_to_the_partition_of_its_key(log: Log) -> Half:
    """Kafka's hash of `key` is 1067546281."""
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=1), log.op("commit", half))
    return half


@case("delivered")
def delivered_where_its_key_went_when_the_topic_had_one_partition(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=0), log.op("commit", half))
    return half


@case("delivered")
def delivered_anywhere_without_a_key(log: Log) -> Half:
    half = log.half(key=b"")
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=1), log.op("commit", half))
    return half


@case("delivered", "MISPLACED")
def delivered_to_another_partition_than_that_of_its_key(log: Log) -> Half:
    """Kafka's hash of `foobar` is 1357151166."""
    half = log.half(key=b"foobar")
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=1), log.op("commit", half))
    return half


@case("delivered")
def delivered_to_the_partition_asked_for_whatever_its_key_says(log: Log) -> Half:
    half = log.half(key=b"foobar", REAL_QID="1")
    log.end(half, COMMIT)
    log.transaction(log.copy(half, partition=1), log.op("commit", half))
    return half


@case("delivered")
def delivered_with_the_timestamp_of_the_user(log: Log) -> Half:
    half = log.half(BORN_TIMESTAMP=str(log.recently))
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("delivered")
def timestamp_0_counts_as_absent(log: Log) -> Half:
    half = log.half(BORN_TIMESTAMP="0")
    log.end(half, COMMIT)
    log.deliver(half)
    return half


@case("delivered", "ALTERED")
def altered_key_belongs_elsewhere(log: Log) -> Half:
    """The copy lies in the partition of the half message's key, but has another key: one violation, not two."""
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(replace(log.copy(half, partition=1), key=b"foobar"), log.op("commit", half))
    return half


@case("delivered", "ALTERED")
def altered_timestamp_of_the_user(log: Log) -> Half:
    half = log.half(BORN_TIMESTAMP=str(log.recently))
    log.end(half, COMMIT)
    log.transaction(replace(log.copy(half), dated=log.recently + 1), log.op("commit", half))
    return half


@case("delivered", "ALTERED")
def altered_timestamp(log: Log) -> Half:
    return altered(log, lambda copy: replace(copy, dated=log.recently))


# In the order of decisions


Entry = tuple[int, int]


def in_turn(log: Log, since: Entry, until: Entry, line: int = 0) -> Half:
    """A commit, delivered by a Kafka transaction whose OP record names the END entries that it has applied.

    An entry is a record, counted from that of the decision on, and the index in it. The decision is in `line`.
    """
    half = log.half()
    lines = [half.entry(UNKNOWN)] * line + [half.entry(COMMIT)]
    at = log.decision_record("\n".join(lines).encode())
    first, behind = (f"{at + record}:{index}" for record, index in (since, until))
    log.transaction(log.copy(half), log.op("commit", half, ends=f"{first}-{behind}"))
    return half


@case("delivered")
def delivered_in_turn(log: Log) -> Half:
    return in_turn(log, (-1, 0), (1, 0))


@case("delivered")
def delivered_by_the_second_of_two_transactions_of_a_record(log: Log) -> Half:
    return in_turn(log, (0, 1), (1, 0), line=1)


@case("delivered", "REPEAT")
def delivered_in_turn_and_decided_again(log: Log) -> Half:
    half = in_turn(log, (0, 0), (1, 0))
    log.end(half, COMMIT, source="check")
    return half


@case("delivered", "BEFORE_DECISION")
def delivered_before_its_decision(log: Log) -> Half:
    return in_turn(log, (-1, 0), (0, 0))


@case("delivered", "BEFORE_DECISION")
def delivered_before_its_decision_in_a_record(log: Log) -> Half:
    return in_turn(log, (0, 0), (0, 1), line=1)


@case("delivered", "OVERTAKEN")
def overtaken_by_what_was_decided_later(log: Log) -> Half:
    return in_turn(log, (1, 0), (2, 0))


@case("delivered", "OVERTAKEN")
def overtaken_by_the_rest_of_its_record(log: Log) -> Half:
    return in_turn(log, (0, 1), (1, 0))


@case("delivered")
def held_and_delivered_when_it_could_be(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.parked(half, "held", error="no such topic"))
    log.deliver(half, log.parked(half, None))
    return half


@case("delivered")
def ends_that_can_not_be_read_say_nothing(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.copy(half), log.op("commit", half, ends="0:0"))
    return half


@case("delivered", "OUT_OF_ORDER")
def messages_of_one_transaction_that_changed_places(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, ORDERS)
    log.end(half, COMMIT)
    first, second, third = log.copies(half, ORDERS, FORWARDED, ORDERS)
    log.transaction(third, second, first, log.op("commit", half))
    return half


@case("delivered")
def messages_of_several_topics_have_no_order(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, ORDERS)
    log.end(half, COMMIT)
    first, second, third = log.copies(half, ORDERS, FORWARDED, ORDERS)
    log.transaction(second, first, third, log.op("commit", half))
    return half


# Several messages in one transaction


@case("delivered")
def several_delivered(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, ORDERS, places=[-1, -1, 1])
    log.end(half, COMMIT)
    log.transaction(*log.copies(half, ORDERS, FORWARDED, ORDERS, places=[0, 0, 1]), log.op("commit", half))
    return half


@case("delivered")
def one_that_is_written_as_several(log: Log) -> Half:
    half = log.several(ORDERS)
    log.end(half, COMMIT)
    log.transaction(*log.copies(half, ORDERS), log.op("commit", half))
    return half


@case("rolled_back")
def several_rolled_back(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED)
    log.end(half, ROLLBACK)
    log.aborted(*log.copies(half, ORDERS, FORWARDED))
    log.transaction(log.op("rollback", half))
    return half


@case("pending", state="held")
def several_held(log: Log) -> Half:
    half = log.several(ORDERS, ABSENT)
    end = log.end(half, COMMIT)
    log.transaction(log.parked(half, "held", decision=COMMIT, decided=end, error="no such topic"))
    return half


@case("pending", state="scheduled")
def several_scheduled(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, TXB_DELIVER_AT=str(FAR_AWAY))
    schedule(log, half, FAR_AWAY)
    return half


@case("delivered")
def several_scheduled_and_delivered(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, TXB_DELIVER_AT=str(LONG_AGO))
    schedule(log, half, LONG_AGO)
    log.transaction(*log.copies(half, ORDERS, FORWARDED), log.parked(half, None), log.op("commit", half))
    return half


@case("delivered", "EARLY")
def several_delivered_before_their_time(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, TXB_DELIVER_AT=str(FAR_AWAY))
    schedule(log, half, FAR_AWAY)
    log.transaction(*log.copies(half, ORDERS, FORWARDED), log.parked(half, None), log.op("commit", half))
    return half


@case("PARTIAL")
def one_of_several_scheduled_lost(log: Log) -> Half:
    half = log.several(FORWARDED, ORDERS, TXB_DELIVER_AT=str(LONG_AGO))
    schedule(log, half, LONG_AGO)
    log.transaction(log.copies(half, FORWARDED, ORDERS)[0], log.parked(half, None), log.op("commit", half))
    return half


@case("PARTIAL")
def one_of_several_lost(log: Log) -> Half:
    half = log.several(FORWARDED, ORDERS, FORWARDED)
    log.end(half, COMMIT)
    first, _, third = log.copies(half, FORWARDED, ORDERS, FORWARDED)
    log.transaction(first, third, log.op("commit", half))
    return half


@case("PARTIAL")
def one_of_several_in_another_kafka_transaction_that_was_aborted(log: Log) -> Half:
    half = log.several(ORDERS, ORDERS)
    log.end(half, COMMIT)
    first, second = log.copies(half, ORDERS, ORDERS)
    log.transaction(first, log.op("commit", half))
    log.aborted(second)
    return half


@case("unverifiable")
def one_of_several_gone_from_a_compacted_topic(log: Log) -> Half:
    half = log.several(ORDERS, COMPACTED)
    log.end(half, COMMIT)
    log.transaction(log.copies(half, ORDERS, COMPACTED)[0], log.op("commit", half))
    return half


@case("LOST")
def all_of_several_lost(log: Log) -> Half:
    half = log.several(COMPACTED, ORDERS)
    log.end(half, COMMIT)
    log.transaction(log.op("commit", half))
    return half


@case("DUPLICATED")
def one_of_several_twice(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED)
    log.end(half, COMMIT)
    copies = log.copies(half, ORDERS, FORWARDED)
    log.transaction(*copies, log.op("commit", half))
    log.transaction(log.copies(half, ORDERS, FORWARDED)[1])
    return half


@case("LEAKED")
def one_of_several_leaked(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED)
    log.end(half, ROLLBACK)
    log.transaction(log.copies(half, ORDERS, FORWARDED)[1], log.op("rollback", half))
    return half


@case("delivered", "ALTERED")
def one_of_several_altered(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED)
    log.end(half, COMMIT)
    first, second = log.copies(half, ORDERS, FORWARDED)
    log.transaction(first, replace(second, value=b""), log.op("commit", half))
    return half


@case("delivered", "ALTERED")
def one_of_several_with_another_timestamp(log: Log) -> Half:
    half = log.several(ORDERS, FORWARDED, ORDERS)
    log.end(half, COMMIT)
    *others, third = log.copies(half, ORDERS, FORWARDED, ORDERS)
    log.transaction(*others, replace(third, dated=half.dated), log.op("commit", half))
    return half


@case("delivered", "MISPLACED")
def one_of_several_misplaced(log: Log) -> Half:
    half = log.several(FORWARDED, FORWARDED, ORDERS, places=[-1, -1, 1])
    log.end(half, COMMIT)
    log.transaction(*log.copies(half, FORWARDED, FORWARDED, ORDERS), log.op("commit", half))
    return half


@case("PARTIAL", "FOREIGN_COPY")
def one_of_several_in_the_wrong_topic(log: Log) -> Half:
    half = log.several(ORDERS, ORDERS)
    log.end(half, COMMIT)
    first, second = log.copies(half, ORDERS, ORDERS)
    log.transaction(first, replace(second, topic=log.real(FORWARDED)), log.op("commit", half))
    return half


@case(None, strays=("MALFORMED",) * 4)
def several_that_can_not_be_read(log: Log) -> None:
    log.several(ORDERS, FORWARDED, TXB_MESSAGES="3")
    log.several(ORDERS, FORWARDED, TXB_MESSAGES="many")
    log.several(ORDERS, FORWARDED, REAL_TOPIC=log.real(FORWARDED))
    log.half(TXB_MESSAGES="1")


@case("delivered", "CHECKED_AFTER_DECISION")
def checked_after_the_commit_was_applied(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.transaction(log.check(half, log.end_position[half.partition]))
    return half


@case("rolled_back", "CHECKED_AFTER_DECISION", "REPEAT")
def checked_after_the_rollback_was_applied_and_answered(log: Log) -> Half:
    half = log.half()
    log.transaction(log.check(half, log.end_position[half.partition]))
    log.end(half, ROLLBACK)
    log.transaction(log.op("rollback", half), log.check(half, log.end_position[half.partition], times=2))
    log.end(half, ROLLBACK, source="check", rest=",2")
    return half


@case("delivered")
def checked_before_the_decision_was_applied(log: Log) -> Half:
    half = log.half()
    seen = log.end_position[half.partition]
    log.end(half, COMMIT)
    log.transaction(log.check(half, seen), log.parked(half, "pending", checks=1))
    log.deliver(half, log.parked(half, None))
    return half


@case("pending", "LATE", state="resumed")
def checked_after_a_late_commit_and_a_resume(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    log.end(half, COMMIT)
    log.end(half, UNKNOWN, source="resume")
    log.transaction(log.parked(half, "pending", checks=1), log.check(half, log.end_position[half.partition]))
    return half


@case("delivered")
def checks_that_say_nothing(log: Log) -> Half:
    """Checks with another transaction id, malformed coordinates, and an END position that is malformed or missing.

    The audit concludes nothing from them.
    """
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    end = log.end_position[half.partition]
    log.transaction(
        log.check(half, end, UNIQ_KEY="E" * 32),
        log.check(half, end, TXB_HALF="here"),
        log.check(half, end, TXB_END="soon"),
        log.check(half, end, TXB_END=None),
    )
    return half


@case("pending", "STUCK", state="undecided")
def stuck_an_interval_after_its_last_check(log: Log) -> Half:
    half = log.half()
    log.transaction(log.parked(half, "pending", checks=15, next=1))
    return half


@case("pending", state="undecided")
def last_check_not_answered_yet(log: Log) -> Half:
    half = log.half()
    log.transaction(log.parked(half, "pending", checks=15, next=2**62))
    return half


@case("pending", state="undecided")
def next_check_long_overdue_because_its_group_is_dead(log: Log) -> Half:
    half = log.half()
    log.transaction(log.parked(half, "pending", checks=14, next=1))
    return half


@case(None, strays=("PHANTOM",))
def phantom_beyond_the_half_log(log: Log) -> None:
    log.transaction(log.copy(Half(PLAIN, 555_555, "F" * 32, "billing", log.real(ORDERS))))


@case("pending", state="undecided", strays=("PHANTOM",))
def phantom_with_the_coordinates_of_another(log: Log) -> Half:
    half = log.half()
    log.transaction(log.copy(half, UNIQ_KEY="E" * 32))
    return half


@case("pending", state="undecided", strays=("PHANTOM", "PHANTOM"))
def phantom_without_readable_coordinates(log: Log) -> Half:
    half = log.half()
    log.transaction(log.copy(half, TXB_HALF="here"), log.copy(half, TXB_HALF=None))
    return half


@case(None, strays=("PHANTOM", "MALFORMED"))
def phantom_of_a_malformed_half_message(log: Log) -> None:
    half = log.half(TRAN_MSG="no")
    log.transaction(log.copy(half))


# Oddities that are no violation


@case("delivered", "FOREIGN_COPY")
def forwarded_to_another_topic(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.deliver(half)
    log.transaction(log.copy(half, topic=FORWARDED))
    return half


@case("unverifiable")
def committed_to_a_compacted_topic_and_gone(log: Log) -> Half:
    half = log.half(topic=COMPACTED)
    log.end(half, COMMIT)
    log.transaction(log.op("commit", half))
    return half


@case("unverifiable")
def committed_to_a_topic_that_is_gone(log: Log) -> Half:
    half = log.half(topic=ABSENT)
    log.end(half, COMMIT)
    log.transaction(log.op("commit", half))
    return half


@case("discarded", "DISCARDED_TWICE")
def discarded_twice(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half))
    log.transaction(log.discard(half), log.op("discard", half))
    return half


@case("rolled_back", "PROGRESS_AHEAD")
def rolled_back_but_not_recorded(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    return half


@case("delivered", "PROGRESS_AHEAD")
def delivered_but_not_recorded(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.copy(half))
    return half


@case("pending", "PROGRESS_AHEAD", state="undecided")
def forgotten_by_the_watermark(log: Log) -> Half:
    return log.half(partition=PASSED)


@case("rolled_back", "OUTCOME_WITHOUT_DECISION")
def rolled_back_without_a_decision(log: Log) -> Half:
    half = log.half()
    log.transaction(log.op("rollback", half))
    return half


@case(None, strays=("OUTCOME_WITHOUT_HALF",))
def outcome_without_half_message(log: Log) -> None:
    log.transaction(log.op("rollback", Half(PLAIN, 666_666, "F" * 32, "billing", log.real(ORDERS))))


@case(None, strays=("UNREADABLE_OP",))
def unreadable_outcome(log: Log) -> None:
    log.transaction(Record(log.names.op, PLAIN, None, b"1,x,2", headers(TXB_V="1", TAGS="d", OUTCOME="commit")))


@case(None)
def records_of_other_producers(log: Log) -> None:
    log.transaction(
        Record(log.real(ORDERS), 0, b"k", b"v", []),
        Record(log.real(ORDERS), 1, None, None, [("UNIQ_KEY", b"somebody else's")]),
        Record(log.names.offset, PLAIN, b"not ours", b"{", []),
        Record(log.names.discard, 0, None, b"not ours", []),
    )


# At the end: not read by the worker yet


@case("pending", state="decision_unread", tail=True)
def commit_not_read_yet(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    return half


@case("pending", state="decision_unread", tail=True)
def rollback_not_read_yet(log: Log) -> Half:
    half = log.half()
    log.end(half, ROLLBACK)
    return half


@case("delivered", "UNRECORDED", tail=True)
def delivered_in_half_of_a_kafka_transaction(log: Log) -> Half:
    half = log.half()
    log.end(half, COMMIT)
    log.transaction(log.copy(half))
    return half


@case("discarded", tail=True)
def resume_not_read_yet(log: Log) -> Half:
    half = log.half()
    log.transaction(log.discard(half), log.op("discard", half), log.parked(half, "discarded"))
    log.end(half, UNKNOWN, source="resume")
    return half


def plant(log: Log) -> dict[str, Half | None]:
    """Plant every case, with progress records of a worker that has read everything but the tail."""
    planted = {name: case.plant(log) for name, case in CASES.items()}
    log.transaction(log.progress(PLAIN, half=0))
    log.transaction(log.progress(PASSED, half=3))
    return planted | {name: case.plant(log) for name, case in TAIL.items()}
