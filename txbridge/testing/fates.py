"""Names and fates of transactions, as a test gives and gets them."""

from __future__ import annotations

from typing import Protocol

from txbridge.core.states import TransactionState

#: What `wait_fate` waits for by default: committed (and visible), rolled back, discarded.
FATES = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.DISCARDED})


class HasCoordinates(Protocol):
    """The half coordinates of a transaction: the result of a send, or the MessageExt that a listener is given."""

    @property
    def half_partition(self) -> int: ...

    @property
    def half_offset(self) -> int: ...
