"""Numbers of partitions of the topics that clients name, read from Kafka and cached for a while."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from confluent_kafka import KafkaException

from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.errors import is_missing_topic
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


class NoAnswerError(Exception):
    """Kafka did not answer."""


#: Partitions of topics (0: no such topic), or why that is not known. Blocks, and raises NoAnswerError.
Look = Callable[[Sequence[str]], Mapping[str, int | NoAnswerError]]


def look_up(requests: ControllerRequests, names: Sequence[str]) -> dict[str, int | NoAnswerError]:
    """Partitions of topics, as `Look`.

    librdkafka's `list_topics` with a name would keep the name of a missing topic in its handle forever, and each name
    makes the next request slower. `describe_topics` leaves nothing behind.
    """
    try:
        answers = requests.describe_topics(names, _REQUEST_S)
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
