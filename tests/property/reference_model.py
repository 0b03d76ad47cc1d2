"""What docs/protocol.md promises, in few lines: no schedules, no watermark arithmetic, nothing forgotten.

Written from that page alone. It knows every half message for ever and answers what an END record does to each.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

#: CHECK_IMMUNITY_TIME_IN_SECONDS -> milliseconds before the first check, with a transaction_timeout of 6 s.
IMMUNITY = {None: 6_000, "0": 0, "3": 3_000, "45": 45_000, "100000": 100_000_000, "-1": 6_000, "5.5": 6_000}


@dataclass
class Message:
    """One half message and its fate."""

    transaction_id: str
    group: str
    topic: str
    size: int
    #: From when its age counts, and when the next check, or after the last one the discard, is due.
    since: int
    due: int
    state: str = "pending"
    checks: int = 0
    #: Not to be delivered before.
    deliver_at: int | None = None
    #: Delivered, rolled back, abandoned, or discarded beyond resume: the worker has forgotten its transaction id.
    is_finished: bool = False


class Reference:
    """Half offsets to messages; None is a malformed record. What is not there is no record at all."""

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

    def end(self, record, now: int, delivered: Container[int], is_forgotten: Callable[[int], bool]) -> list[str]:
        """Apply an END record; what each entry came to: a reason of refusal, or what changed ("" when nothing).

        A commit is `delivered` in the same transaction, scheduled or held.
        """
        return [self._entry(record, entry, now, delivered, is_forgotten) for entry in record.entries]

    def _entry(self, record, entry, now: int, delivered: Container[int], is_forgotten: Callable[[int], bool]) -> str:
        message = self.messages.get(entry.half_offset)
        decision = {8: "committed", 12: "rolled_back", 0: ""}[entry.decision.value]
        is_resume, is_abandon = record.source.value == "resume", record.source.value == "abandon"
        if is_forgotten(entry.half_offset):
            return "LATE"
        if message is None:
            return "NO_HALF_MESSAGE"
        if message.state == "discarded" and (decision or message.is_finished):
            return "LATE"
        if message.state == "abandoned" and decision:
            return "REPEAT" if decision == "committed" else "CONTRADICTION"
        if message.state in {"committed", "rolled_back"} and decision:
            return "REPEAT" if message.state == decision else "CONTRADICTION"
        if not message.is_finished and message.transaction_id != entry.transaction_id:
            return "WRONG_TRANSACTION_ID"
        if not message.is_finished and message.group != record.group:
            return "WRONG_GROUP"
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
        """Whether it must not be delivered yet."""
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
        """Why it is to be discarded, if it is."""
        if message.state != "pending":
            return set()
        reasons = set()
        if message.checks == self.max_checks and message.due <= as_of:
            reasons.add("MAX_CHECKS")
        if message.since + self.max_age <= as_of:
            reasons.add("EXPIRED")
        return reasons
