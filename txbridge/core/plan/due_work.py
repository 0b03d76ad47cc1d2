"""Drafts of due work: delivery of held and scheduled messages, checks, discards of exhausted or too old messages.

A draft takes due entries out of the timers. Entries that it does not change go back at once. The others are scheduled
anew when Kafka has committed the draft, or go back when it is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.core.half_entry import HalfEntry
from txbridge.core.plan.choice import Room
from txbridge.core.plan.draft import Draft
from txbridge.core.plan.effects import EXPIRED, MAX_CHECKS, InTurn, Obstacle
from txbridge.core.states import TransactionState


@dataclass(frozen=True, slots=True)
class DueRound:
    """What a turn may check and discard."""

    #: Time (ms) up to which checks, and up to which discards count as due. END is applied up to the high watermark that
    #: was read after that time. None: nothing may be discarded.
    as_of: int
    discard_as_of: int | None
    #: Producer groups with checks due, and whether one may be checked now.
    groups: list[str]
    may_check: Callable[[str], bool]
    #: Reason why a check topic does not take a message.
    obstacle: Obstacle
    most_checks: int
    most_discards: int
    #: Check topics of the live groups.
    topics: set[str]
    #: Whether it is for a check topic in quarantine, and must go apart from everything else.
    is_probe: bool


def deliver_due(
    draft: Draft, obstacle: Obstacle, obstacle_of_held: Obstacle, limit: int, max_bytes: int, room: Room | None
) -> None:
    """Deliver scheduled and held messages that are due, and forget discarded ones that cannot be resumed any more.

    `max_bytes` bounds the draft as a whole, `limit` the messages that are retried. Only a transaction that would be
    alone in the draft may be larger. A message without room goes back unchanged, and nothing is written about it. So
    does one with different times whose frames were not looked at: they would not have fitted into the memory.
    """
    timers = draft.queue.timers
    most = len(draft.deliver) + draft.more + limit
    due = timers.take_timers_due(draft.due, limit)
    left_out = False
    for entry in draft.take_due(due):
        if entry.state is TransactionState.DISCARDED:
            draft.forget_discarded(entry)
            continue
        # After the first message that does not fit, none does. Otherwise small messages would always pass a large one.
        left_out = left_out or not draft.can_tell(entry)
        part = entry if left_out else draft.part_of(entry)
        is_much = draft.bytes + part.size > max_bytes or len(draft.deliver) + draft.more + part.messages > most
        left_out = left_out or bool(draft.deliver and is_much)
        if left_out or (room is not None and room(part) is False):
            # Back into the schedule at once, whatever happens to this transaction.
            timers.put_back((entry,))
            continue
        is_held = entry.state is TransactionState.HELD
        why = (obstacle_of_held if is_held else obstacle)(part)
        if why is None:
            draft.add_delivery(entry)
        elif is_held:
            # The back-off of a message that waits for others begins anew.
            timers.postpone_retry(entry, draft.now, why, 1 if isinstance(why, InTurn) else entry.attempts + 1)
        else:
            draft.hold_entry(entry, why, entry.decided)
    draft.note_due(is_more=len(due) == limit, left_out=left_out)


def send_checks(draft: Draft, due_round: DueRound, limit: int) -> int:
    """Draft the checks that are due in a round, and return the number of messages that were looked at.

    A group that is not live keeps its checks: none is sent, none is counted. The others share the limit equally. The
    next group may use the rest of a share, so the backlog of one group does not delay the others.
    """
    looked_at, due, as_of, groups = 0, draft.queue.timers, due_round.as_of, due_round.groups
    living = due.in_turn(one for one in groups if due_round.may_check(one) and due.has_checks_due(one, as_of))
    for turn, group in enumerate(living):
        share = -(-limit // (len(living) - turn))
        taken = due.take_checks_due(group, as_of, share)
        looked_at += len(taken)
        for entry in draft.take_due(taken):
            limit -= 1
            if draft.queue.policy.expires(entry.since) <= as_of:
                # Its discard is due as well, and needs no check. From now on it is scheduled only by its age.
                continue
            why = due_round.obstacle(entry)
            if why is None:
                draft.send_check(entry)
            else:
                _put_off(draft, entry, why)
    return looked_at


def _put_off(draft: Draft, entry: HalfEntry, why: str) -> None:
    """Try a check later that its topic does not take. It is not counted. From now on OFFSET has the reason."""
    if entry.error is None:
        draft.note_unchecked(entry, why)
        return
    # OFFSET has a reason already. Back into the schedule at once, whatever happens to this transaction.
    attempts = entry.attempts + (not isinstance(why, InTurn))
    draft.queue.timers.postpone_retry(entry, draft.now, why, max(1, attempts))


def discard(draft: Draft, as_of: int, limit: int) -> int:
    """Discard messages that are exhausted or too old at `as_of`. END must be applied as for checks.

    Called before `send_checks`, it saves checks of messages that are too old. Returns the number of messages that were
    looked at.
    """
    timers = draft.queue.timers
    exhausted = timers.take_exhausted(as_of, limit)
    for entry in draft.take_due(exhausted):
        draft.give_up(entry, MAX_CHECKS)
    expired = timers.take_expired(as_of, limit)
    for entry in expired:
        if draft.take_for_age(entry):
            draft.give_up(entry, EXPIRED)
        else:
            # Its age goes on counting, whatever this transaction does to it.
            timers.put_back_expired((entry,))
    return len(exhausted) + len(expired)
