"""Check topics of groups that send transactions. By its topic any door finds a group, also when this one has died."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.admin import UnwantedError
from txbridge.log import get_logger

#: Remembered groups. The oldest is dropped first, and then Kafka is asked about it again.
_MAX_KNOWN = 10_000
#: Topics that are made at a time. Kafka takes tens of milliseconds for one.
_THREADS = 4
#: Longest time (s) for which the answer to a half message waits for its check topic. A client waits for three seconds.
_WAIT_S = 2.0
#: Pause (s) after an attempt that Kafka did not answer.
_RETRY_S = 2.0

#: Makes the check topic of a group if it is missing; whether it was. Blocks, until the function returns true at the
#: latest. Raises TxBridgeError.
Make = Callable[[str, Callable[[], bool]], bool]

_log = get_logger("txbridge.rocketmq")


class CheckTopics:
    """Groups that have sent transactions through this door, for the event loop only. Their topics are made in threads.

    The first half message of a group makes its check topic. What only this process knew would end with it, and clients
    may introduce their groups up to half a minute later.
    """

    def __init__(self, make: Make, most: int) -> None:
        """`most` topics are made: clients may send any number of groups. Topics that exist do not count."""
        self._make = make
        self._room = self._most = most
        #: By group, the task that the answers to its half messages wait for.
        self._known: OrderedDict[str, asyncio.Task[None]] = OrderedDict()
        self._makings: set[asyncio.Task[None]] = set()
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="txbridge-check-topics")

    def knows_group(self, group: str) -> bool:
        """Whether the group has sent a transaction through this door."""
        return group in self._known

    def ensure_topic(self, group: str) -> asyncio.Task[None]:
        """Make sure that the group has a check topic. Returns a task that ends once it has, after _WAIT_S at most."""
        task = self._known.get(group)
        if task is None:
            task = self._known[group] = asyncio.create_task(self._await_topic(group))
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return task

    async def _await_topic(self, group: str) -> None:
        if not self._room:
            return
        self._room -= 1
        if not self._room:
            _log.error("too_many_groups", group=group, most=self._most, next="others are known to this door only")
        making = asyncio.create_task(self._make_topic(group))
        self._makings.add(making)
        making.add_done_callback(self._makings.discard)
        await asyncio.wait({making}, timeout=_WAIT_S)

    async def _make_topic(self, group: str) -> None:
        """Make the topic. If Kafka refuses it, the group is known to this door only, which says why when it joins."""
        loop = asyncio.get_running_loop()
        while not self._closed.is_set():
            try:
                is_new = await loop.run_in_executor(self._threads, self._make, group, self._closed.is_set)
            except KafkaUnreachableError:
                await asyncio.sleep(_RETRY_S)
            except UnwantedError:
                return
            except TxBridgeError as error:
                _log.warning("check_topic_not_made", group=group, error=str(error), next="trying again at its join")
                return
            else:
                self._room += not is_new
                return

    def close(self) -> None:
        """Make no more topics."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
