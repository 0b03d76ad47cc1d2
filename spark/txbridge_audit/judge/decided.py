"""The decisions and outcomes of a transaction, as its mentions tell them. No fact is needed for them.

The protocol's rule of the winner: of the entries with the right transaction id and group, the first commit or rollback
in the order of END (offset, then line) decides. After a discard nothing decides until a resume has reopened the
message; the discard's own END position says which entries came before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    DiscardMention,
    EndMention,
    HalfMention,
    OutcomeMention,
    position_of,
)


class DecidedCase:
    """What the mentions of a transaction say about its half message, its decisions and its outcomes."""

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
        """The half message if it is valid. Only then there is a transaction, with a fate."""
        return None if self.is_set_aside else self.own

    @lazy
    def is_set_aside(self) -> bool:
        """Whether the worker has found it malformed, or to be a copy."""
        return bool(self.transaction.asides)

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
