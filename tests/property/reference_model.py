"""The promises of docs/protocol.md as a small model without schedules and watermarks, which forgets nothing.

The model is written from that page alone. It keeps every half message and computes the effect of each END record on it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

#: CHECK_IMMUNITY_TIME_IN_SECONDS -> milliseconds before the first check, with a transaction_timeout of 6 s.
IMMUNITY = {None: 6_000, "0": 0, "3": 3_000, "45": 45_000, "100000": 100_000_000, "-1": 6_000, "5.5": 6_000}


@dataclass
class Message:
    """A half message and its fate."""

    transaction_id: str
    group: str
    topic: str
    size: int
    #: Time from which the age counts, and time of the next check. After the last check, `due` is the time of the
    #: discard.
    since: int
    due: int
    state: str = "pending"
    checks: int = 0
    #: Time of delivery (ms); None is at once.
    deliver_at: int | None = None
    #: Delivered, rolled back, abandoned, or discarded beyond resume.
    is_finished: bool = False


class Reference:
    """Messages by half offset. None is a malformed record; an offset that is missing holds no record."""

    def __init__(self, interval: int, checks: int, max_age: int) -> None:
        self.interval, self.max_checks, self.max_age = interval, checks, max_age
        self.messages: dict[int, Message | None] = {}

    def prepare(self, half, immunity: str | None) -> None:
        due = half.born + min(IMMUNITY[immunity], self.max_age)
        self.messages[half.offset] = Message(
            half.transaction_id,
            half.group,
            half.real_topic,
            half.size,
            since=half.born,
            due=due,
            deliver_at=half.deliver_at,
        )

    def end(
        self,
        record,
        now: int,
        delivered: Container[int],
        is_forgotten: Callable[[int], bool],
        owner_of: Callable[[int], tuple[str | None, str | None]],
    ) -> list[str]:
        """Apply an END record; return for each entry the reason of refusal, or its effect ("" for none).

        A commit is `delivered` in the same transaction, scheduled or held. `owner_of` has what a worker still knows of
        the id and group of a message.
        """
        return [self._entry(record, entry, now, delivered, is_forgotten, owner_of) for entry in record.entries]

    def _entry(self, record, entry, now, delivered, is_forgotten, owner_of) -> str:
        message = self.messages.get(entry.half_offset)
        decision = {8: "committed", 12: "rolled_back", 0: ""}[entry.decision.value]
        is_resume, is_abandon = record.source.value == "resume", record.source.value in {"abandon", "cancel"}
        if record.source.value == "find":
            # A question, which has no effect.
            return None
        if is_forgotten(entry.half_offset):
            return "LATE"
        if message is None:
            return "NO_HALF_MESSAGE"
        knows_id, knows_group = (not message.is_finished or known for known in owner_of(entry.half_offset))
        if knows_id and message.transaction_id != entry.transaction_id:
            return "WRONG_TRANSACTION_ID"
        if knows_group and message.group != record.group:
            return "WRONG_GROUP"
        if message.state == "discarded" and (decision or message.is_finished):
            return "LATE"
        if message.state == "abandoned" and decision:
            return "REPEAT" if decision == "committed" else "CONTRADICTION"
        if message.state in {"committed", "rolled_back"} and decision:
            return "REPEAT" if message.state == decision else "CONTRADICTION"
        if is_resume:
            if message.state != "discarded":
                return "NOT_DISCARDED"
            message.state, message.checks, message.since, message.due = "pending", 0, now, now
            return "resumed"
        if is_abandon:
            if message.state != "committed" or message.is_finished:
                return "NOT_HELD"
            message.state, message.is_finished = "abandoned", True
            return "abandoned"
        if decision:
            message.state = decision
            message.is_finished = decision == "rolled_back" or entry.half_offset in delivered
        return decision

    def is_early(self, offset: int, now: int) -> bool:
        """Whether the message's time of delivery has not come."""
        deliver_at = self.messages[offset].deliver_at
        return deliver_at is not None and deliver_at > now

    def check(self, offset: int, now: int) -> None:
        message = self.messages[offset]
        message.checks, message.due = message.checks + 1, now + self.interval

    def is_check_due(self, message: Message, as_of: int) -> bool:
        if message.since + self.max_age <= as_of:
            return False
        return message.state == "pending" and message.checks < self.max_checks and message.due <= as_of

    def discard_reasons(self, message: Message, as_of: int) -> set[str]:
        """Reasons for which the message is due for its discard; empty when it is not due."""
        if message.state != "pending":
            return set()
        reasons = set()
        if message.checks == self.max_checks and message.due <= as_of:
            reasons.add("MAX_CHECKS")
        if message.since + self.max_age <= as_of:
            reasons.add("EXPIRED")
        return reasons
