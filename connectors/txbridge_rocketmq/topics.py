"""Topics in Kafka: partitions of those that clients name, cached for a while, and the check topics of groups."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from confluent_kafka import KafkaException

from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.admin import KafkaCluster, UnwantedError
from txbridge.kafka.errors import is_missing_topic
from txbridge.log import get_logger
from txbridge_rocketmq.memory import TurnQueue

T = TypeVar("T")

#: An answer is cached for this time (s). A client itself asks for routes every 30 s.
_KNOWN_S = 10.0
#: The answer that a topic does not exist is cached for this time (s): somebody may be creating the topic.
_MISSING_S = 1.0
#: Cached topics of either kind, of which the oldest is dropped first. A client may send any name.
_MAX_TOPICS = 10_000
#: Requests at a time. One that Kafka does not answer must not stop all others.
_REQUESTS = 4
#: Topics of one request. A name costs ten microseconds, and a request some three hundred.
MAX_NAMES = 100
#: Time-out of a request (s), all attempts together. It takes milliseconds if Kafka answers. A client waits three
#: seconds for a route.
_REQUEST_S = 2.5
#: Remembered groups with check topics. The oldest is dropped first, and then Kafka is asked about it again.
_MAX_KNOWN = 10_000
#: Check topics that are made at a time. Kafka takes tens of milliseconds for one.
_THREADS = 4
#: Longest time (s) for which a half message waits for its check topic. A client waits for three seconds.
_WAIT_S = 2.0
#: Time (s) for which Kafka's refusal of one counts. Somebody may be making or deleting topics, or giving a right.
_REFUSED_S = 10.0
#: Pause (s) after an attempt to make one that Kafka did not answer.
_RETRY_S = 2.0
#: Makes the check topic of a group if it is missing; whether it was. Blocks, until the function returns true at the
#: latest. Raises TxBridgeError.
Make = Callable[[str, Callable[[], bool]], bool]

_log = get_logger("txbridge.rocketmq")


class NoAnswerError(Exception):
    """Kafka did not answer."""


#: Partitions of topics (0: no such topic), or why that is not known. Blocks, and raises NoAnswerError.
Look = Callable[[Sequence[str]], Mapping[str, int | NoAnswerError]]


def look_up(cluster: KafkaCluster, names: Sequence[str]) -> dict[str, int | NoAnswerError]:
    """Partitions of topics, as `Look`.

    librdkafka's `list_topics` with a name would keep the name of a missing topic in its handle forever, and each name
    makes the next request slower. `describe_topics` leaves nothing behind.
    """
    try:
        answers = cluster.describe_topics(names, _REQUEST_S)
    except (KafkaException, TimeoutError) as failure:
        raise NoAnswerError(_text(failure)) from None
    return {name: _count(answer.exception() or len(answer.result().partitions)) for name, answer in answers.items()}


def _count(answer: BaseException | int) -> int | NoAnswerError:
    if isinstance(answer, int):
        return answer
    return 0 if is_missing_topic(answer) else NoAnswerError(_text(answer))


def _text(failure: BaseException) -> str:
    return str(failure.args[0].str()) if isinstance(failure, KafkaException) else f"no answer in {_REQUEST_S} s"


class LookUps:
    """Requests about topics, in threads of their own, for the event loop only."""

    def __init__(self, look: Look, threads: int) -> None:
        self._look = look
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="txbridge-topics")

    async def ask_kafka(self, names: Sequence[str]) -> Mapping[str, int | NoAnswerError]:
        """Ask about at most MAX_NAMES topics. Raises NoAnswerError."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._look, names)

    def close(self) -> None:
        """Begin no more requests. One that runs ends within its time-out."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Topics:
    """Cache of the numbers of partitions, for the event loop only."""

    def __init__(self, look: Look) -> None:
        self._look_ups = LookUps(look, _REQUESTS)
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()
        #: Apart from the others, so that made-up names drive out no topic that exists.
        self._missing: OrderedDict[str, float] = OrderedDict()
        #: Those who wait for the number of a topic. They go on in the same turn of the event loop, in their order.
        self._answers: dict[str, list[asyncio.Future[int]]] = {}
        #: Names that are not on their way to Kafka yet. Askers take turns, so nobody waits for the names of another.
        self._waiting: TurnQueue[str] = TurnQueue()
        self._requests: set[asyncio.Task[None]] = set()
        self._sent: set[str] = set()

    def cached_partitions(self, topic: str) -> int | None:
        """Number of partitions of a topic, 0 if it does not exist; None if Kafka must be asked."""
        now = time.monotonic()
        until, count = self._known.get(topic, (now, 0))
        if now < until:
            return count
        return 0 if now < self._missing.get(topic, now) else None

    async def count_partitions(self, topic: str, asker: str) -> int:
        """Number of partitions of a topic, 0 if it does not exist. Raises NoAnswerError."""
        found = self.cached_partitions(topic)
        if found is not None:
            return found
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers.setdefault(topic, []).append(answer)
        if topic not in self._sent:
            self._waiting.add_item(asker, topic)
            self._send_requests()
        return await answer

    def forget_topic(self, topic: str) -> None:
        """Ask Kafka again when the topic is named next."""
        self._known.pop(topic, None)
        self._missing.pop(topic, None)

    def _send_requests(self) -> None:
        while self._waiting and len(self._requests) < _REQUESTS:
            names: list[str] = []
            while self._waiting and len(names) < MAX_NAMES:
                name = self._waiting.pop_item()
                # Another asker's turn may have come first.
                if name in self._answers and name not in self._sent:
                    self._sent.add(name)
                    names.append(name)
            if names:
                task = asyncio.get_running_loop().create_task(self._ask_about(names))
                self._requests.add(task)
                task.add_done_callback(self._on_request_done)

    async def _ask_about(self, names: Sequence[str]) -> None:
        found: Mapping[str, int | Exception]
        try:
            found = await self._look_ups.ask_kafka(names)
        except Exception as error:  # noqa: BLE001  each asker gets it
            found = dict.fromkeys(names, error)
        for name in names:
            self._settle_topic(name, found[name])

    def _on_request_done(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            self._send_requests()

    def _settle_topic(self, topic: str, found: int | Exception) -> None:
        self._sent.discard(topic)
        # Some may be cancelled.
        waiting = [answer for answer in self._answers.pop(topic) if not answer.done()]
        if isinstance(found, Exception):
            for answer in waiting:
                answer.set_exception(found)
            return
        now = time.monotonic()
        if found:
            _remember(self._known, topic, (now + _KNOWN_S, found))
        else:
            _remember(self._missing, topic, now + _MISSING_S)
        for answer in waiting:
            answer.set_result(found)

    def close(self) -> None:
        self._look_ups.close()


def _remember(cache: OrderedDict[str, T], topic: str, value: T) -> None:
    cache[topic] = value
    cache.move_to_end(topic)
    if len(cache) > _MAX_TOPICS:
        cache.popitem(last=False)


class CheckTopics:
    """Groups that have sent transactions through this door, for the event loop only. Their topics are made in threads.

    The first half message of a group makes its check topic. What only this process knew would end with it, and clients
    may introduce their groups up to half a minute later.
    """

    def __init__(self, make: Make, most: int) -> None:
        """`most` topics are made: clients may send any number of groups. Topics that exist do not count."""
        self._make = make
        self._room = self._most = most
        #: By group, the task that its half messages wait for.
        self._known: OrderedDict[str, asyncio.Task[str]] = OrderedDict()
        self._makings: set[asyncio.Task[str]] = set()
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="txbridge-check-topics")

    def knows_group(self, group: str) -> bool:
        """Whether the group has sent a transaction through this door, and can get checks."""
        task = self._known.get(group)
        return task is not None and task.done() and not task.cancelled() and not task.result()

    def ensure_topic(self, group: str) -> asyncio.Task[str]:
        """Make sure that the group has a check topic. The task has Kafka's refusal, if it is known within _WAIT_S."""
        task = self._known.get(group)
        if task is None:
            task = self._known[group] = asyncio.create_task(self._await_topic(group))
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return task

    async def _await_topic(self, group: str) -> str:
        if len(self._makings) >= self._room:
            return ""
        making = asyncio.create_task(self._make_topic(group))
        self._makings.add(making)
        making.add_done_callback(self._makings.discard)
        done, _ = await asyncio.wait({making}, timeout=_WAIT_S)
        return making.result() if done else ""

    async def _make_topic(self, group: str) -> str:
        """Make the topic. Returns why the group can get no checks; txbridge's own client would not start."""
        loop = asyncio.get_running_loop()
        while not self._closed.is_set():
            try:
                is_new = await loop.run_in_executor(self._threads, self._make, group, self._closed.is_set)
            except KafkaUnreachableError:
                await asyncio.sleep(_RETRY_S)
            except UnwantedError:
                break
            except Exception as error:  # noqa: BLE001  whatever it is, nobody could be asked about the transaction
                defect = None if isinstance(error, TxBridgeError) else error
                _log.warning("check_topic_not_made", group=group, error=str(error), next="refused", exc_info=defect)
                loop.call_later(_REFUSED_S, self._known.pop, group, None)
                return f"nobody of the group could be asked about the transaction: {error}"
            else:
                self._room -= is_new
                if is_new and not self._room:
                    _log.error("too_many_groups", group=group, most=self._most, next="others are known here only")
                break
        return ""

    def close(self) -> None:
        """Make no more topics."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
