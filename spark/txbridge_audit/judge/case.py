"""A case: one transaction with the facts, and everything that more than one rule asks of it."""

from __future__ import annotations

from txbridge_audit.judge import lacking
from txbridge_audit.judge.delivered import DeliveredCase
from txbridge_audit.judge.facts import CLOCK_MARGIN_MS, Facts, HalfFacts
from txbridge_audit.judge.lazy import lazy
from txbridge_audit.judge.transaction import AuditedTransaction
from txbridge_audit.protocol.mentions import CheckMention, CopyMention, MessagePart, ParkedMention, RowMention

#: A held message is tried again after a minute at most, so it is delivered soon after its topic is back. If it is held
#: for hours more, something else is wrong.
HELD_LONG_MS = 2 * 3_600_000
#: A worker uses the clock of the broker that leads OFFSET, and OP has the append times of another one. Clocks that
#: differ by more are wrong.
EARLY_MARGIN_MS = 60_000


class Case(DeliveredCase):
    """One transaction before the judge: its mentions (delivered.py), and what the facts say about them."""

    def __init__(self, transaction: AuditedTransaction, facts: Facts) -> None:
        super().__init__(transaction)
        self.facts = facts
        self.about: HalfFacts = facts.half(transaction.partition)
        #: Known once the rules of fates were tested. None: there is no valid half message.
        self.fate: str | None = None
        #: Why a pending transaction waits.
        self.pending_state: str | None = None
        self._now = facts.now - CLOCK_MARGIN_MS

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

        A parked entry that waits again says so, too, if OP and the discard topic, which are cut later, tell of no other
        discard than the one before the resume. One of the two is enough: one Kafka transaction writes both.
        """
        if self.parked == "pending" and self.last_parked and self.last_parked.resumed is not None:
            discards = sum(outcome.outcome == "discard" for outcome in self.transaction.outcomes)
            gone = self.missing_evidence & (lacking.OP | lacking.DISCARD)
            if max(discards, len(self.discards)) == 1 and gone != lacking.OP | lacking.DISCARD:
                return True
        resumed, to = self.resumed_at, self.about.applied_to
        if resumed is None or to is None or not self.discard_ends:
            return False
        return self.discard_ends[-1] <= resumed < to

    @property
    def is_below_watermark(self) -> bool:
        """Whether the checkpoint calls it finished or parked."""
        low, half = self.about.low, self.transaction.half
        return low is not None and half is not None and half < low

    @lazy
    def missing_evidence(self) -> int:
        """The bits (lacking.py) of the evidence about this transaction that is gone."""
        about, born = self.about, self.half.born if self.half else None
        bits = lacking.CHECKPOINT if about.checkpoint_gone else 0
        if not about.op_settled:
            bits |= lacking.OPEN
        # OP names each discard. So the record of a discard is gone if OP names the discard and there is no record. Only
        # the END position in the record tells which decisions came before it.
        if self.is_named("discard") and not self.discard_ends:
            bits |= lacking.DISCARD
        # The record of an abandon tells which of several messages with different times were delivered before it.
        if self.is_named("abandon") and self.is_stepwise and len(self.discards) == len(self.transaction.discards):
            bits |= lacking.ABANDON
        if self.has_twin:
            bits |= lacking.COPY
        if born is not None:
            # A record comes after the birth of its transaction. So a topic still has all records of transactions that
            # were born after the oldest record in it.
            if born <= about.ends_since:
                bits |= lacking.END
            if born <= about.outcomes_since:
                bits |= lacking.OP
                if born <= about.discards_since:
                    # Neither OP nor the discard topic would tell of a discard.
                    bits |= lacking.DISCARD
            if born <= about.parked_since:
                bits |= lacking.PARKED
        return bits | self._lacking_checks if self.winner else bits

    @property
    def _lacking_checks(self) -> int:
        """The bits that follow from the group and the time of the decision."""
        since, winner = self.facts.checks_since, self.winner
        group = self.message.group if self.message else None
        if since is None or winner is None or group is None:
            return 0
        if group not in since:
            return lacking.CHECK_TOPIC
        if winner.stamp > since[group]:
            return 0
        return lacking.CHECKS_AGED if winner.stamp <= self.facts.checks_kept_since else lacking.CHECKS

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

    def has_all(self, bits: int) -> bool:
        """Whether nothing of this evidence is gone."""
        return not self.missing_evidence & bits

    def is_before(self, copy: CopyMention | RowMention) -> bool:
        """Whether the record lies below the earlier cut."""
        return copy.at < self.facts.before.get((copy.topic, copy.place), 0)

    @lazy
    def is_visible_before(self) -> bool:
        """Whether a copy lies below the earlier cut."""
        return any(map(self.is_before, self.home))

    @lazy
    def strays(self) -> list[CopyMention]:
        """The records below the earlier cut that claim these coordinates, and match no valid half message."""
        copies = [copy for copy in self.transaction.copies if self.is_before(copy)]
        return copies if self.message is None else [copy for copy in copies if copy.id != self.message.delivered_id]

    @lazy
    def is_settled(self) -> bool:
        """Whether no open Kafka transaction hides records of its real topics."""
        known = (self.facts.topic(topic) for topic in self.topics)
        return all(topic is None or topic.settled for topic in known)

    @lazy
    def gaps(self) -> list[MessagePart]:
        """The messages that are not visible though they were delivered, or others with their time or a later one were.

        Those behind them in time are in a later Kafka transaction, and those with the same time in the same one.
        """
        seen_to = max((self.time_of(copy) for copy in self.home if self.is_before(copy)), default=-1)
        return [message for message in self.unseen if message.deliver_at <= max(self.recorded_to, seen_to)]

    @lazy
    def is_seen_unrecorded(self) -> bool:
        """Whether a message is visible below the earlier cut, and neither OP nor OFFSET says that it was delivered."""
        return any(self.is_before(copy) and self.time_of(copy) > self.recorded_to for copy in self.home)

    @property
    def is_seen_after_abandon(self) -> bool:
        """Whether a message is visible though it was given up before it was delivered.

        Who abandons always gives up the last ones; the record of the abandon says which others.
        """
        if not self.is_named("abandon") or not self.home:
            return False
        seen_to = max(map(self.time_of, self.home))
        return seen_to == self.times[-1] or (seen_to > self.delivered_to and self.has_all(lacking.ABANDON))

    def may_prove(self, message: MessagePart, *, whole: bool = False) -> bool:
        """Whether its absence from its topic may prove a loss: not compacted (`whole`: nor truncated)."""
        topic = self.facts.topic(message.topic)
        return topic is not None and not topic.compacted and not (whole and topic.truncated)

    @lazy
    def is_loss_proved(self) -> bool:
        """Whether a missing message is proved to be lost (see evidence.py)."""
        return any(self.may_prove(message) and self._is_lost(message) for message in self.gaps)

    def _is_lost(self, message: MessagePart) -> bool:
        proof, op = self.facts.proofs.get((self.transaction.partition, message.topic)), self.op("commit")
        if proof is None:
            return False
        if op is not None and message.deliver_at == self.times[-1]:
            return op > proof.op
        # OP does not name the Kafka transaction that delivered it. That one came after the decision.
        return self.winner is not None and self.winner.stamp - CLOCK_MARGIN_MS > proof.stamp

    @lazy
    def last_parked(self) -> ParkedMention | None:
        return max(self.transaction.parked, key=lambda parked: parked.at, default=None)

    @property
    def parked(self) -> str | None:
        """The state of the last parked entry; None without one, or when it is removed."""
        return self.last_parked.state if self.last_parked else None

    @lazy
    def last_check(self) -> CheckMention | None:
        """The check request with the highest END position."""
        own = self.own
        known = (c for c in self.transaction.checks if own is not None and c.id == own.id)
        return max(
            (check for check in known if check.end_position is not None),
            key=lambda check: (check.end_position, check.topic, check.place, check.at),
            default=None,
        )

    @lazy
    def checks_sent(self) -> int:
        """The highest number of a check that the topics still show."""
        own = self.own
        numbers = [check.checks for check in self.transaction.checks if own is not None and check.id == own.id]
        numbers += [parked.checks for parked in self.transaction.parked]
        numbers += [end.checks for end in self.ours]
        numbers += [discard.checks for discard in self.transaction.discards if not discard.is_abandon]
        return max((number for number in numbers if number is not None), default=0)

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
        """Whether OP or a parked entry names a message as delivered before its time, or it is visible before."""
        told = [(self.committed_at, len(self.times))]
        told += [(parked.stamp, parked.delivered) for parked in self.transaction.parked if parked.delivered]
        if any(at is not None and at < max(self.times[:number], default=0) - EARLY_MARGIN_MS for at, number in told):
            return True
        ahead = self.facts.now + CLOCK_MARGIN_MS
        return not self.is_named("commit") and any(
            self.is_before(copy) and self.time_of(copy) > ahead for copy in self.home
        )

    @property
    def is_undelivered(self) -> bool:
        """Whether the time of its next messages has passed."""
        return self.next_time is not None and self.next_time < self._now

    @property
    def is_held_long(self) -> bool:
        """Whether it could have been delivered for hours, and its real topic is there."""
        if self.winner is None or any(self.facts.topic(topic) is None for topic in self.topics):
            return False
        return max(self.winner.stamp, self.next_time or 0) < self._now - HELD_LONG_MS

    @property
    def delivery_latency(self) -> int | None:
        """Milliseconds to the last delivery, from the decision or from the time of the message, whichever is later.

        The wait for a time that the sender wanted is no latency.
        """
        at, winner = self.committed_at, self.winner
        return None if at is None or winner is None else at - max(winner.stamp, *self.times[-1:])
