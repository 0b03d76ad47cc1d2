"""A case: one transaction with the facts, and everything that more than one rule asks of it.

The protocol's rule of the winner: of the entries with the right transaction id and group, the first commit or rollback
in the order of END (offset, then line) decides. After a discard nothing decides until a resume has reopened the
message; the discard's own END position says which entries came before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from txbridge_audit.judge.facts import CLOCK_MARGIN_MS, Facts, HalfFacts
from txbridge_audit.judge.lacking import (
    CHECK_TOPIC,
    CHECKPOINT,
    CHECKS,
    CHECKS_AGED,
    CHECKS_KEPT_MS,
    COPY,
    DISCARD,
    END,
    OP,
    OPEN,
    PARKED,
)
from txbridge_audit.judge.lazy import lazy
from txbridge_audit.judge.transaction import Transaction
from txbridge_audit.protocol.mentions import (
    COMMIT,
    ROLLBACK,
    CheckMention,
    CopyMention,
    DiscardMention,
    EndMention,
    HalfMention,
    MessagePart,
    ParkedMention,
    position_of,
)

#: A held message is tried again after a minute at most, so it is delivered soon after its topic is back. If it is held
#: for hours more, something else is wrong.
HELD_LONG_MS = 2 * 3_600_000
#: A worker uses the clock of the broker that leads OFFSET, and OP has the append times of another one. Clocks that
#: differ by more are wrong.
EARLY_MARGIN_MS = 60_000

#: Place of a visible record: topic, partition, offset.
Place = tuple[str, int, int]


class Case:
    """One transaction before the judge."""

    def __init__(self, transaction: Transaction, facts: Facts) -> None:
        self.transaction = transaction
        self.facts = facts
        self.about: HalfFacts = facts.half(transaction.partition)
        #: Known once the rules of fates were tested. None: there is no valid half message.
        self.fate: str | None = None
        #: Why a pending transaction waits.
        self.pending_state: str | None = None
        self._now = facts.now - CLOCK_MARGIN_MS

    # The half message

    @lazy
    def half(self) -> HalfMention | None:
        """The record at the half coordinates, well formed or not."""
        return self.transaction.halves[0] if self.transaction.halves else None

    @property
    def is_present(self) -> bool:
        return bool(self.transaction.halves)

    @lazy
    def own(self) -> HalfMention | None:
        """The half message if we can read it. The worker may have found it malformed all the same."""
        half = self.half
        return half if half is not None and half.fault is None else None

    @lazy
    def message(self) -> HalfMention | None:
        """The half message if it is valid. Only then there is a transaction, with a fate."""
        return None if self.is_set_aside else self.own

    @lazy
    def is_set_aside(self) -> bool:
        """Whether the worker has found it malformed, or to be a copy."""
        return bool(self.transaction.asides)

    @property
    def is_several(self) -> bool:
        return self.message is not None and self.message.parts is not None

    # Decisions

    @lazy
    def ours(self) -> list[EndMention]:
        """The entries of END with the right id and group, in any order."""
        own = self.own
        if own is None:
            return []
        return [end for end in self.transaction.ends if end.id == own.id and end.group == own.group]

    @lazy
    def wrong_ids(self) -> list[EndMention]:
        own = self.own
        return [] if own is None else [end for end in self.transaction.ends if end.id != own.id]

    @lazy
    def wrong_groups(self) -> list[EndMention]:
        own = self.own
        if own is None:
            return []
        return [end for end in self.transaction.ends if end.id == own.id and end.group != own.group]

    @lazy
    def discard_ends(self) -> list[int]:
        """The END positions of its discards."""
        positions = (discard.end_position for discard in self.discards)
        return sorted(position for position in positions if position is not None)

    @lazy
    def discards(self) -> list[DiscardMention]:
        """Its discards; an abandoned message was never discarded."""
        return [discard for discard in self.transaction.discards if not discard.is_abandon]

    @lazy
    def _decided(self) -> tuple[list[EndMention], list[EndMention]]:
        """The commits and rollbacks in their order: those that came in time, and those that came after a discard."""
        in_time: list[EndMention] = []
        late: list[EndMention] = []
        for end in sorted((end for end in self.ours if end.decision in {COMMIT, ROLLBACK}), key=_place):
            (in_time if self._is_open(end) else late).append(end)
        return in_time, late

    @lazy
    def _resumes(self) -> list[tuple[int, int]]:
        return sorted(end.place for end in self.ours if end.source == "resume")

    def _is_open(self, entry: EndMention) -> bool:
        """Whether the message was open to decisions at this entry: never discarded before it, or resumed since."""
        before = bisect_right(self.discard_ends, entry.at)
        if not before:
            return True
        # The last resume before the entry; one at or behind the END position of the discard reopens.
        resumes = bisect_left(self._resumes, entry.place)
        return resumes > 0 and self._resumes[resumes - 1][0] >= self.discard_ends[before - 1]

    @property
    def decisions(self) -> list[EndMention]:
        """The commits and rollbacks that came in time, in their order."""
        return self._decided[0]

    @property
    def late(self) -> list[EndMention]:
        """Those that came after a discard, in their order."""
        return self._decided[1]

    @lazy
    def winner(self) -> EndMention | None:
        """The first valid decision."""
        return self.decisions[0] if self.decisions else None

    @lazy
    def contrary(self) -> EndMention | None:
        """The first decision that says the opposite of the winner."""
        winner = self.winner
        return next((end for end in self.decisions if winner and end.decision != winner.decision), None)

    def is_decided(self, decision: int) -> bool:
        return self.winner is not None and self.winner.decision == decision

    @lazy
    def resumed_at(self) -> int | None:
        """The END offset of its last resume."""
        return self._resumes[-1][0] if self._resumes else None

    @lazy
    def abandoned_at(self) -> int | None:
        """The END offset of the last request of its group to abandon it."""
        return max((end.at for end in self.ours if end.source == "abandon"), default=None)

    @lazy
    def last_named_at(self) -> int | None:
        """The END offset of the last entry that names it, right or wrong."""
        return max((end.at for end in self.transaction.ends), default=None)

    @property
    def is_given_up(self) -> bool:
        """Whether an operator has abandoned it after it was committed."""
        winner, asked = self.winner, self.abandoned_at
        return winner is not None and winner.decision == COMMIT and asked is not None and asked >= winner.at

    @lazy
    def is_applied(self) -> bool:
        """Whether the worker's checkpoint is past the END entry that decided. An END not read yet is no fault."""
        winner, to = self.winner, self.about.applied_to
        if winner is None or to is None:
            return False
        return winner.at < to or (winner.at == to and winner.line < self.about.applied_entry)

    @lazy
    def is_reopened(self) -> bool:
        """Whether it was resumed after its last discard, and the worker has applied the resume.

        A parked entry that waits again says so, too, if OP, which is cut later, names no other discard than the one
        before the resume.
        """
        if self.parked == "pending" and self.last_parked and self.last_parked.resumed is not None:
            discards = sum(outcome.outcome == "discard" for outcome in self.transaction.outcomes)
            if discards == 1 and len(self.discards) <= 1 and not self.lacking & OP:
                return True
        resumed, to = self.resumed_at, self.about.applied_to
        if resumed is None or to is None or not self.discard_ends:
            return False
        return self.discard_ends[-1] <= resumed < to

    # Records that are gone

    @lazy
    def lacking(self) -> int:
        """The bits (lacking.py) of the evidence about this transaction that is gone."""
        about, born = self.about, self.half.born if self.half else None
        bits = CHECKPOINT if about.checkpoint_gone else 0
        if not about.op_settled:
            bits |= OPEN
        # OP names each discard. So the record of a discard is gone if OP names the discard and there is no record. Only
        # the END position in the record tells which decisions came before it.
        if self.is_named("discard") and not self.discard_ends:
            bits |= DISCARD
        if self.has_twin:
            bits |= COPY
        if born is not None:
            # A record comes after the birth of its transaction. So a topic still has all records of transactions that
            # were born after the oldest record in it.
            if born <= about.ends_since:
                bits |= END
            if born <= about.outcomes_since:
                bits |= OP
                if born <= about.discards_since:
                    # Neither OP nor the discard topic would tell of a discard.
                    bits |= DISCARD
            if born <= about.parked_since:
                bits |= PARKED
        return bits | self._lacking_checks if self.winner else bits

    @property
    def _lacking_checks(self) -> int:
        """The bits that follow from the group and the time of the decision."""
        since, winner = self.facts.checks_since, self.winner
        group = self.message.group if self.message else None
        if since is None or winner is None or group is None:
            return 0
        if group not in since:
            return CHECK_TOPIC
        if winner.stamp > since[group]:
            return 0
        return CHECKS_AGED if winner.stamp <= self.facts.now - CHECKS_KEPT_MS else CHECKS

    @lazy
    def has_twin(self) -> bool:
        """Whether another half message has the same id, and its discard record is gone.

        The other one may be a copy. ENDs that name a copy decide the first half message. Only the discard record of the
        copy tells that it is one. A message whose own discard record is gone is no twin of itself.
        """
        half = self.half
        if not self.facts.discards_cut or half is None or half.id is None:
            return False
        others = self.facts.unexplained.get((self.transaction.partition, half.id), ())
        return any(other != half.half for other in others)

    @lazy
    def is_winner_known(self) -> bool:
        """Whether no decision is missing, and none is counted that came after a discard."""
        return not self.lacking & (END | COPY | DISCARD)

    @property
    def are_ends_known(self) -> bool:
        return not self.lacking & (END | COPY)

    @property
    def are_outcomes_known(self) -> bool:
        return not self.lacking & OP

    @property
    def is_history_known(self) -> bool:
        """Whether no decision, no outcome and no discard is missing."""
        return not self.lacking & (END | COPY | OP | DISCARD)

    @property
    def are_parked_known(self) -> bool:
        return not self.lacking & PARKED

    # Outcomes

    @lazy
    def _op(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for outcome in self.transaction.outcomes:
            found[outcome.outcome] = min(outcome.at, found.get(outcome.outcome, outcome.at))
        return found

    def op(self, outcome: str) -> int | None:
        """The offset of the first OP record that names this outcome."""
        return self._op.get(outcome)

    def is_named(self, outcome: str) -> bool:
        """Whether OP names this outcome."""
        return outcome in self._op

    @property
    def is_recorded(self) -> bool:
        """Whether OP names any outcome."""
        return bool(self._op)

    @lazy
    def committed_at(self) -> int | None:
        """The append time of the first OP record that names it as committed, ms."""
        stamps = (outcome.stamp for outcome in self.transaction.outcomes if outcome.outcome == "commit")
        return min(stamps, default=None)

    @lazy
    def _applied_span(self) -> tuple[int | None, int | None]:
        commits = [outcome for outcome in self.transaction.outcomes if outcome.outcome == "commit"]
        first = min(commits, key=lambda outcome: outcome.at, default=None)
        return (None, None) if first is None else (first.since, first.until)

    @property
    def is_not_yet_decided(self) -> bool:
        """Whether the part of END that the delivering Kafka transaction has applied ends before the decision."""
        winner, until = self.winner, self._applied_span[1]
        return winner is not None and until is not None and position_of(*winner.place) >= until

    @property
    def is_passed_before(self) -> bool:
        """Whether that part begins behind the decision."""
        winner, since = self.winner, self._applied_span[0]
        return winner is not None and since is not None and position_of(*winner.place) < since

    # Visible records

    def part_of(self, copy: CopyMention) -> MessagePart | None:
        """The message that a copy is of, if the half message holds several."""
        parts = self.own.parts if self.own is not None else None
        if parts is None or copy.number is None or copy.numbers != len(parts) or copy.number > len(parts):
            return None
        return parts[copy.number - 1]

    @lazy
    def _sorted(self) -> tuple[list[CopyMention], list[CopyMention]]:
        own = self.own
        if own is None:
            return [], []
        home: list[CopyMention] = []
        foreign: list[CopyMention] = []
        for copy in self.transaction.copies:
            if copy.id == own.id:
                (home if copy.topic == self._topic_of(copy) else foreign).append(copy)
        return home, foreign

    def _topic_of(self, copy: CopyMention) -> str | None:
        if self.own is None or self.own.parts is None:
            return self.own.real_topic if self.own else None
        part = self.part_of(copy)
        return part.topic if part else None

    @property
    def home(self) -> list[CopyMention]:
        """The visible records with its id in the topics that it asks for."""
        return self._sorted[0]

    @property
    def foreign(self) -> list[CopyMention]:
        """Those elsewhere: somebody has forwarded them."""
        return self._sorted[1]

    def is_before(self, copy: CopyMention) -> bool:
        """Whether the copy lies below the earlier cut."""
        return copy.at < self.facts.before.get((copy.topic, copy.place), 0)

    @lazy
    def copies(self) -> int:
        """Number of visible copies. Of several messages: 1 if none of them is there twice, even if some are missing."""
        home = self.home
        if not home or self.own is None or self.own.parts is None:
            return len(home)
        return 2 if len(home) > len(self._visible_numbers) else 1

    @property
    def is_visible(self) -> bool:
        return self.copies > 0

    @lazy
    def is_visible_before(self) -> bool:
        """Whether a copy lies below the earlier cut."""
        return any(map(self.is_before, self.home))

    @lazy
    def _visible_numbers(self) -> set[int | None]:
        return {copy.number for copy in self.home}

    @lazy
    def missing_topics(self) -> set[str]:
        """Of several messages: the topics of those that are not visible."""
        parts = self.own.parts if self.own is not None else None
        return {part.topic for number, part in enumerate(parts or (), 1) if number not in self._visible_numbers}

    @property
    def is_incomplete(self) -> bool:
        """Of several messages: whether some are not visible."""
        return bool(self.missing_topics)

    @lazy
    def strays(self) -> list[CopyMention]:
        """The records below the earlier cut that claim these coordinates, and match no valid half message."""
        message = self.message
        return [
            copy
            for copy in self.transaction.copies
            if self.is_before(copy) and (message is None or copy.id != message.id)
        ]

    def _asks(self, copy: CopyMention) -> tuple[int, int | None, int]:
        """Content, partition and timestamp that the half message asks for."""
        own = self.own
        assert own is not None  # A copy is at home in the topic of a half message that can be read.
        part = self.part_of(copy)
        if part is not None:
            return part.content, part.place, part.dated or own.born
        return own.content, own.fixed_partition, own.dated

    @lazy
    def altered_at(self) -> Place | None:
        """The first copy whose key, value, headers or timestamp differ."""
        return _first(copy for copy in self.home if self._is_altered(copy))

    def _is_altered(self, copy: CopyMention) -> bool:
        content, _, dated = self._asks(copy)
        return copy.content != content or (copy.dated is not None and copy.dated != dated)

    @lazy
    def misplaced_at(self) -> Place | None:
        """The first copy in a wrong partition. A partition that the user fixed wins over the key."""
        return _first(copy for copy in self.home if self._is_misplaced(copy))

    def _is_misplaced(self, copy: CopyMention) -> bool:
        content, place, _ = self._asks(copy)
        if place is not None:
            return copy.place != place
        # An altered key does not tell the right partition.
        return copy.by_key is not None and copy.content == content

    @lazy
    def out_of_order_at(self) -> Place | None:
        """Of several messages, the first copy that lies behind the copy of a later one in its partition.

        If one of them is there twice, the first of its copies is unknown, and None is returned.
        """
        if not self.is_several or self.copies != 1:
            return None
        placed = sorted((_place_of(copy), copy.number or 0) for copy in self.home)
        for (one, number), (following, its_number) in pairwise(placed):
            if one[:2] == following[:2] and its_number < number:
                return following
        return None

    # The real topics

    @property
    def topics(self) -> list[str]:
        """The real topics that it asks for."""
        message = self.message
        if message is None:
            return []
        return [part.topic for part in message.parts] if message.parts is not None else [str(message.real_topic)]

    @lazy
    def is_topic_there(self) -> bool:
        """Whether its real topics exist."""
        return all(self.facts.topic(topic) is not None for topic in self.topics)

    @lazy
    def is_settled(self) -> bool:
        """Whether no open Kafka transaction hides records of its real topics."""
        known = (self.facts.topic(topic) for topic in self.topics)
        return all(topic is None or topic.settled for topic in known)

    def may_prove(self, *, whole: bool = False) -> list[str]:
        """The topics in which a record that is not there may prove a loss: not compacted (`whole`: nor truncated)."""
        missed = self.missing_topics if self.is_several else self.topics
        known = (self.facts.topic(topic) for topic in sorted(missed))
        return [topic.topic for topic in known if topic and not topic.compacted and not (whole and topic.truncated)]

    @lazy
    def is_loss_proved(self) -> bool:
        """Whether a committed record that is not in its real topic is proved to be lost (see evidence.py)."""
        op = self.op("commit")
        proofs, partition = self.facts.proofs, self.transaction.partition
        return op is not None and any(op > proofs.get((partition, topic), op) for topic in self.may_prove())

    # OFFSET and the check topics

    @lazy
    def last_parked(self) -> ParkedMention | None:
        return max(self.transaction.parked, key=lambda parked: parked.at, default=None)

    @property
    def parked(self) -> str | None:
        """The state of the last parked entry; None without one, or when it is removed."""
        return self.last_parked.state if self.last_parked else None

    @lazy
    def checked(self) -> CheckMention | None:
        """The check request with the highest END position."""
        own = self.own
        known = (c for c in self.transaction.checks if own is not None and c.id == own.id)
        return max(
            (check for check in known if check.end_position is not None),
            key=lambda check: (check.end_position, check.topic, check.place, check.at),
            default=None,
        )

    @property
    def is_checked_late(self) -> bool:
        """Whether a check was sent after the decision had been applied."""
        checked, winner = self.checked, self.winner
        return checked is not None and winner is not None and (checked.end_position or 0) > winner.at

    @lazy
    def checks_sent(self) -> int:
        """The highest number of a check that the topics still show."""
        own = self.own
        numbers = [check.checks for check in self.transaction.checks if own is not None and check.id == own.id]
        numbers += [parked.checks for parked in self.transaction.parked]
        numbers += [end.checks for end in self.ours]
        numbers += [discard.checks for discard in self.transaction.discards if not discard.is_abandon]
        return max((number for number in numbers if number is not None), default=0)

    # Time

    @lazy
    def is_overdue(self) -> bool:
        """Whether it is older than an undecided message may become, or was not discarded after its last check."""
        parked, limits = self.last_parked, self.facts.limits
        born = self.half.born if self.half else None
        # The age counts from a resume.
        since = max((at for at in (born, parked.resumed if parked else None) if at is not None), default=None)
        if since is not None and since + limits.transaction_max_age < self._now:
            return True
        if parked is None or parked.checks is None or parked.due is None:
            return False
        return parked.checks >= limits.transaction_check_max and parked.due < self._now

    @property
    def is_early(self) -> bool:
        """Whether OP names it as delivered before its time."""
        at, wanted = self.committed_at, self.message.deliver_at if self.message else None
        return at is not None and wanted is not None and at < wanted - EARLY_MARGIN_MS

    @property
    def is_undelivered(self) -> bool:
        """Whether the time of delivery in the parked entry has passed."""
        parked = self.last_parked
        return parked is not None and parked.due is not None and parked.due < self._now

    @property
    def is_held_long(self) -> bool:
        """Whether it was decided hours ago, and its real topic is there."""
        return self.is_topic_there and self.winner is not None and self.winner.stamp < self._now - HELD_LONG_MS

    @property
    def is_below_watermark(self) -> bool:
        """Whether the checkpoint calls it finished or parked."""
        low, half = self.about.low, self.transaction.half
        return low is not None and half is not None and half < low

    @property
    def delivery_latency(self) -> int | None:
        """Milliseconds to the delivery, from the decision or from the time that the message names, whichever is later.

        The wait for a time that the sender wanted is no latency.
        """
        at, winner, half = self.committed_at, self.winner, self.half
        if at is None or winner is None:
            return None
        return at - max(winner.stamp, (half.deliver_at if half else None) or winner.stamp)


def _place(end: EndMention) -> tuple[int, int]:
    return end.place


def _place_of(copy: CopyMention) -> Place:
    return copy.topic, copy.place, copy.at


def _first(copies: Iterable[CopyMention]) -> Place | None:
    return min(map(_place_of, copies), default=None)
