"""What falls due, as drafted: deliveries of what is held or scheduled, checks, the end of what is exhausted or too old.

A draft takes what is due out of the timers. What it does not change goes back at once; the rest is scheduled anew when
Kafka has committed it, or goes back when the draft is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txbridge.core.batch import Room
from txbridge.core.draft import Draft
from txbridge.core.effects import EXPIRED, MAX_CHECKS, InTurn, Obstacle
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import TRANSITIONS, Event, TransactionState


def deliver_due(
    draft: Draft,
    obstacle: Obstacle,
    obstacle_of_held: Obstacle,
    limit: int,
    max_bytes: int,
    room: Room | None = None,
) -> None:
    """Deliver scheduled messages whose time has come and held ones whose back-off has passed; forget discarded ones
    that can no longer be resumed.

    `max_bytes` bounds the draft as a whole, `limit` the messages that are retried; only a transaction that would be
    alone in it may be larger. What has no room goes back as it came: nothing is written about it.
    """
    timers = draft.queue.timers
    most = len(draft.deliver) + draft.more + limit
    due = timers.take_timers_due(draft.due, limit)
    draft.more_due = len(due) == limit
    for entry in draft.take(due):
        if entry.state is TransactionState.DISCARDED:
            draft.forget(entry)
            continue
        # From the first on that does not fit, for all: a small one must not be preferred for ever.
        is_much = draft.bytes + entry.size > max_bytes or len(draft.deliver) + draft.more + entry.messages > most
        fits = not draft.left_out and not (draft.deliver and is_much)
        draft.left_out = not fits
        if not fits or (room is not None and room(entry) is False):
            # Back into the schedule at once, whatever becomes of this transaction.
            draft.let_go(entry)
            timers.put_back((entry,))
            continue
        is_held = entry.state is TransactionState.HELD
        why = (obstacle_of_held if is_held else obstacle)(entry)
        if why is None:
            draft.add_delivery(entry)
        elif is_held:
            draft.let_go(entry)
            # The back-off of one that waits for others begins anew.
            timers.postpone(entry, draft.now, why, 1 if isinstance(why, InTurn) else entry.attempts + 1)
        else:
            draft.hold(entry, why, entry.decided)


def send_checks(
    draft: Draft,
    as_of: int,
    alive: Callable[[str], bool],
    limit: int,
    obstacle: Obstacle = lambda _: None,
    groups: Iterable[str] | None = None,
) -> int:
    """Check what was due at `as_of`; END must have been applied up to the high watermark read after that time.

    Returns how many were looked at. `obstacle` tells why a check topic does not take this one. `groups` are those to
    look at; without them, all that have a check due.

    A group with nobody alive keeps its checks: none is sent, none is counted. The others share the limit equally, and
    what one leaves the next may use: the backlog of one group does not hold up the others.
    """
    looked_at, due = 0, draft.queue.timers
    known = due.groups_with_checks_due(as_of) if groups is None else groups
    living = due.in_turn(group for group in known if alive(group) and due.has_checks_due(group, as_of))
    for turn, group in enumerate(living):
        share = -(-limit // (len(living) - turn))
        taken = due.take_checks_due(group, as_of, share)
        looked_at += len(taken)
        for entry in draft.take(taken):
            limit -= 1
            if draft.queue.policy.expires(entry.since) <= as_of:
                # Its discard is due as well, and needs no check: only its age is in a schedule from now on.
                draft.let_go(entry)
                continue
            why = obstacle(entry)
            if why is None:
                _check(draft, entry)
            else:
                _put_off(draft, entry, why)
    return looked_at


def _check(draft: Draft, entry: HalfEntry) -> None:
    due, checks = draft.queue.policy.next_check(draft.now), entry.checks + 1
    changed = draft.change(entry, TransactionState.PENDING, due, checks=checks, error=None, attempts=0)
    # Once it has been refused, the shell writes it apart from others.
    draft.checks.append(changed._replace(attempts=entry.attempts))
    draft.bytes += entry.size


def _put_off(draft: Draft, entry: HalfEntry, why: str) -> None:
    """The check topic does not take its check: not counted, and tried later. OFFSET tells why, from now on."""
    if entry.error is None:
        due = draft.queue.policy.retry_refused(draft.now, 1)
        draft.unchecked.append(draft.change(entry, entry.state, due, error=why, attempts=1))
        return
    # OFFSET tells already. Back into the schedule at once, whatever becomes of this transaction.
    draft.let_go(entry)
    attempts = entry.attempts + (not isinstance(why, InTurn))
    draft.queue.timers.postpone(entry, draft.now, why, max(1, attempts))


def discard(draft: Draft, as_of: int, limit: int) -> int:
    """Give up what is exhausted or too old at `as_of`; the same condition on END as for checks.

    Best called before `send_checks`: what is too old need not be checked once more. Returns how many were looked at.
    """
    timers = draft.queue.timers
    exhausted = timers.take_exhausted(as_of, limit)
    for entry in draft.take(exhausted):
        _give_up(draft, entry, MAX_CHECKS)
    expired = timers.take_expired(as_of, limit)
    for entry in expired:
        if draft.take_for_age(entry):
            _give_up(draft, entry, EXPIRED)
        else:
            # Whatever else this transaction does to it, its age goes on counting.
            timers.put_back_expired((entry,))
    return len(exhausted) + len(expired)


def _give_up(draft: Draft, entry: HalfEntry, reason: str) -> None:
    state = TRANSITIONS[entry.state, Event.GIVE_UP].state
    due = draft.now + draft.queue.policy.discard_retention
    draft.discards.append(draft.change(entry, state, due, reason=reason))
    draft.bytes += entry.size
