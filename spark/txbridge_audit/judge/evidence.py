"""The evidence that only all transactions together give: proofs of losses, and copies that nothing explains.

**Proofs.** One worker at a time writes the Kafka transactions of a half partition, one after the other, and each names
its commits in OP. So the real records of one half partition lie in a real partition in the order of their OP records. A
missing record may have been removed by

- retention or DeleteRecords, which remove a *beginning* of a partition. Suppose each truncated partition of the topic
  still has a record with a lower OP offset. Then the missing one was not removed with a beginning, whichever partition
  it was in;
- the deletion of the topic, after which another one was created by its name. That removed everything. A record with a
  lower OP offset anywhere in the topic says that this has not happened since.

OP names messages with different times of delivery once, in the Kafka transaction that delivers the last of them. An
earlier one of them is older still, so it proves what any record proves. If it is missing, OP does not tell when it was
delivered. But that was after its decision: records that OP named an hour before the decision are older, because the
clocks of brokers differ by less.

Somebody may have put an old record back into the topic that was created again. That record proves nothing, and looks
like any other. So two older records are required: the two oldest of a place prove the most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Self

from txbridge_audit.judge.delivered import DeliveredCase
from txbridge_audit.judge.facts import Facts, LossProof, TopicPartition
from txbridge_audit.judge.transaction import AuditedTransaction

#: Half partition (or writer of a relay's rows), real topic, partition of the real topic.
AnchorPlace = tuple[int, str, int]
#: Offset in OP (or number of the batch), offset in the real topic, append time in OP (ms).
Anchor = tuple[int, int, int]

#: Delivered records that prove a loss behind them.
ENOUGH = 2


@dataclass(slots=True)
class Evidence:
    """What the transactions that were seen so far prove about the others."""

    #: By place, delivered records that are still there: the oldest ones, by their OP records.
    anchors: dict[AnchorPlace, list[Anchor]] = field(default_factory=dict)
    #: See Facts.unexplained.
    unexplained: dict[tuple[int, str], set[int]] = field(default_factory=dict)

    def see_transaction(self, transaction: AuditedTransaction) -> None:
        """Take what one transaction proves."""
        for named in transaction.named if len(transaction.rows) == 1 else ():
            row = transaction.rows[0]
            # The rows of an outbox lie in the order of their batches, as messages lie in that of their OP records.
            if (row.batch, row.topic) == (named.batch, named.topic):
                self.add_anchor((transaction.partition, row.topic, row.place), (row.batch, row.at, 0))
        if not transaction.halves or not transaction.outcomes:
            return
        case = DeliveredCase(transaction)
        op, stamp = case.op("commit"), case.committed_at
        # Of a message that is there twice, it is unknown which copy belongs to the OP record.
        if op is not None and stamp is not None and case.copies == 1:
            seen: set[str] = set()
            for copy in sorted(case.home, key=attrgetter("visible_at")):
                # Of several messages one in each topic: somebody who puts them back puts back all of them.
                if copy.topic not in seen:
                    seen.add(copy.topic)
                    self.add_anchor((transaction.partition, copy.topic, copy.place), (op, copy.at, stamp))
        half = transaction.halves[0]
        told = transaction.discards or transaction.asides
        if half.id is not None and case.is_named("discard") and not told:
            self.unexplained.setdefault((half.partition, half.id), set()).add(half.half)

    def add_anchor(self, place: AnchorPlace, anchor: Anchor) -> None:
        """Take a delivered record. Only the two oldest of a place are kept."""
        there = self.anchors.setdefault(place, [])
        if len(there) < ENOUGH or anchor < there[-1]:
            there.append(anchor)
            there.sort()
            del there[ENOUGH:]

    def __iadd__(self, others: Evidence) -> Self:
        for place, anchors in others.anchors.items():
            for anchor in anchors:
                self.add_anchor(place, anchor)
        for identity, halves in others.unexplained.items():
            self.unexplained.setdefault(identity, set()).update(halves)
        return self

    def find_proofs(self, truncated: Collection[TopicPartition]) -> dict[tuple[int, str], LossProof]:
        """See Facts.proofs. `truncated` names the partitions of real topics whose log start is not 0."""
        by_topic: dict[tuple[int, str], dict[int, list[Anchor]]] = {}
        for (partition, topic, place), anchors in self.anchors.items():
            by_topic.setdefault((partition, topic), {})[place] = anchors
        found = {}
        for (partition, topic), places in by_topic.items():
            edges = [place for name, place in truncated if name == topic]
            asked = [_second([places.get(edge, [])]) for edge in edges] or [_second(places.values())]
            above = [proof for proof in asked if proof is not None]
            if len(above) == len(asked):
                found[partition, topic] = LossProof(*map(max, zip(*above, strict=True)))
        return found

    def add_to(self, facts: Facts, truncated: Collection[TopicPartition]) -> Facts:
        """The facts with this evidence."""
        return replace(facts, proofs=self.find_proofs(truncated), unexplained=self.unexplained)


def _second(places: Iterable[list[Anchor]]) -> LossProof | None:
    """What the two oldest delivered records prove; None if there are fewer."""
    oldest = sorted(anchor for anchors in places for anchor in anchors)[:ENOUGH]
    return LossProof(oldest[-1][0], max(stamp for _, _, stamp in oldest)) if len(oldest) == ENOUGH else None
