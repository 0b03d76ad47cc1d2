"""One partition, owned: a thread that takes the partition over and then serves it until it is stopped or fenced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaException

from txbridge.broker.cycle import Cycle
from txbridge.broker.end_log import EndLog
from txbridge.broker.errors import FencedError, LogGoneError, TakeOverRefusedError
from txbridge.broker.inbox import EndInbox
from txbridge.broker.takeover import PartitionContext, PartitionState, close, take_over
from txbridge.errors import TxBridgeError
from txbridge.log import get_logger

#: Back-off of a take-over that failed for want of Kafka: at once, then up to this. A broker restart takes seconds.
_LONGEST_RETRY_S = 10.0
#: A refused take-over needs a person; it is tried again so that no restart is needed once the person has acted.
_REFUSED_RETRY_S = 30.0
#: Between two take-overs after being fenced: two apps on the same topics fence each other, and must leave each other
#: time to work. Doubled each time, reset by a partition that was served this long.
_FIRST_FENCED_RETRY_S = 0.5
_SERVED_WELL_S = 30.0

_log = get_logger("txbridge.broker")


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """What an owner is doing, for health and tests."""

    partition: int
    serving: bool
    error: str | None


class PartitionOwner(threading.Thread):
    """Serves one partition. `confirm` tells whether the worker's group still assigns the partition to this worker."""

    def __init__(self, context: PartitionContext, partition: int, confirm: Callable[[int], bool]) -> None:
        super().__init__(name=f"txbridge-partition-{partition}", daemon=True)
        self.partition = partition
        self.inbox = EndInbox()
        self._context = context
        self._confirm = confirm
        self._stopping = threading.Event()
        self._serving = False
        self._error: str | None = None

    @property
    def status(self) -> OwnerStatus:
        return OwnerStatus(self.partition, self._serving, self._error)

    def stop(self) -> None:
        """Finish the Kafka transaction at hand and end; join() waits for it."""
        self._stopping.set()
        self.inbox.wake()

    def run(self) -> None:
        """Take over, serve, and after whatever went wrong do it again, until stopped."""
        retry = fenced_retry = _FIRST_FENCED_RETRY_S
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._own()
            except FencedError as error:
                if time.monotonic() - started > _SERVED_WELL_S:
                    fenced_retry = _FIRST_FENCED_RETRY_S
                self._report("fenced", error, warn=True)
                self._stopping.wait(fenced_retry)
                fenced_retry = min(fenced_retry * 2, _LONGEST_RETRY_S)
                self._wait_for_confirmation()
            except (TakeOverRefusedError, LogGoneError) as error:
                self._report("refused", error)
                self._stopping.wait(_REFUSED_RETRY_S)
            except (KafkaException, TimeoutError, TxBridgeError) as error:
                if time.monotonic() - started > _SERVED_WELL_S:
                    retry = _FIRST_FENCED_RETRY_S
                self._report("kafka_unavailable", error, warn=True)
                self._stopping.wait(retry)
                retry = min(retry * 2, _LONGEST_RETRY_S)
            except Exception as error:  # noqa: BLE001 - a defect of ours must not end the partition silently
                self._error = repr(error)
                _log.exception("unexpected_error", partition=self.partition)
                self._stopping.wait(_LONGEST_RETRY_S)

    def _report(self, event: str, error: Exception, *, warn: bool = False) -> None:
        text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if text != self._error:
            (_log.warning if warn else _log.error)(event, partition=self.partition, error=text)
        self._error = text

    def _wait_for_confirmation(self) -> None:
        """After being fenced, own again only what the group says is ours."""
        while not self._stopping.is_set():
            try:
                if self._confirm(self.partition):
                    return
            except KafkaException as error:
                self._report("kafka_unavailable", error, warn=True)
            self._stopping.wait(_FIRST_FENCED_RETRY_S)

    def _own(self) -> None:
        started = time.monotonic()
        state = take_over(self._context, self.partition)
        try:
            cycle = Cycle(self._context, state)
            cycle.prove_ownership()
            _log.info(
                "partition_taken_over",
                partition=self.partition,
                seconds=round(time.monotonic() - started, 3),
                pending=sum(state.queue.counts().values()),
                half=state.queue.watermark,
                end=state.queue.next_end,
            )
            self._serving, self._error = True, None
            self._serve(state, cycle)
        finally:
            self._serving = False
            self.inbox.clear()
            close(state)

    def _serve(self, state: PartitionState, cycle: Cycle) -> None:
        end_log = EndLog(self._context.names, state, self.inbox)
        while not self._stopping.is_set():
            end_log.fill(cycle.idle_for())
            cycle.run(end_log.waiting)
