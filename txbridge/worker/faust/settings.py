"""Faust's settings for a worker, and its Kafka transport, changed to survive unreadable records and to pause."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any

import faust
from aiokafka.errors import ConsumerStoppedError
from aiokafka.protocol.fetch import FetchRequest
from faust.auth import OAuthCredentials
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP

from txbridge.config.worker import WorkerSettings
from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.config import BOOTSTRAP_SERVERS
from txbridge.log import get_logger

#: Longest time between two heartbeats; Kafka advises a third of the session. By its heartbeat a worker learns that
#: another has left or wants to join. Until then nobody serves the partitions of the other one. With two seconds that
#: was a good part of the pause in a rolling restart. The request is a few dozen bytes.
_LONGEST_HEARTBEAT_S = 0.5
#: Time that each member of the group has to join again. It learns of the rebalance by its heartbeats, within half a
#: second, and joins at once: its owners stop in parallel. The rest is for a machine that stands still.
_REBALANCE_TIMEOUT_S = 15.0
#: Kafka answers a join request once all members have joined, or after the rebalance time-out, or after the session
#: time-out of a dead member. It answers all other requests in milliseconds. So Faust waits this much longer for an
#: answer. It also waits this long for a broker that accepts connections and never answers. Faust's default is 90 s.
_ANSWER_MARGIN_S = 5.0
#: Age at which aiokafka asks for the topics again. By default it is five minutes, in which nobody serves.
_METADATA_AGE_MS = 5_000

#: A line of the same place in the code is logged again after this long.
_EVERY_S = 30.0
_TALKATIVE = ("aiokafka", "faust", "mode", "txbridge.librdkafka")
#: Faust logs under the module of a class that is derived from its own. txbridge logs as `txbridge.worker` itself.
_FAUST_IN_OUR_NAME = "txbridge.worker."


def longest_join_s(session_timeout_ms: int) -> float:
    """Longest time (s) that one attempt to join the group can take."""
    return max(_REBALANCE_TIMEOUT_S, session_timeout_ms / 1_000) + _ANSWER_MARGIN_S


def faust_settings(settings: WorkerSettings) -> dict[str, Any]:
    """Arguments for `faust.App`. Raises UsageError for security properties that Faust's connection cannot use."""
    session_s = settings.session_timeout / 1_000
    return {
        # Faust prefers variables to arguments, and its names have no prefix: APP_VERSION, WEB_PORT, BROKER_URL.
        "env": {},
        # The consumer gets the servers themselves: Faust drops the brackets of an address of IPv6.
        "broker": "aiokafka://",
        "broker_credentials": _credentials(settings),
        # Unique in the group: after a fence, an owner finds this process by it in the coordinator's answer.
        "broker_client_id": f"txbridge-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        "broker_session_timeout": session_s,
        "broker_rebalance_timeout": _REBALANCE_TIMEOUT_S,
        "broker_request_timeout": longest_join_s(settings.session_timeout),
        # A member that has got nothing, because a topic was missing for a moment, learns of the topic by this.
        "consumer_metadata_max_age_ms": _METADATA_AGE_MS,
        "broker_heartbeat_interval": min(session_s / 3, _LONGEST_HEARTBEAT_S),
        # Our own Kafka transactions carry exactly-once; Faust's are not atomic across topics.
        "processing_guarantee": "at_least_once",
        # The checkpoint says where to begin: a new group does not need the whole history of END.
        "consumer_auto_offset_reset": "latest",
        # Faust only hands events over, so nothing is lost without this wait. The wait could last forever.
        "stream_wait_empty": False,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": False,
        "store": "memory://",
        "worker_redirect_stdouts": False,
    }


def _credentials(settings: WorkerSettings) -> Any:
    """Faust's credentials, or None for a plain connection. Faust makes aiokafka's arguments of them again."""
    auth = aiokafka_auth(settings.librdkafka)
    context = auth.get("ssl_context")
    match auth.get("security_protocol"):
        case None:
            return None
        case "SSL":
            return faust.SSLCredentials(context=context)
    if (tokens := auth.get("sasl_oauth_token_provider")) is not None:
        return OAuthCredentials(oauth_cb=tokens, ssl_context=context)
    return faust.SASLCredentials(
        username=auth["sasl_plain_username"],
        password=auth["sasl_plain_password"],
        mechanism=auth["sasl_mechanism"],
        ssl_context=context,
    )


class _Once(logging.Filter):
    """Lets a line of a talkative library pass once in _EVERY_S. txbridge logs the consequences itself, as events."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(_FAUST_IN_OUR_NAME):
            record.name = "faust"
        if not record.name.startswith(_TALKATIVE):
            return True
        place, now = (record.pathname, record.lineno), time.monotonic()
        if self._logged.get(place, float("-inf")) + _EVERY_S > now:
            return False
        self._logged[place] = now
        return True


def calm_down(handlers: Iterable[logging.Handler]) -> None:
    """Make these handlers drop libraries' repeated lines, up to eighty a second, and name Faust's after Faust."""
    for handler in handlers:
        handler.addFilter(_Once())


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
        if interval := self.app.settings.commit_interval:
            pace_fetches(consumer._client, min(interval, _LONGEST_FETCH_REST_S))  # noqa: SLF001
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
