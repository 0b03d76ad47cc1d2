"""Faust's Kafka transport, changed to survive unreadable records and to pause before it asks Kafka again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from aiokafka.errors import ConsumerStoppedError
from aiokafka.protocol.fetch import FetchRequest
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from txbridge.kafka.config import BOOTSTRAP_SERVERS
from txbridge.log import get_logger

#: Pause after a failed fetch, whatever the error was: it is not tried again in a tight loop.
_PAUSE_S = 1.0
#: Pause between two metadata requests of a consumer. Kafka's own clients wait as long (retry.backoff.ms).
METADATA_PAUSE_S = 0.1
#: Time for which Faust lets a broker wait for records (fetch_max_wait_ms, without a setting).
_FETCH_WAIT_S = 1.5
#: Longest rest between two fetches. At this rate fetches cost next to nothing, and an inbox has room for what comes
#: meanwhile.
_LONGEST_FETCH_REST_S = 0.05

_log = get_logger("txbridge.worker")


def pace_metadata(client: Any) -> None:
    """Make a client of aiokafka pause between two metadata requests.

    While a partition has no leader, the client's fetcher (0.14) asks again after each answer or failure, without a
    pause. That takes a whole processor core. With some brokers alive, they get thousands of requests a second.
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


def pace_fetches(client: Any, rest_s: float) -> None:
    """Make a client of aiokafka rest after each answer to a fetch, before it fetches from that broker again.

    A fetch that waits for records at the broker is answered with the first one. Without a rest each record costs a
    fetch, and wakes three threads. The first record after a quiet time does not wait: its fetch is under way.
    """
    send, rests_until = client.send, dict[int, float]()

    async def send_after_a_rest(node: int, request: Any, **options: Any) -> Any:
        if not isinstance(request, FetchRequest):
            return await send(node, request, **options)
        await asyncio.sleep(max(0.0, rests_until.get(node, 0.0) - time.monotonic()))
        began = time.monotonic()
        response = await send(node, request, **options)
        # An answer after the broker's longest wait is an empty one.
        if (now := time.monotonic()) - began < _FETCH_WAIT_S:
            rests_until[node] = now + rest_s
        return response

    client.send = send_after_a_rest


class TolerantConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]  # Faust has no types for mypy here
    """Skips records that aiokafka cannot decode: a compression without its library, a header name that is not UTF-8.

    Otherwise such a record ends every worker of the group, one after the other. Skipping loses nothing: the owner reads
    END itself where Faust has skipped records.
    """

    _last_error = ""

    def _create_worker_consumer(self, transport: Any) -> Any:
        """Create a consumer of committed records: a decision in an aborted transaction must not be applied.

        Faust itself does so only when it writes in Kafka transactions, which it does not here.
        """
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"  # noqa: SLF001 - there is no setting of Faust's for it
        # aiokafka leaves the group, and never joins again, when it has fetched nothing for max_poll_interval. A member
        # without a partition has nothing to fetch. One fetch that lasts forever makes it stay; Health watches the
        # membership itself.
        consumer._subscription._fetch_count += 1  # noqa: SLF001 - no interval is long enough
        consumer._client._bootstrap_servers = self.app.settings.librdkafka[BOOTSTRAP_SERVERS]  # noqa: SLF001
        pace_metadata(consumer._client)  # noqa: SLF001
        if interval_ms := self.app.settings.commit_interval:
            pace_fetches(consumer._client, min(interval_ms / 1000, _LONGEST_FETCH_REST_S))  # noqa: SLF001
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
        self.app.own_monitor.metrics.count_failure("end_not_readable_by_faust")
        if text != self._last_error:
            _log.warning("end_not_readable_by_faust", error=text, note="the worker reads END by itself")
            self._last_error = text
        await asyncio.sleep(_PAUSE_S)
        try:
            await consumer.seek_to_end(*consumer.assignment())
            self.app.miss_events()
        except (asyncio.CancelledError, ConsumerStoppedError):
            raise
        except Exception as other:  # noqa: BLE001 - a rebalance came in between, or Kafka is away: next time then
            _log.debug("seek_failed", error=repr(other))


class TolerantConsumer(Consumer):  # type: ignore[misc]
    """Faust's consumer with our thread. It commits the offset up to which END is *applied*.

    Faust would commit the offset up to which it has handed events over. Tools would then show no lag of the group,
    however far an owner is behind. The offset at which Faust begins to read does not matter: the owner keeps its own.
    """

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        """All assigned partitions: END may be applied without an event from Faust, and a new group must have a lag."""
        try:
            assigned = self.assignment()
        except ConsumerNotStarted:
            # Faust stops before it has begun, and logs the reason itself.
            assigned = ()
        return (tp for tp in assigned if topics is None or tp in topics or tp.topic in topics)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust would log errors about healthy partitions.

        It takes the time of the last record for that of the last fetch. So it logs "has not sent fetch request since
        start" for every partition of END without records. Metrics show how far END is applied (docs/metrics.md).
        """

    def _new_offset(self, tp: TP) -> int | None:
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        applied: int | None = self.app.applied_to(tp)
        return applied

    def next_offset(self, tp: TP) -> int | None:
        """The offset that Faust reads next; None while it is not known, or while Faust rests in a rebalance.

        For any thread: it only reads attributes.
        """
        consumer = self._thread._consumer  # noqa: SLF001 - its own method waits for its event loop
        subscription = None if consumer is None else consumer._subscription.subscription  # noqa: SLF001
        if subscription is None or subscription._reassignment_in_progress:  # noqa: SLF001
            return None
        state = None if subscription.assignment is None else subscription.assignment.state_value(tp)
        return None if state is None else state._position  # noqa: SLF001

    def _new_consumer_thread(self) -> TolerantConsumerThread:
        return TolerantConsumerThread(self, loop=self.loop, beacon=self.beacon)


class TolerantTransport(Transport):  # type: ignore[misc]
    """Faust's transport with our consumer."""

    Consumer = TolerantConsumer
