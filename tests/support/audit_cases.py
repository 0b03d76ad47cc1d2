"""Transactions with a known fate. Each is a list of steps: what clients, the worker and operators wrote, in order.

`CASES` plants one transaction (or none) each into a `Log`. The expected results were written by hand.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.support.audit_terms import (
    ABSENT,
    COMMIT,
    COMPACTED,
    FORWARDED,
    ORDERS,
    PASSED,
    PLAIN,
    ROLLBACK,
    UNKNOWN,
    Half,
    Log,
    Record,
    headers,
)

#: Times in ms: long ago, and long after any test.
LONG_AGO, FAR_AWAY = 1_000_000_000_000, 5_000_000_000_000


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
    #: Fates of further half messages of the case.
    others: tuple[str, ...] = ()

    @property
    def fates(self) -> list[str]:
        """The fates of all half messages of the case, that of `plant` first."""
        return [fate for fate in (self.fate, *self.others) if fate is not None]


CASES: dict[str, Case] = {}
#: Cases planted after the progress record was written: the worker has not read their ENDs.
TAIL: dict[str, Case] = {}

Step = Callable[[Log, Half], object]
Records = Callable[[Log, Half], list[Record]]


def story(
    name: str,
    expected: str,
    *steps: Step,
    several: Sequence[str] = (),
    places: Sequence[int] = (),
    times: Sequence[int] = (),
    topic: str = ORDERS,
    partition: int = PLAIN,
    key: bytes = b"key",
    strays: str = "",
    tail: bool = False,
    **changed: str,
) -> None:
    """A half message and the steps of its life. `expected` is its fate (`pending:` with its state) and its findings.

    The half message holds one message for each topic of `several`, with their `times` of delivery if they have their
    own, or one message; `changed` are its headers.
    """

    def plant(log: Log) -> Half:
        if several:
            half = log.several(*several, partition=partition, places=places, times=times, **changed)
        else:
            half = log.half(topic, partition, key=key, **changed)
        for step in steps:
            step(log, half)
        return half

    register(name, expected, plant, strays, tail=tail)


def register(
    name: str,
    expected: str,
    plant: Callable[[Log], Half | None],
    strays: str = "",
    others: str = "",
    *,
    tail: bool = False,
) -> None:
    fate, *findings = expected.split() or [None]
    fate, _, state = (fate or "").partition(":")
    made = Case(plant, fate or None, state or None, frozenset(findings), tuple(strays.split()), tuple(others.split()))
    (TAIL if tail else CASES)[name] = made


def written(
    expected: str, strays: str = "", others: str = ""
) -> Callable[[Callable[[Log], Half | None]], Callable[[Log], Half | None]]:
    """A case that writes its records itself."""

    def decorate(plant: Callable[[Log], Half | None]) -> Callable[[Log], Half | None]:
        register(plant.__name__, expected, plant, strays, others)
        return plant

    return decorate


def absent_offset() -> int:
    """A half offset beyond any log's end, another one each time."""
    return 10**12 + secrets.randbelow(10**12)


# Records


def copy(topic: str | None = None, partition: int = 0, **changed: str | None) -> Records:
    return lambda log, half: [log.copy(half, topic, partition, **changed)]


def copies(*numbers: int, places: Sequence[int] = ()) -> Records:
    """Copies of the messages of a half message with several, in this order (counted from 1). Default: all."""

    def made(log: Log, half: Half) -> list[Record]:
        found = log.copies(half, places)
        return [found[number - 1] for number in numbers] if numbers else found

    return made


def changed_copy(change: Callable[[Record], Record], partition: int = 0) -> Records:
    return lambda log, half: [change(log.copy(half, partition=partition))]


def op(outcome: str, ends: str | None = None) -> Records:
    return lambda log, half: [log.op(outcome, half, ends=ends)]


def old_op(log: Log, half: Half) -> list[Record]:
    """A commit, recorded two hours ago."""
    return [log.op("commit", half, dated=log.recently - 7_200_000)]


def parked(state: str | None, **more: object) -> Records:
    return lambda log, half: [log.parked(half, state, **more)]


def discard(reason: str = "MAX_CHECKS", **more: str) -> Records:
    return lambda log, half: [log.discard(half, reason=reason, **more)]


def check(times: int = 1, **changed: str | None) -> Records:
    """A check of a worker that has applied every decision so far."""
    return lambda log, half: [log.check(half, log.end_position[half.partition], times, **changed)]


# Steps


def end(decision: int, source: str = "client", **how: str) -> Step:
    return lambda log, half: log.end(half, decision, source, **how)


def together(*parts: Records) -> Step:
    """One Kafka transaction."""
    return lambda log, half: log.transaction(*(record for part in parts for record in part(log, half)))


def aborted(*parts: Records) -> Step:
    return lambda log, half: log.aborted(*(record for part in parts for record in part(log, half)))


def hold(log: Log, half: Half) -> None:
    decided = log.end(half, COMMIT)
    log.transaction(log.parked(half, "held", decision=COMMIT, decided=decided, error="no such topic"))


def schedule(due: int) -> Step:
    def step(log: Log, half: Half) -> None:
        decided = log.end(half, COMMIT)
        log.transaction(log.parked(half, "scheduled", decision=COMMIT, decided=decided, deliver=due, next=due))

    return step


def schedule_rest(due: int, delivered: int, *numbers: int) -> Step:
    """A commit that delivers the messages with these numbers, and schedules the others."""

    def step(log: Log, half: Half) -> None:
        decided = log.end(half, COMMIT)
        rest = scheduled(due, delivered, decision=COMMIT, decided=decided)
        log.transaction(*(copies(*numbers)(log, half) if numbers else ()), *rest(log, half))

    return step


def scheduled(due: int, delivered: int, **more: object) -> Records:
    """The parked entry of messages that wait, behind those that were delivered."""
    return parked("scheduled", deliver=due, next=due, delivered=delivered, **more)


commit, rollback, unknown = end(COMMIT), end(ROLLBACK), end(UNKNOWN)
resume, abandon, give_up = end(UNKNOWN, "resume"), end(UNKNOWN, "abandon"), end(UNKNOWN, "cancel")
record_commit, record_rollback = together(op("commit")), together(op("rollback"))
deliver = together(copy(), op("commit"))
deliver_parked = together(copy(), op("commit"), parked(None))
deliver_several = together(copies(), op("commit"))
discard_unparked = together(discard(), op("discard"))
discard_parked = together(discard(), op("discard"), parked("discarded"))
#: The records that the worker writes when an operator abandons a held message.
let_go = together(discard("ABANDONED"), op("abandon"), parked(None))

# As it should be

#: They prove losses of what was decided an hour later.
HOURS_AGO = ("delivered_hours_ago", "another_delivered_hours_ago")
story("delivered_hours_ago", "delivered", commit, together(copy(), old_op))
story("another_delivered_hours_ago", "delivered", commit, together(copy(), old_op))
story("delivered", "delivered", commit, deliver)
story(
    "delivered_in_answer_to_a_check",
    "delivered",
    end(UNKNOWN, rest=",,no%20idea%2C%20sorry"),
    together(parked("pending", checks=1)),
    end(COMMIT, "check", rest=",1"),
    deliver_parked,
)
story("rolled_back", "rolled_back", rollback, record_rollback)


@written("delivered", others="rolled_back")
def several_entries_in_one_end_record(log: Log) -> Half:
    first, second = log.half(), log.half()
    log.decision_record(f"{second.entry(ROLLBACK)}\n{first.entry(COMMIT)}".encode())
    log.transaction(log.copy(first), log.op("commit", first), log.op("rollback", second))
    return first


story("aborted_copy_is_not_visible", "rolled_back", rollback, aborted(copy(), op("commit")), record_rollback)
story("redone_after_an_abort", "delivered", commit, aborted(copy(), op("commit")), deliver)
story(
    "decision_of_an_aborted_transaction_decides_nothing",
    "rolled_back",
    lambda log, half: log.aborted(log.decision(half, COMMIT)),
    rollback,
    record_rollback,
)
story(
    "decision_of_a_committed_transaction_decides",
    "delivered",
    lambda log, half: log.transaction(log.decision(half, COMMIT)),
    lambda log, half: log.aborted(log.decision(half, ROLLBACK)),
    deliver,
)
story("undecided", "pending:undecided")
story("unknown_decides_nothing", "pending:undecided", unknown, end(UNKNOWN, "check", rest=",1"))
story("held", "pending:held", hold, topic=ABSENT)

AT_LAST, IN_TIME = {"TXB_DELIVER_AT": str(FAR_AWAY)}, {"TXB_DELIVER_AT": str(LONG_AGO)}

story("scheduled", "pending:scheduled", schedule(FAR_AWAY), **AT_LAST)
story("scheduled_and_passed_by_the_watermark", "pending:scheduled", schedule(FAR_AWAY), partition=PASSED, **AT_LAST)
story("scheduled_and_delivered", "delivered", schedule(LONG_AGO), deliver_parked, **IN_TIME)
story("delivered_at_once_because_its_time_had_passed", "delivered", commit, deliver, **IN_TIME)
story(
    "scheduled_and_decided_again",
    "delivered CONTRADICTION REPEAT",
    schedule(LONG_AGO),
    commit,
    rollback,
    deliver_parked,
    **IN_TIME,
)
story(
    "scheduled_and_cancelled",
    "cancelled",
    schedule(FAR_AWAY),
    end(UNKNOWN, "cancel", rest=",,the%20customer%20called"),
    let_go,
    **AT_LAST,
)
story("delayed_and_undecided", "pending:undecided", together(parked("pending", deliver=FAR_AWAY)), **AT_LAST)
story("delivered_before_its_time", "delivered EARLY", schedule(FAR_AWAY), deliver_parked, **AT_LAST)
story("delivered_as_if_it_named_no_time", "delivered EARLY", commit, deliver, **AT_LAST)
story("scheduled_and_forgotten", "pending:scheduled OVERDUE", schedule(LONG_AGO), **IN_TIME)
story("parked_and_passed_by_the_watermark", "pending:undecided", together(parked("pending")), partition=PASSED)
story(
    "held_and_abandoned",
    "abandoned BY_HAND",
    hold,
    end(UNKNOWN, "abandon", rest=",,gone%20for%20good"),
    let_go,
    topic=ABSENT,
)
story("abandoned_and_decided_again", "abandoned REPEAT CONTRADICTION BY_HAND", hold, abandon, let_go, commit, rollback)
story("abandoned_before_it_was_held_and_so_refused", "delivered BY_HAND", abandon, commit, deliver)
story("abandoned_and_not_read_yet", "pending:held BY_HAND", hold, abandon, topic=ABSENT, tail=True)
story("discarded", "discarded", together(discard(), op("discard"), parked("discarded", reason="MAX_CHECKS")))
story("resumed", "pending:resumed BY_HAND", discard_parked, resume, together(parked("pending")))
story(
    "resumed_and_committed",
    "delivered BY_HAND",
    discard_parked,
    resume,
    together(parked("pending")),
    end(COMMIT, "operator"),
    deliver_parked,
)
story("discarded_again_after_a_resume", "discarded BY_HAND", discard_unparked, resume, discard_parked)

# Refusals: findings beside the fate

story("later_rollback_refused", "delivered CONTRADICTION", commit, end(ROLLBACK, "check", rest=",1"), deliver)
story("later_commit_refused", "rolled_back CONTRADICTION", rollback, record_rollback, commit)
story(
    "first_line_of_one_record_wins",
    "rolled_back CONTRADICTION",
    lambda log, half: log.decision_record(f"{half.entry(ROLLBACK)}\n{half.entry(COMMIT)}".encode()),
    record_rollback,
)
story("repeated", "delivered REPEAT", commit, commit, deliver)
story(
    "wrong_transaction_id",
    "rolled_back WRONG_TRANSACTION_ID",
    end(COMMIT, transaction_id="0" * 32),
    rollback,
    record_rollback,
)
story("wrong_group", "rolled_back WRONG_GROUP", end(COMMIT, group="shipping"), rollback, record_rollback)
story("late_after_a_discard", "discarded LATE", discard_parked, commit)


@written("discarded LATE")
def late_by_the_end_position_of_the_discard(log: Log) -> Half:
    """The END was in the log when the discard was written, but the worker had not read it when it decided."""
    half = log.half()
    seen = log.end_position[half.partition]
    log.end(half, COMMIT)
    log.transaction(log.discard(half, end=seen), log.op("discard", half), log.parked(half, "discarded"))
    return half


story("late_then_resumed", "delivered LATE BY_HAND", discard_parked, rollback, resume, commit, deliver)
story("resume_of_what_was_not_discarded_does_nothing", "rolled_back BY_HAND", resume, rollback, record_rollback)


@written("", strays="NO_HALF_MESSAGE")
def end_without_half_message(log: Log) -> None:
    log.decision_record(f"{absent_offset()},{'A' * 32},8".encode())


@written("", strays="NO_HALF_MESSAGE")
def end_whose_half_offset_no_log_can_have(log: Log) -> None:
    log.decision_record(f"{'9' * 30},{'A' * 32},8".encode())


# Malformed records


@written("", strays="MALFORMED")
def malformed_half_message(log: Log) -> None:
    half = log.half(REAL_TOPIC="no topic")
    log.transaction(log.set_aside(log.names.half, half.partition, half.offset), log.op("discard", half))


story("delivered_of_a_barrier_table", "delivered", commit, deliver, TXB_BARRIER="9f86d081884c7d65")


@written("", strays="MALFORMED " * 7)
def half_messages_that_cannot_be_read(log: Log) -> None:
    log.half(TXB_BARRIER="two words")
    log.half(TXB_BARRIER="x" * 65)
    log.half(TXB_V="2")
    log.half(topic="__consumer_offsets")
    log.half(topic="other.RMQ_SYS_TRANS_OFFSET_TOPIC")
    log.half(topic="other.eu.RMQ_SYS_TRANS_CHECK.orders.placed")
    log.half(topic="other.TRANS_AUDIT_VIOLATIONS_TOPIC")


@written("", strays="MALFORMED")
def half_message_that_only_the_worker_finds_malformed(log: Log) -> None:
    half = log.half()
    # One of the copied headers has a name of ours: the last one counts.
    copied = [("TXB_REASON", b"MAX_CHECKS"), ("TXB_HALF", b"0:0")]
    log.transaction(log.set_aside(log.names.half, half.partition, half.offset, copied), log.op("discard", half))


@written("rolled_back", strays="MALFORMED " * 9)
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


@written("delivered")
def optional_headers_without_a_value(log: Log) -> Half:
    """Headers without a value count as absent: no decision is lost because of them."""
    half = log.half(REAL_QID=None, CHECK_IMMUNITY_TIME_IN_SECONDS=None, BORN_TIMESTAMP=None)
    log.decision_record(half.entry(COMMIT).encode(), half.partition, CLIENT_ID=None)
    log.deliver(half)
    return half


@written("pending:undecided", strays="MALFORMED " * 2)
def ends_that_only_the_worker_finds_malformed(log: Log) -> Half:
    half = log.half()
    more = log.end(half, COMMIT, rest=",,one,field,more")
    two = log.decision_record(b"\n".join([half.entry(UNKNOWN).encode()] * 2), SOURCE="resume", TXB_REPLY="one")
    log.transaction(*(log.set_aside(log.names.end, half.partition, at) for at in (more, two)))
    return half


def sent_twice(log: Log) -> tuple[Half, Half, Record]:
    """A half message, its copy, and the worker's record that discards the copy."""
    half = log.half()
    again = log.half(UNIQ_KEY=half.id)
    first = f"{half.partition}:{half.offset}"
    aside = log.set_aside(log.names.half, again.partition, again.offset, TXB_REASON="COPY", TXB_HALF=first)
    return half, again, aside


@written("delivered", strays="COPY")
def sent_twice_and_the_copy_committed(log: Log) -> Half:
    half, again, aside = sent_twice(log)
    log.decision_record(f"{again.offset},{half.id},8".encode(), half.partition)
    log.deliver(half, aside, log.op("discard", again))
    return half


@written("rolled_back CONTRADICTION", strays="COPY")
def sent_twice_and_each_decided(log: Log) -> Half:
    half, again, aside = sent_twice(log)
    log.transaction(aside, log.op("discard", again))
    log.end(half, ROLLBACK)
    log.decision_record(f"{again.offset},{half.id},8".encode(), half.partition)
    log.transaction(log.op("rollback", half))
    return half


@written("delivered", strays="COPY PHANTOM")
def both_copies_delivered(log: Log) -> Half:
    half, again, aside = sent_twice(log)
    log.end(half, COMMIT)
    log.deliver(half, aside, log.op("discard", again))
    log.transaction(log.copy(half, TXB_HALF=f"{again.partition}:{again.offset}"))
    return half


# Violations

story("lost_though_recorded", "LOST", commit, record_commit)
story("lost_in_an_aborted_transaction", "LOST", commit, aborted(copy()), record_commit)
story("lost_because_skipped", "LOST", commit)
story("held_and_lost", "LOST", hold, together(op("commit"), parked(None)))
story("resumed_and_lost", "LOST BY_HAND", discard_parked, resume, together(parked("pending")), commit, record_commit)
story("lost_because_discarded_instead", "LOST", commit, discard_parked)
story("lost_because_rolled_back_instead", "LOST", commit, record_rollback)
story("duplicated", "DUPLICATED", commit, deliver, together(copy(partition=1)))
story("scheduled_and_duplicated", "DUPLICATED", schedule(LONG_AGO), together(copy(), copy(), op("commit")), **IN_TIME)
story("leaked_though_rolled_back", "LEAKED", rollback, together(copy(), op("rollback")))
story("leaked_though_abandoned", "LEAKED BY_HAND", hold, abandon, let_go, together(copy()))
story("leaked_by_a_commit_after_it_was_abandoned", "LEAKED BY_HAND", hold, abandon, let_go, deliver)
story("lost_because_abandoned_by_nobody", "LOST", hold, let_go)
story("lost_because_abandoned_before_the_commit", "LOST BY_HAND", abandon, hold, let_go)
story(
    "lost_because_abandoned_by_another_group",
    "LOST WRONG_GROUP BY_HAND",
    hold,
    end(UNKNOWN, "abandon", group="others"),
    let_go,
)
story("lost_because_abandoned_while_undecided", "LOST OUTCOME_WITHOUT_DECISION BY_HAND", abandon, let_go)
story("abandoned_though_rolled_back", "WRONG_WINNER BY_HAND", rollback, abandon, let_go)
story("leaked_though_undecided", "LEAKED OUTCOME_WITHOUT_DECISION", deliver)
story("leaked_though_discarded", "LEAKED", discard_unparked, together(copy()))
story("leaked_by_a_late_commit", "LEAKED LATE OUTCOME_WITHOUT_DECISION", discard_unparked, commit, deliver)
story(
    "leaked_by_a_forged_commit",
    "LEAKED WRONG_TRANSACTION_ID OUTCOME_WITHOUT_DECISION",
    end(COMMIT, transaction_id="0" * 32),
    deliver,
)
story(
    "leaked_by_a_malformed_commit",
    "LEAKED OUTCOME_WITHOUT_DECISION",
    lambda log, half: log.decision_record(f"{half.entry(COMMIT)}\n".encode()),
    deliver,
    strays="MALFORMED",
)
story("later_commit_prevailed", "WRONG_WINNER", rollback, commit, deliver)
story("later_rollback_prevailed", "WRONG_WINNER", commit, rollback, record_rollback)

ALTERATIONS: dict[str, Callable[[Record], Record]] = {
    "value": lambda copy: replace(copy, value=b"\xff\x00 the user's bytes."),
    "value_to_null": lambda copy: replace(copy, value=None),
    "key": lambda copy: replace(copy, key=b"yek"),
    "key_to_empty_and_value_to_both": lambda copy: replace(copy, key=b"", value=b"key\xff\x00 the user's bytes"),
    "header_value": lambda copy: replace(copy, headers=[("trace", b"2"), *copy.headers[1:]]),
    "null_header_to_empty": lambda copy: replace(copy, headers=[copy.headers[0], ("trace", b""), *copy.headers[2:]]),
    "order_of_headers": lambda copy: replace(copy, headers=[copy.headers[1], copy.headers[0], *copy.headers[2:]]),
    "by_a_header_more": lambda copy: replace(copy, headers=[("more", b"1"), *copy.headers]),
    "by_a_header_of_half_messages": lambda copy: replace(copy, headers=[*copy.headers, ("TRAN_MSG", b"true")]),
    "by_a_reserved_header": lambda copy: replace(copy, headers=[*copy.headers, ("TXB_FOO", b"true")]),
    "by_the_real_topic_in_a_header": lambda copy: replace(copy, headers=[*copy.headers, ("REAL_TOPIC", b"true")]),
    "by_an_id_more": lambda copy: replace(copy, headers=[("UNIQ_KEY", b"another"), *copy.headers]),
}
for _name, _change in ALTERATIONS.items():
    story(f"altered_{_name}", "delivered ALTERED", commit, together(changed_copy(_change), op("commit")))

deliver_to_1 = together(copy(partition=1), op("commit"))
story("delivered_to_the_partition_asked_for", "delivered", commit, deliver_to_1, REAL_QID="1")
story("delivered_to_another_partition_than_asked_for", "delivered MISPLACED", commit, deliver, REAL_QID="1")
# Kafka's hash of `key` is 1067546281.
story("delivered_to_the_partition_of_its_key", "delivered", commit, deliver_to_1)
story("delivered_where_its_key_went_when_the_topic_had_one_partition", "delivered", commit, deliver)
story("delivered_anywhere_without_a_key", "delivered", commit, deliver_to_1, key=b"")
# Kafka's hash of `foobar` is 1357151166.
story("delivered_to_another_partition_than_that_of_its_key", "delivered MISPLACED", commit, deliver_to_1, key=b"foobar")
story(
    "delivered_to_the_partition_asked_for_whatever_its_key_says",
    "delivered",
    commit,
    deliver_to_1,
    key=b"foobar",
    REAL_QID="1",
)


@written("delivered")
def delivered_with_the_timestamp_of_the_user(log: Log) -> Half:
    half = log.half(BORN_TIMESTAMP=str(log.recently))
    log.end(half, COMMIT)
    log.deliver(half)
    return half


story("timestamp_0_counts_as_absent", "delivered", commit, deliver, BORN_TIMESTAMP="0")
# The copy lies in the partition of the half message's key, but has another key: one violation, not two.
story(
    "altered_key_belongs_elsewhere",
    "delivered ALTERED",
    commit,
    together(changed_copy(lambda copy: replace(copy, key=b"foobar"), partition=1), op("commit")),
)


@written("delivered ALTERED")
def altered_timestamp_of_the_user(log: Log) -> Half:
    half = log.half(BORN_TIMESTAMP=str(log.recently))
    log.end(half, COMMIT)
    log.transaction(replace(log.copy(half), dated=log.recently + 1), log.op("commit", half))
    return half


story(
    "altered_timestamp",
    "delivered ALTERED",
    commit,
    lambda log, half: log.transaction(replace(log.copy(half), dated=log.recently), log.op("commit", half)),
)

# In the order of decisions

Entry = tuple[int, int]


def in_turn(since: Entry, until: Entry, line: int = 0) -> Step:
    """A commit, delivered by a Kafka transaction whose OP record names the END entries that it has applied.

    An entry is a record, counted from that of the decision on, and the index in it. The decision is in `line`.
    """

    def step(log: Log, half: Half) -> None:
        lines = [half.entry(UNKNOWN)] * line + [half.entry(COMMIT)]
        at = log.decision_record("\n".join(lines).encode())
        first, behind = (f"{at + record}:{index}" for record, index in (since, until))
        log.transaction(log.copy(half), log.op("commit", half, ends=f"{first}-{behind}"))

    return step


story("delivered_in_turn", "delivered", in_turn((-1, 0), (1, 0)))
story("delivered_by_the_second_of_two_transactions_of_a_record", "delivered", in_turn((0, 1), (1, 0), line=1))
story("delivered_in_turn_and_decided_again", "delivered REPEAT", in_turn((0, 0), (1, 0)), end(COMMIT, "check"))
story("delivered_before_its_decision", "delivered BEFORE_DECISION", in_turn((-1, 0), (0, 0)))
story("delivered_before_its_decision_in_a_record", "delivered BEFORE_DECISION", in_turn((0, 0), (0, 1), line=1))
story("overtaken_by_what_was_decided_later", "delivered OVERTAKEN", in_turn((1, 0), (2, 0)))
story("overtaken_by_the_rest_of_its_record", "delivered OVERTAKEN", in_turn((0, 1), (1, 0)))
story(
    "held_and_delivered_when_it_could_be",
    "delivered",
    commit,
    together(parked("held", error="no such topic")),
    deliver_parked,
)
story("ends_that_can_not_be_read_say_nothing", "delivered", commit, together(copy(), op("commit", ends="0:0")))

# Several messages in one transaction

TWO, THREE = (ORDERS, FORWARDED), (ORDERS, FORWARDED, ORDERS)

story(
    "messages_of_one_transaction_that_changed_places",
    "delivered OUT_OF_ORDER",
    commit,
    together(copies(3, 2, 1), op("commit")),
    several=THREE,
)
story(
    "messages_of_several_topics_have_no_order",
    "delivered",
    commit,
    together(copies(2, 1, 3), op("commit")),
    several=THREE,
)
story(
    "several_delivered",
    "delivered",
    commit,
    together(copies(places=[0, 0, 1]), op("commit")),
    several=THREE,
    places=[-1, -1, 1],
)
story("one_that_is_written_as_several", "delivered", commit, deliver_several, several=(ORDERS,))
story("several_rolled_back", "rolled_back", rollback, aborted(copies()), record_rollback, several=TWO)
story("several_held", "pending:held", hold, several=(ORDERS, ABSENT))
story("several_scheduled", "pending:scheduled", schedule(FAR_AWAY), several=TWO, **AT_LAST)
deliver_several_parked = together(copies(), parked(None), op("commit"))
story(
    "several_scheduled_and_delivered", "delivered", schedule(LONG_AGO), deliver_several_parked, several=TWO, **IN_TIME
)
story(
    "several_delivered_before_their_time",
    "delivered EARLY",
    schedule(FAR_AWAY),
    deliver_several_parked,
    several=TWO,
    **AT_LAST,
)
story(
    "one_of_several_scheduled_lost",
    "PARTIAL",
    schedule(LONG_AGO),
    together(copies(1), parked(None), op("commit")),
    several=(FORWARDED, ORDERS),
    **IN_TIME,
)
story(
    "one_of_several_lost",
    "PARTIAL",
    commit,
    together(copies(1, 3), op("commit")),
    several=(FORWARDED, ORDERS, FORWARDED),
)
story(
    "one_of_several_in_another_kafka_transaction_that_was_aborted",
    "PARTIAL",
    commit,
    together(copies(1), op("commit")),
    aborted(copies(2)),
    several=(ORDERS, ORDERS),
)
story(
    "one_of_several_gone_from_a_compacted_topic",
    "unverifiable",
    commit,
    together(copies(1), op("commit")),
    several=(ORDERS, COMPACTED),
)
story("all_of_several_lost", "LOST", commit, record_commit, several=(COMPACTED, ORDERS))
story("one_of_several_twice", "DUPLICATED", commit, deliver_several, together(copies(2)), several=TWO)
story("one_of_several_leaked", "LEAKED", rollback, together(copies(2), op("rollback")), several=TWO)
story(
    "one_of_several_altered",
    "delivered ALTERED",
    commit,
    together(copies(1), lambda log, half: [replace(log.copies(half)[1], value=b"")], op("commit")),
    several=TWO,
)
story(
    "one_of_several_with_another_timestamp",
    "delivered ALTERED",
    commit,
    together(copies(1, 2), lambda log, half: [replace(log.copies(half)[2], dated=half.dated)], op("commit")),
    several=THREE,
)
story(
    "one_of_several_misplaced",
    "delivered MISPLACED",
    commit,
    deliver_several,
    several=(FORWARDED, FORWARDED, ORDERS),
    places=[-1, -1, 1],
)
story(
    "one_of_several_in_the_wrong_topic",
    "PARTIAL FOREIGN_COPY",
    commit,
    together(copies(1), lambda log, half: [replace(log.copies(half)[1], topic=log.real(FORWARDED))], op("commit")),
    several=(ORDERS, ORDERS),
)


# Several messages, with times of their own

#: Those of three messages: at once, later, and at once.
LAST, LATER, FURTHER = (-1, FAR_AWAY, -1), (-1, LONG_AGO, FAR_AWAY), (-1, FAR_AWAY, FAR_AWAY + 1)
PAST = (-1, LONG_AGO, LONG_AGO + 1)
first_of_last = schedule_rest(FAR_AWAY, 2, 1, 3)
cancel = together(discard("ABANDONED", TXB_DELIVERED="2"), op("abandon"), parked(None))

story("one_waits_for_its_time", "pending:scheduled", first_of_last, several=THREE, times=LAST)
story("all_wait_for_their_times", "pending:scheduled", schedule(FAR_AWAY), several=TWO, times=(FAR_AWAY, FAR_AWAY + 1))
story(
    "the_third_waits_for_its_time",
    "pending:scheduled",
    schedule_rest(LONG_AGO, 1, 1),
    together(copies(2), scheduled(FAR_AWAY, 2)),
    several=THREE,
    times=LATER,
)
story(
    "each_delivered_at_its_time",
    "delivered",
    schedule_rest(LONG_AGO, 1, 1),
    together(copies(2), scheduled(LONG_AGO + 1, 2)),
    together(copies(3), op("commit"), parked(None)),
    several=THREE,
    times=PAST,
)
story(
    "delivered_at_once_because_their_times_had_passed", "delivered", commit, deliver_several, several=THREE, times=PAST
)
story(
    "a_later_message_delivered_first_because_it_has_no_time",
    "delivered",
    schedule_rest(LONG_AGO, 1, 2),
    together(copies(1), op("commit"), parked(None)),
    several=(ORDERS, ORDERS),
    times=(LONG_AGO, -1),
)
story("the_rest_cancelled", "cancelled", first_of_last, give_up, cancel, several=THREE, times=LAST)
story("given_up_miscounted", "cancelled MISCOUNTED", first_of_last, give_up, let_go, several=THREE, times=LAST)
story("the_rest_abandoned", "abandoned BY_HAND", first_of_last, abandon, give_up, cancel, several=THREE, times=LAST)
story("cancelled_before_the_commit_and_abandoned", "abandoned BY_HAND", give_up, hold, abandon, give_up, let_go)
story(
    "all_of_them_cancelled",
    "abandoned BY_HAND",
    schedule(FAR_AWAY),
    abandon,
    let_go,
    several=TWO,
    times=(FAR_AWAY, FAR_AWAY + 1),
)
story(
    "the_rest_held",
    "pending:held",
    schedule_rest(LONG_AGO, 1, 1),
    together(parked("held", delivered=1, error="no such topic")),
    several=(ORDERS, ABSENT),
    times=(-1, LONG_AGO),
)
story(
    "a_first_one_gone_from_a_compacted_topic",
    "pending:scheduled",
    schedule_rest(FAR_AWAY, 1),
    several=(COMPACTED, ORDERS),
    times=(-1, FAR_AWAY),
)
story("the_rest_overdue", "pending:scheduled OVERDUE", schedule_rest(LONG_AGO, 1, 1), several=THREE, times=PAST)
story("part_of_a_step_lost_while_the_rest_waits", "PARTIAL", schedule_rest(FAR_AWAY, 2, 1), several=THREE, times=LAST)
story(
    "part_of_a_step_not_delivered_and_recorded_so", "PARTIAL", schedule_rest(FAR_AWAY, 1, 1), several=THREE, times=LAST
)
story("all_of_a_step_lost", "LOST", schedule_rest(FAR_AWAY, 2), several=THREE, times=LAST)
story(
    "part_of_an_earlier_step_lost",
    "PARTIAL",
    schedule_rest(LONG_AGO, 2, 1),
    together(copies(2), op("commit"), parked(None)),
    several=THREE,
    times=(-1, LONG_AGO, -1),
)
story(
    "part_of_the_last_step_lost",
    "PARTIAL",
    schedule_rest(LONG_AGO, 1, 2),
    together(copies(1), op("commit"), parked(None)),
    several=THREE,
    times=(LONG_AGO, -1, LONG_AGO),
)
story(
    "part_of_a_step_lost_and_the_rest_cancelled",
    "PARTIAL BY_HAND",
    schedule_rest(FAR_AWAY, 2, 1),
    abandon,
    cancel,
    several=THREE,
    times=LAST,
)
story(
    "a_later_step_without_an_earlier_one",
    "PARTIAL OVERDUE UNRECORDED",
    schedule(LONG_AGO),
    together(copies(2)),
    several=TWO,
    times=(LONG_AGO, LONG_AGO + 1),
)
story(
    "a_later_step_behind_an_earlier_one",
    "delivered OUT_OF_ORDER",
    commit,
    together(copies(2, 1), op("commit")),
    several=(ORDERS, ORDERS),
    times=(-1, LONG_AGO),
)
story("the_last_step_before_its_time", "delivered EARLY", commit, deliver_several, several=THREE, times=LAST)
story(
    "a_step_before_its_time",
    "pending:scheduled EARLY",
    schedule_rest(FAR_AWAY, 1, 1),
    together(copies(2), scheduled(FAR_AWAY + 1, 2)),
    several=THREE,
    times=FURTHER,
)
story(
    "a_step_before_its_time_and_not_recorded",
    "delivered EARLY UNRECORDED",
    first_of_last,
    together(copies(2)),
    several=THREE,
    times=LAST,
)
story("a_message_of_a_step_twice", "DUPLICATED", schedule_rest(FAR_AWAY, 2, 1, 3, 3), several=THREE, times=LAST)
story(
    "a_step_before_its_decision",
    "pending:scheduled BEFORE_DECISION",
    lambda log, half: log.transaction(
        *copies(1, 3)(log, half), *scheduled(FAR_AWAY, 2, end=log.end(half, COMMIT) - 1)(log, half)
    ),
    several=THREE,
    times=LAST,
)
story("a_step_rolled_back", "LEAKED", rollback, together(copies(1), op("rollback")), several=THREE, times=LAST)
story("a_step_undecided", "LEAKED", together(copies(1, 3), scheduled(FAR_AWAY, 2)), several=THREE, times=LAST)
story(
    "a_step_delivered_after_it_was_cancelled",
    "LEAKED EARLY BY_HAND",
    first_of_last,
    abandon,
    cancel,
    together(copies(2)),
    several=THREE,
    times=LAST,
)


#: The states to which no step belongs, or none that was delivered.
WITHOUT_A_STEP: dict[str, tuple[Step, ...]] = {
    "pending:undecided": (),
    "pending:resumed BY_HAND": (discard_parked, resume, together(parked("pending"))),
    "rolled_back": (rollback, record_rollback),
    "discarded": (discard_parked,),
    "cancelled": (schedule(FAR_AWAY), give_up, let_go),
}
for state, life in WITHOUT_A_STEP.items():
    story(f"each_at_its_time_{state.split()[0].partition(':')[2] or state}", state, *life, several=TWO, times=LAST[:2])


@written("", strays="MALFORMED " * 3)
def several_times_that_can_not_be_read(log: Log) -> None:
    log.several(*TWO, times=(-1, FAR_AWAY), TXB_DELIVER_AT=str(FAR_AWAY))
    log.several(*TWO, times=(-1, 0))
    log.several(*TWO, times=(-2, FAR_AWAY))


@written("", strays="MALFORMED " * 4)
def several_that_can_not_be_read(log: Log) -> None:
    log.several(*TWO, TXB_MESSAGES="3")
    log.several(*TWO, TXB_MESSAGES="many")
    log.several(*TWO, REAL_TOPIC=log.real(FORWARDED))
    log.half(TXB_MESSAGES="1")


# Checks

story("checked_after_the_commit_was_applied", "delivered CHECKED_AFTER_DECISION", commit, deliver, together(check()))
story(
    "checked_after_the_rollback_was_applied_and_answered",
    "rolled_back CHECKED_AFTER_DECISION REPEAT",
    together(check()),
    rollback,
    together(op("rollback"), check(times=2)),
    end(ROLLBACK, "check", rest=",2"),
)


@written("delivered")
def checked_before_the_decision_was_applied(log: Log) -> Half:
    half = log.half()
    seen = log.end_position[half.partition]
    log.end(half, COMMIT)
    log.transaction(log.check(half, seen), log.parked(half, "pending", checks=1))
    log.deliver(half, log.parked(half, None))
    return half


story(
    "checked_after_a_late_commit_and_a_resume",
    "pending:resumed LATE BY_HAND",
    discard_parked,
    commit,
    resume,
    together(parked("pending", checks=1), check()),
)
# Another transaction id, malformed coordinates, and an END position that is malformed or missing.
story(
    "checks_that_say_nothing",
    "delivered",
    commit,
    deliver,
    together(check(UNIQ_KEY="E" * 32), check(TXB_HALF="here"), check(TXB_END="soon"), check(TXB_END=None)),
)
story(
    "stuck_an_interval_after_its_last_check", "pending:undecided STUCK", together(parked("pending", checks=15, next=1))
)
story("last_check_not_answered_yet", "pending:undecided", together(parked("pending", checks=15, next=2**62)))
story(
    "next_check_long_overdue_because_its_group_is_dead",
    "pending:undecided",
    together(parked("pending", checks=14, next=1)),
)

# The reply to a cancel that came too late, with what a check would say.
reply = together(check(TXB_REPLY="late", TXB_STATE="committed"))
story("replied_after_the_commit_was_applied", "delivered", commit, deliver, give_up, reply)

# Phantoms


@written("", strays="PHANTOM")
def phantom_beyond_the_half_log(log: Log) -> None:
    log.transaction(log.copy(Half(PLAIN, absent_offset(), "F" * 32, "billing", log.real(ORDERS))))


story(
    "phantom_with_the_coordinates_of_another", "pending:undecided", together(copy(UNIQ_KEY="E" * 32)), strays="PHANTOM"
)
story("phantom_with_unreadable_coordinates", "pending:undecided", together(copy(TXB_HALF="here")), strays="PHANTOM")
story("phantom_without_coordinates", "pending:undecided", together(copy(TXB_HALF=None)), strays="PHANTOM")


@written("", strays="PHANTOM MALFORMED")
def phantom_of_a_malformed_half_message(log: Log) -> None:
    half = log.half(TRAN_MSG="no")
    log.transaction(log.copy(half))


# Oddities that are no violation

story("forwarded_to_another_topic", "delivered FOREIGN_COPY", commit, deliver, together(copy(FORWARDED)))
story("committed_to_a_compacted_topic_and_gone", "unverifiable", commit, record_commit, topic=COMPACTED)
story("committed_to_a_topic_that_is_gone", "unverifiable", commit, record_commit, topic=ABSENT)
story("discarded_twice", "discarded DISCARDED_TWICE", discard_unparked, discard_unparked)
story("rolled_back_but_not_recorded", "rolled_back PROGRESS_AHEAD", rollback)
story("delivered_but_not_recorded", "delivered PROGRESS_AHEAD", commit, together(copy()))
story("forgotten_by_the_watermark", "pending:undecided PROGRESS_AHEAD", partition=PASSED)
story("rolled_back_without_a_decision", "rolled_back OUTCOME_WITHOUT_DECISION", record_rollback)


@written("", strays="OUTCOME_WITHOUT_HALF")
def outcome_without_half_message(log: Log) -> None:
    log.transaction(log.op("rollback", Half(PLAIN, absent_offset(), "F" * 32, "billing", log.real(ORDERS))))


@written("", strays="UNREADABLE_OP")
def unreadable_outcome(log: Log) -> None:
    log.transaction(Record(log.names.op, PLAIN, None, b"1,x,2", headers(TXB_V="1", TAGS="d", OUTCOME="commit")))


@written("")
def records_of_other_producers(log: Log) -> None:
    log.transaction(
        Record(log.real(ORDERS), 0, b"k", b"v", []),
        Record(log.real(ORDERS), 1, None, None, [("UNIQ_KEY", b"somebody else's")]),
        Record(log.names.offset, PLAIN, b"not ours", b"{", []),
        Record(log.names.discard, 0, None, b"not ours", []),
    )


# At the end: not read by the worker yet

story("commit_not_read_yet", "pending:decision_unread", commit, tail=True)
story("each_at_its_time_and_not_read_yet", "pending:decision_unread", commit, several=TWO, times=LAST[:2], tail=True)
story("rollback_not_read_yet", "pending:decision_unread", rollback, tail=True)
story("delivered_in_half_of_a_kafka_transaction", "delivered UNRECORDED", commit, together(copy()), tail=True)
story("resume_not_read_yet", "discarded BY_HAND", discard_parked, resume, tail=True)


def plant(log: Log) -> dict[str, Half | None]:
    """Plant every case, with progress records of a worker that has read everything but the tail."""
    planted = {name: case.plant(log) for name, case in CASES.items()}
    log.transaction(log.progress(PLAIN, half=0))
    log.transaction(log.progress(PASSED, half=3))
    return planted | {name: case.plant(log) for name, case in TAIL.items()}
