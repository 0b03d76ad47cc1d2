"""Checker of a recorded history, in the manner of Jepsen's Kafka workload. It does not know how txbridge works."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.chaos.reader import Sighting
from tests.chaos.store import Plan
from tests.support.message_frames import delivered_id

_NO_PLANS: Mapping[str, Plan] = {}


def violations(
    decisions: Mapping[str, bool],
    told: Iterable[tuple[str, str, bool]],
    watched: Sequence[Sighting],
    final: Sequence[Sighting],
    plans: Mapping[str, Plan] = _NO_PLANS,
) -> list[str]:
    """Descriptions of all violations.

    Args:
        decisions: The application's database: whether each transaction commits.
        told: The results that client processes got: id, decision sent (C, R, U), whether Kafka acknowledged it.
        watched: The sightings of a reader that watched all along.
        final: The records that a reader sees at the end, from the first offset on.
        plans: The messages of each transaction that commits. Without a plan it has one message with unknown content.
    """
    found: list[str] = []
    watched, final = by_their_ids(watched, plans), by_their_ids(final, plans)
    committed = {name for name, commits in decisions.items() if commits}
    for who, sightings in (("the watching reader", watched), ("the reader at the end", final)):
        records = Counter(map(_name, sightings))
        found += [f"doubled: {name} {number} times for {who}" for name, number in records.items() if number > 1]
        copies = Counter(one.transaction_id for one in sightings)
        found += [f"lost: {name} is committed, and {who} did not see it" for name in committed - copies.keys()]
        found += [
            f"leaked: {name} is rolled back, and {who} saw it"
            if name in decisions
            else f"phantom: {who} saw {name}, which no application decided"
            for name in copies.keys() - committed
        ]
        found += _disorder(who, sightings)
        found += _against_plans(who, sightings, plans)
    places = {one.place: one.transaction_id for one in final}
    for one in watched:
        now = places.get(one.place)
        if now != one.transaction_id:
            found.append(f"changed: {_place(one)} was {one.transaction_id}, and is {now}")
    for name, letter, _ in told:
        if letter != "U" and decisions.get(name) is not (letter == "C"):
            found.append(f"inconsistent application: {name} was told {letter}, its database says {decisions.get(name)}")
    return found


def by_their_ids(sightings: Sequence[Sighting], plans: Mapping[str, Plan]) -> list[Sighting]:
    """The sightings with transaction ids. Messages of different times carry another one (docs/protocol.md)."""
    ids = {
        delivered_id(name, [plan.due or -1 if topic == plan.topics[0] else -1 for topic in plan.topics]): name
        for name, plan in plans.items()
    }
    return [replace(one, transaction_id=ids.get(one.transaction_id, one.transaction_id)) for one in sightings]


def unfinished(halves: Mapping[tuple[int, int], str], finished: Collection[tuple[int, int]]) -> list[str]:
    """Transactions without a recorded outcome: a check that never came, or an answer that got lost.

    Args:
        halves: The transaction ids in HALF, by partition and offset. A copy has the id of the first.
        finished: The half messages with an outcome in OP.
    """
    known = {name for where, name in halves.items() if where in finished}
    first = {name: where for where, name in reversed(halves.items())}
    return [
        f"unfinished: {name} has no outcome, its half message is {partition}:{offset}"
        for name, (partition, offset) in first.items()
        if name not in known
    ]


def refusals(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Decisions that the workers have refused, by their log (event end_refused). Every decision here is valid.

    Delivered messages do not show such a refusal, because checks would decide the message again. Only a repeat is no
    violation: a client answers a check with a decision that it has sent already. After a take-over it may be refused as
    late, because the new owner does not know any more how the message was finished.
    """
    return [
        f"refused: {one['count']} decisions as {one['reason']}, the first of {one['partition']}:{one['half_offset']} "
        f"in END {one['end_offset']} ({one['source']})"
        for one in events
        if one["reason"] not in {"repeat", "late"}
    ]


def _disorder(who: str, sightings: Sequence[Sighting]) -> list[str]:
    """Offsets of a partition must rise: a reader that gets an older record again would process it again."""
    last: dict[tuple[str, int], int] = {}
    found = []
    for one in sightings:
        where = (one.topic, one.partition)
        if one.offset <= last.get(where, -1):
            found.append(f"went back: {who} saw {_place(one)} after {last[where]}")
        last[where] = one.offset
    return found


def _against_plans(who: str, sightings: Sequence[Sighting], plans: Mapping[str, Plan]) -> Iterator[str]:
    """Check each transaction against its plan: all messages or none, right topics and order, not before their time."""
    seen: dict[str, list[Sighting]] = defaultdict(list)
    for one in sightings:
        seen[one.transaction_id].append(one)
    for name, records in seen.items():
        plan = plans.get(name)
        if plan is None:
            continue
        many = len(plan.topics)
        missing = sorted(set(range(1, many + 1)) - {one.number for one in records})
        if missing:
            yield f"torn: {who} saw {name} without {', '.join(f'{number}/{many}' for number in missing)}"
        last: dict[tuple[str, int], Sighting] = {}
        for one in sorted(records, key=lambda one: one.place):
            if one.of != many or one.number > many or one.topic != plan.topics[one.number - 1]:
                yield f"strayed: {who} saw {one.transaction_id} {one.number}/{one.of} in {one.topic}"
            before = last.get((one.topic, one.partition), one)
            if before.number > one.number:
                yield f"out of order: {who} saw {name} {before.number}/{many} before {one.number}/{many}"
            last[one.topic, one.partition] = one
            # Worker and broker use the same clock here, so there is no tolerance.
            names_time = plan.due is not None and one.topic == plan.topics[0]
            if names_time and one.stored is not None and one.stored < plan.due:
                yield f"early: {_name(one)} was stored {plan.due - one.stored} ms before its time"


def _name(one: Sighting) -> str:
    return one.transaction_id if one.of == 1 else f"{one.transaction_id} {one.number}/{one.of}"


def _place(one: Sighting) -> str:
    return f"{one.topic}{':' if one.topic else ''}{one.partition}:{one.offset}"
