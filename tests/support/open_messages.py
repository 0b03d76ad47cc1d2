"""Open messages as the operations describe them: one of each state, for tests to vary with `replace`."""

from __future__ import annotations

from dataclasses import replace

from tests.support.partition_builder import id_of
from txbridge.core.states import TransactionState
from txbridge.operations.model import NextStep, OpenMessage

PENDING = OpenMessage(
    partition=3,
    half_offset=4,
    transaction_id=id_of(4),
    group="orders",
    real_topic="orders.placed",
    state=TransactionState.PENDING,
    born=1_000,
    size=10,
    checks=0,
    next_step=NextStep.CHECK,
    next_due=7_000,
)
HELD = replace(PENDING, state=TransactionState.HELD, decided=6, error="topic orders.placed does not exist")
DISCARDED = replace(PENDING, state=TransactionState.DISCARDED, reason="MAX_CHECKS", discarded_at=(0, 9))
#: A message whose next due action is its delivery.
SCHEDULED = replace(PENDING, state=TransactionState.SCHEDULED, decided=6, next_step=NextStep.DELIVER, next_due=9_000)
