"""What `send_message_in_transaction` returns."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self

from txbridge.client.flow.loop_bridge import HandOver, resolve
from txbridge.client.listener import LocalTransactionState, Outcome

if TYPE_CHECKING:
    from txbridge.client.decide.end_batcher import Ticket
    from txbridge.client.prepare.half_writer import Prepared


class SendStatus(Enum):
    """RocketMQ's name; its other states (a flush or a replica is late) do not exist with acks=all."""

    SEND_OK = "SEND_OK"


@dataclass(frozen=True)
class _Sent:
    """A half message that is stored, and what its local transaction said."""

    #: The name of the transaction, and the right to decide it: do not show it around.
    transaction_id: str = field(repr=False)
    half_partition: int
    half_offset: int
    local_transaction_state: LocalTransactionState
    #: What the listener raised, if it did; the state is then UNKNOW.
    local_exception: Exception | None
    _end: Ticket = field(repr=False)
    send_status: SendStatus = SendStatus.SEND_OK

    @classmethod
    def of(cls, prepared: Prepared, outcome: Outcome, end: Ticket, **more: object) -> Self:
        """What became of it so far."""
        made = cls.__new__(cls)
        # Not by __init__, which a frozen dataclass has to let set each of them by itself.
        made.__dict__.update(
            transaction_id=prepared.transaction_id,
            half_partition=prepared.partition,
            half_offset=prepared.offset,
            local_transaction_state=outcome.state,
            local_exception=outcome.exception,
            _end=end,
            send_status=SendStatus.SEND_OK,
            **more,
        )
        return made

    @property
    def end(self) -> Future[None]:
        """Resolved (None) when Kafka has acknowledged the END; fails with EndTransactionError if that did not happen.

        Its callbacks run in the thread that sends all ENDs: they must be quick and must not wait for other ENDs.
        """
        self._end.hurry()
        return self._end.future()

    @property
    def msg_id(self) -> str:
        """RocketMQ's other name of the transaction id."""
        return self.transaction_id

    @property
    def queue_offset(self) -> int:
        """RocketMQ's name of `half_offset`."""
        return self.half_offset


@dataclass(frozen=True)
class TransactionSendResult(_Sent):
    """A half message that is stored, and what its local transaction said."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait until Kafka has acknowledged the END; `timeout` in seconds, None waits as long as it is tried.

        Raises EndTransactionError if the END was given up, TimeoutError if it is still on its way. The message is
        visible to consumers soon after, when the worker has applied the END.
        """
        self.end.result(timeout)


@dataclass(frozen=True)
class AsyncTransactionSendResult(_Sent):
    """TransactionSendResult of an AsyncTransactionProducer: `wait` is awaited."""

    _hand_over: HandOver = field(kw_only=True, repr=False, compare=False)

    async def wait(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as the blocking one
        """As TransactionSendResult.wait, without blocking the event loop; many may wait for one END."""
        end = self.end
        if not end.done():
            self._hand_over.require_this_loop()
            acknowledged: asyncio.Future[None] = self._hand_over.loop.create_future()
            # Not asyncio.wrap_future, which wakes the loop once for each END instead of once for a record of many.
            end.add_done_callback(lambda _: self._hand_over.call(resolve, acknowledged, None))
            async with asyncio.timeout(timeout):
                await acknowledged
        end.result()
