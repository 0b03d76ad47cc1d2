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
#: Longest time (s) for which a half message waits for its check topic. A client waits for three seconds.
_WAIT_S = 2.0
#: Time (s) for which Kafka's refusal of a topic counts. Somebody may be making or deleting topics, or giving a right.
_REFUSED_S = 10.0
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
