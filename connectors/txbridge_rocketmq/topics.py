"""Numbers of partitions of the topics that clients name, read from Kafka and cached for a while."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaError, KafkaException

#: An answer is cached for this time (s). A client itself asks for routes every 30 s.
_KNOWN_S = 10.0
#: The answer that a topic does not exist is cached for this time (s): somebody may be creating the topic.
_MISSING_S = 1.0
#: Cached topics, of which the oldest is dropped first. The limit is needed because a client may send any name.
_MAX_TOPICS = 10_000
#: Requests at a time. One that Kafka does not answer must not stop all others.
_THREADS = 4

#: Partitions of a topic, or the error that Kafka has for it. Blocks, and raises KafkaException without an answer.
Look = Callable[[str], int | KafkaError]


class NoAnswerError(Exception):
    """Kafka did not answer."""


class Topics:
    """Cache of the numbers of partitions, for the event loop only."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._asked: dict[str, asyncio.Future[int]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="txbridge-topics")

    def known(self, topic: str) -> int | None:
        """Number of partitions of a topic, 0 if it does not exist; None if Kafka must be asked."""
        found = self._known.get(topic)
        return found[1] if found is not None and time.monotonic() < found[0] else None

    async def partitions(self, topic: str) -> int:
        """Number of partitions of a topic, 0 if it does not exist. Raises NoAnswerError."""
        found = self.known(topic)
        if found is not None:
            return found
        asked = self._asked.get(topic)
        if asked is None:
            asked = asyncio.ensure_future(self._ask(topic))
            self._asked[topic] = asked
            asked.add_done_callback(lambda _: self._asked.pop(topic))
        # Shielded: others wait for the same answer.
        return await asyncio.shield(asked)

    async def _ask(self, topic: str) -> int:
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._look, topic)
        except KafkaException as failure:
            raise NoAnswerError(failure.args[0].str()) from None
        if isinstance(answer, int):
            count = answer
        elif answer.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            count = 0
        else:
            raise NoAnswerError(answer.str())
        self._known[topic] = (time.monotonic() + (_KNOWN_S if count else _MISSING_S), count)
        self._known.move_to_end(topic)
        if len(self._known) > _MAX_TOPICS:
            self._known.popitem(last=False)
        return count

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
