"""Faust's Kafka transport, but it survives a record that it cannot read, and pauses before it asks Kafka again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from aiokafka.errors import ConsumerStoppedError
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from txbridge.log import get_logger

#: After a failed fetch: whatever it was, it is not tried again in a tight loop.
_PAUSE_S = 1.0
#: Between two questions of a consumer to Kafka about who leads: Kafka's own clients wait as long (retry.backoff.ms).
METADATA_PAUSE_S = 0.1

_log = get_logger("txbridge.worker")


def pace_metadata(client: Any) -> None:
    """Let a client of aiokafka pause between two rounds of questions about who leads.

    While a partition has no leader, its fetcher (0.14) asks anew as soon as it has an answer, or nobody answers: that
    is a core for as long as it lasts, and with some brokers alive, thousands of requests a second to these.
    """
    ask, asked_at = client._metadata_update, float("-inf")  # noqa: SLF001 - there is no setting for it

    async def ask_after_a_pause(*arguments: Any) -> Any:
        nonlocal asked_at
        await asyncio.sleep(max(0.0, asked_at + METADATA_PAUSE_S - time.monotonic()))
        try:
            return await ask(*arguments)
        finally:
            asked_at = time.monotonic()

    client._metadata_update = ask_after_a_pause  # noqa: SLF001


class TolerantConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]  # Faust has no types for mypy here
    """Skips what aiokafka cannot decode: a compression it lacks the library for, a header name that is not UTF-8.

    Without this every worker of the group dies of such a record, one after the other. Skipping loses nothing: what
    Faust does not tell us of END we read ourselves.
    """

    _last_error = ""

    def _create_worker_consumer(self, transport: Any) -> Any:
        """Faust reads committed records only when it writes in Kafka transactions itself, which it does not here.

        A decision in a transaction that is aborted must not be applied.
        """
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"  # noqa: SLF001 - there is no setting of Faust's for it
        pace_metadata(consumer._client)  # noqa: SLF001
        return consumer

    async def _fetch_records(self, consumer: Any, active_partitions: Any, **arguments: Any) -> Any:
        try:
            return await super()._fetch_records(consumer, active_partitions, **arguments)
        except (asyncio.CancelledError, ConsumerStoppedError):
            raise
        except Exception as error:  # noqa: BLE001 - a poison record must not end the worker, whatever it raises
            await self._skip(consumer, error)
            return {}

    async def _skip(self, consumer: Any, error: Exception) -> None:
        text = repr(error)
        self.app.own_monitor.metrics.failed("end_not_readable_by_faust")
        if text != self._last_error:
            _log.warning("end_not_readable_by_faust", error=text, note="the worker reads END by itself")
            self._last_error = text
        await asyncio.sleep(_PAUSE_S)
        try:
            await consumer.seek_to_end(*consumer.assignment())
        except (asyncio.CancelledError, ConsumerStoppedError):
            raise
        except Exception as other:  # noqa: BLE001 - a rebalance came in between, or Kafka is away: next time then
            _log.debug("seek_failed", error=repr(other))


class TolerantConsumer(Consumer):  # type: ignore[misc]
    """Faust's consumer with our thread, which commits how far END is *applied*.

    Faust would commit what it has handed over, and tools that show a group's lag would show none however far an owner
    is behind. Where Faust begins to read does not matter: the owner knows by itself where it stands.
    """

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        """All that are assigned: END may be applied without any event of Faust's, and a new group shall have a lag."""
        try:
            assigned = self.assignment()
        except ConsumerNotStarted:
            # Faust stops before it has begun: it says why itself.
            assigned = ()
        return (tp for tp in assigned if topics is None or tp in topics or tp.topic in topics)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Nothing: Faust would log errors about partitions on which nothing is wrong.

        It takes the time of the last record for that of the last fetch, so "has not sent fetch request since start" is
        said of every partition of END to which nobody has written. How far END is applied we watch ourselves
        (docs/metrics.md).
        """

    def _new_offset(self, tp: TP) -> int | None:
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        applied: int | None = self.app.applied(tp)
        return applied

    def _new_consumer_thread(self) -> TolerantConsumerThread:
        return TolerantConsumerThread(self, loop=self.loop, beacon=self.beacon)


class TolerantTransport(Transport):  # type: ignore[misc]
    """Faust's transport with our consumer."""

    Consumer = TolerantConsumer
