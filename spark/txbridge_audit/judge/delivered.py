"""The decisions, outcomes and visible records of a transaction, as its mentions tell them. No fact is needed for them.

The protocol's rule of the winner: of the entries with the right transaction id and group, the first commit or rollback
in the order of END (offset, then line) decides. After a discard nothing decides until a resume has reopened the
message; the discard's own END position says which entries came before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter

from txbridge_audit.judge.lazy import lazy
from txbridge_audit.judge.transaction import AuditedTransaction
from txbridge_audit.protocol.mentions import (
    BY_OPERATOR,
    COMMANDS,
    COMMIT,
    GIVE_UP,
    ROLLBACK,
    UNKNOWN,
    CopyMention,
    DiscardMention,
    EndMention,
    HalfMention,
    MessagePart,
    OutcomeMention,
    position_of,
)

#: Place of a visible record: topic, partition, offset.
Place = tuple[str, int, int]


class DeliveredCase:
    """What the mentions of a transaction say."""

    def __init__(self, transaction: AuditedTransaction) -> None:
        self.transaction = transaction

    @lazy
    def half(self) -> HalfMention | None:
        """The record at the half coordinates, well formed or not; None if there is none."""
        return self.transaction.halves[0] if self.transaction.halves else None

    @lazy
    def own(self) -> HalfMention | None:
        """The half message if we can read it. The worker may have found it malformed all the same."""
        half = self.half
        return half if half is not None and half.fault is None else None

    @lazy
    def message(self) -> HalfMention | None:
        """The half message if it is valid. Only then there is a transaction, with a fate.

        It is not if the worker has found it malformed, or to be a copy.
        """
        return None if self.transaction.asides else self.own

    @property
    def is_several(self) -> bool:
        return self.message is not None and self.message.parts is not None

    @lazy
    def ours(self) -> list[EndMention]:
        """The entries of END with the right id and group, in any order."""
        own = self.own
        return [end for end in self.transaction.ends if own and end.id == own.id and end.group == own.group]

    @lazy
    def wrong_ids(self) -> list[EndMention]:
        own = self.own
        return [end for end in self.transaction.ends if own and end.id != own.id]

    @lazy
    def wrong_groups(self) -> list[EndMention]:
        own = self.own
        return [end for end in self.transaction.ends if own and end.id == own.id and end.group != own.group]

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
    def _split_decisions(self) -> tuple[list[EndMention], list[EndMention]]:
        """The commits and rollbacks in their order: those that came in time, and those that came after a discard."""
        in_time: list[EndMention] = []
        late: list[EndMention] = []
        for end in sorted((end for end in self.ours if end.decision in {COMMIT, ROLLBACK}), key=attrgetter("place")):
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
        return self._split_decisions[0]

    @property
    def late(self) -> list[EndMention]:
        """Those that came after a discard, in their order."""
        return self._split_decisions[1]

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

    def ruling_of(self, end: EndMention) -> str:
        """What the protocol makes of an entry: `decided`, `unknown`, the command, or why it is refused."""
        own, winner = self.message, self.winner
        if own is None or end.id != own.id:
            return "WRONG_TRANSACTION_ID"
        if end.group != own.group:
            return "WRONG_GROUP"
        if end.source in COMMANDS:
            return end.source
        if end.decision == UNKNOWN:
            return "unknown"
        if winner is None or end.place < winner.place:
            return "LATE"
        if end.place == winner.place:
            return "decided"
        return "REPEAT" if end.decision == winner.decision else "CONTRADICTION"

    @lazy
    def by_hand(self) -> list[EndMention]:
        """The entries that name an operator as their source, in their order."""
        return sorted((end for end in self.transaction.ends if end.source in BY_OPERATOR), key=attrgetter("place"))

    @lazy
    def resumed_at(self) -> int | None:
        """The END offset of its last resume."""
        return self._resumes[-1][0] if self._resumes else None

    @property
    def given_up_by(self) -> str | None:
        """The source of the first command after its commit that gave it up; None without one."""
        winner = self.winner
        if winner is None or winner.decision != COMMIT:
            return None
        asked = (end for end in self.ours if end.source in GIVE_UP and end.place > winner.place)
        first = min(asked, key=attrgetter("place"), default=None)
        return None if first is None else first.source

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
    def _commits(self) -> list[OutcomeMention]:
        """The records of OP that name it as committed: one, unless a worker has named it again."""
        return [outcome for outcome in self.transaction.outcomes if outcome.outcome == "commit"]

    @lazy
    def committed_at(self) -> int | None:
        """The append time of the first OP record that names it as committed, ms."""
        return min((outcome.stamp for outcome in self._commits), default=None)

    @property
    def is_not_yet_decided(self) -> bool:
        """Whether the part of END that a delivering Kafka transaction has applied ends before the decision.

        Each of several counts: which one was the first is unknown once retention has removed records.
        """
        winner = self.winner
        if winner is None:
            return False
        reached = [parked.end_position for parked in self.transaction.parked if parked.delivered]
        if any(position is not None and position < winner.at for position in reached):
            return True
        decided = position_of(*winner.place)
        return any(outcome.until is not None and decided >= outcome.until for outcome in self._commits)

    @property
    def is_passed_before(self) -> bool:
        """Whether that part begins behind the decision."""
        if self.winner is None:
            return False
        decided = position_of(*self.winner.place)
        return any(outcome.since is not None and decided < outcome.since for outcome in self._commits)

    @lazy
    def messages(self) -> tuple[MessagePart, ...]:
        """The messages that it holds, in their order; none if it is not valid: then all of its copies are strays."""
        return self.message.messages if self.message is not None else ()

    @property
    def topics(self) -> set[str]:
        """The real topics that it asks for."""
        return {message.topic for message in self.messages}

    @lazy
    def times(self) -> list[int]:
        """The times of delivery of its messages, from the earliest on. Those with the same time are one step."""
        return sorted(message.deliver_at for message in self.messages)

    @property
    def is_stepwise(self) -> bool:
        """Whether its messages do not all have the same time of delivery."""
        return bool(self.times) and self.times[0] < self.times[-1]

    @lazy
    def delivered_to(self) -> int:
        """The last time whose messages were delivered, as parked entries and an abandon tell; -1 for none."""
        told = [parked.delivered for parked in self.transaction.parked]
        told += [discard.delivered for discard in self.transaction.discards if discard.is_abandon]
        number = max(told, default=0)
        return self.times[:number][-1] if number and self.times else -1

    @lazy
    def recorded_to(self) -> int:
        """The same, as OP tells, too: it names a commit once the last message is delivered."""
        return self.times[-1] if self.is_named("commit") and self.times else self.delivered_to

    @property
    def next_time(self) -> int | None:
        """The time of delivery of the messages that come next; None when none is left."""
        return next((time for time in self.times if time > self.recorded_to), None)

    def message_of(self, copy: CopyMention) -> MessagePart | None:
        """The message that a copy is of; None if it does not say so."""
        messages = self.messages
        if not self.is_several:
            return messages[0] if messages else None
        if copy.number is None or copy.numbers != len(messages) or copy.number > len(messages):
            return None
        return messages[copy.number - 1]

    def _asks(self, copy: CopyMention) -> MessagePart:
        message = self.message_of(copy)
        assert message is not None  # A copy at home is of a message.
        return message

    def time_of(self, copy: CopyMention) -> int:
        return self._asks(copy).deliver_at

    @lazy
    def _split_copies(self) -> tuple[list[CopyMention], list[CopyMention]]:
        message = self.message
        if message is None:
            return [], []
        home: list[CopyMention] = []
        foreign: list[CopyMention] = []
        for copy in self.transaction.copies:
            if copy.id == message.delivered_id:
                asked = self.message_of(copy)
                (home if asked is not None and copy.topic == asked.topic else foreign).append(copy)
        return home, foreign

    @property
    def home(self) -> list[CopyMention]:
        """The visible records with its id in the topics that it asks for."""
        return self._split_copies[0]

    @property
    def foreign(self) -> list[CopyMention]:
        """Those elsewhere: somebody has forwarded them."""
        return self._split_copies[1]

    @lazy
    def copies(self) -> int:
        """Number of visible copies. Of several messages: 1 if none of them is there twice, even if some are missing."""
        home = self.home
        if not home or not self.is_several:
            return len(home)
        return 2 if len(home) > len(self.messages) - len(self.unseen) else 1

    @property
    def is_visible(self) -> bool:
        return self.copies > 0

    @lazy
    def unseen(self) -> list[MessagePart]:
        """The messages that are not visible."""
        if not self.is_several:
            return [] if self.home else list(self.messages)
        seen = {copy.number for copy in self.home}
        return [message for number, message in enumerate(self.messages, 1) if number not in seen]

    @lazy
    def altered_at(self) -> Place | None:
        """The first copy whose key, value, headers or timestamp differ."""
        return _first(copy for copy in self.home if self._is_altered(copy))

    def _is_altered(self, copy: CopyMention) -> bool:
        asked, message = self._asks(copy), self.message
        dated = asked.dated or (message.born if message is not None else None)
        return copy.content != asked.content or (copy.dated is not None and copy.dated != dated)

    @lazy
    def misplaced_at(self) -> Place | None:
        """The first copy in a wrong partition. A partition that the user fixed wins over the key."""
        return _first(copy for copy in self.home if self._is_misplaced(copy))

    def _is_misplaced(self, copy: CopyMention) -> bool:
        asked = self._asks(copy)
        if asked.place is not None:
            return copy.place != asked.place
        # An altered key does not tell the right partition.
        return copy.by_key is not None and copy.content == asked.content

    @lazy
    def out_of_order_at(self) -> Place | None:
        """Of several messages, the first copy that lies behind the copy of a later one in its partition.

        A message with an earlier time of delivery may come first, and so may all of them in one Kafka transaction.

        If one of them is there twice, the first of its copies is unknown, and None is returned.
        """
        if not self.is_several or self.copies != 1:
            return None
        # By partition and time of delivery, the number of the last message so far.
        last: dict[tuple[str, int], dict[int, int]] = {}
        for copy in sorted(self.home, key=attrgetter("visible_at")):
            before, number, time = last.setdefault((copy.topic, copy.place), {}), copy.number or 0, self.time_of(copy)
            if any(other > number for its_time, other in before.items() if its_time >= time):
                return copy.visible_at
            before[time] = number
        return None


def _first(copies: Iterable[CopyMention]) -> Place | None:
    return min((copy.visible_at for copy in copies), default=None)
