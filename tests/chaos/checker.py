"""Judges a recorded history, in the manner of Jepsen's Kafka workload: it knows nothing of how txbridge works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.chaos.reader import Sighting


def violations(
    decisions: Mapping[str, bool],
    told: Iterable[tuple[str, str, bool]],
    watched: Sequence[Sighting],
    final: Sequence[Sighting],
) -> list[str]:
    """Everything that must not be, in words.

    Args:
        decisions: what the application's database says: whether each transaction commits.
        told: what client processes were told: id, decision sent (C, R, U), whether Kafka acknowledged it.
        watched: what a reader saw that watched all along.
        final: what a reader sees at the end, from the first offset on.

    """
    found: list[str] = []
    committed = {name for name, commits in decisions.items() if commits}
    for who, sightings in (("the watching reader", watched), ("the reader at the end", final)):
        copies = Counter(one.transaction_id for one in sightings)
        found += [f"doubled: {name} {number} times for {who}" for name, number in copies.items() if number > 1]
        found += [f"lost: {name} is committed, and {who} did not see it" for name in committed - copies.keys()]
        found += [
            f"leaked: {name} is rolled back, and {who} saw it"
            if name in decisions
            else f"phantom: {who} saw {name}, which no application decided"
            for name in copies.keys() - committed
        ]
        found += _disorder(who, sightings)
    places = {(one.partition, one.offset): one.transaction_id for one in final}
    for one in watched:
        now = places.get((one.partition, one.offset))
        if now != one.transaction_id:
            found.append(f"changed: {one.partition}:{one.offset} was {one.transaction_id}, and is {now}")
    for name, letter, _ in told:
        if letter != "U" and decisions.get(name) is not (letter == "C"):
            found.append(f"inconsistent application: {name} was told {letter}, its database says {decisions.get(name)}")
    return found


def refusals(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Decisions that the workers have refused, by their log (event end_refused).

    Every decision here is valid. Checks would decide it again, so that nothing of it shows in what is delivered. Only a
    repeat is no violation: a check is answered with the decision that its client has sent already. After a take-over it
    may be called late: the new owner does not know any more how the message was finished.
    """
    return [
        f"refused: {one['count']} decisions as {one['reason']}, the first of {one['partition']}:{one['half_offset']} "
        f"in END {one['end_offset']} ({one['source']})"
        for one in events
        if one["reason"] not in {"repeat", "late"}
    ]


def _disorder(who: str, sightings: Sequence[Sighting]) -> list[str]:
    """Offsets of a partition must rise: a reader that is shown an older one again would process it again."""
    last: dict[int, int] = {}
    found = []
    for one in sightings:
        if one.offset <= last.get(one.partition, -1):
            found.append(f"went back: {who} saw {one.partition}:{one.offset} after {last[one.partition]}")
        last[one.partition] = one.offset
    return found
