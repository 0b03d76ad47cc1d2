"""ControllerRequests: admin requests that still work when librdkafka's controller is gone.

librdkafka (2.16) sends requests about topics to the broker that its metadata names as the controller. Under KRaft that
is any live broker. When that broker goes away, an existing client waits for it until it renews its metadata, after five
minutes by default. Until then each request times out, although every other broker would answer. So a client whose
request has failed in librdkafka itself is replaced, and the request is made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from txbridge.deadline import Deadline
from txbridge.errors import KafkaUnreachableError

#: Number of attempts among which a time-out is divided; each failure replaces the client. The second attempt usually
#: succeeds, but a client that connects while the cluster still lists the dead broker may choose it again.
_ATTEMPTS = 3
#: librdkafka itself ends an unanswered request, within this time (s) after its time-out.
_MARGIN_S = 1.0

_K = TypeVar("_K")
_T = TypeVar("_T")
#: Makes a request with this client and time-out (s).
Request = Callable[[AdminClient, float], Mapping[_K, Future[Any]]]


class ControllerRequests:
    """Makes requests that any broker answers, with a client that is made when it is first needed.

    Thread-safe: an AdminClient serves its callers at the same time, while those of a Consumer wait for each other.
    """

    def __init__(self, connect: Callable[[], AdminClient]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    def ask(self, request: Request[_K], timeout: float) -> dict[_K, Future[Any]]:
        """Return the answers to `request`, all of them completed, within `timeout` seconds.

        Raises KafkaException or TimeoutError when no attempt was answered. The futures hold the broker's answers, and
        also its errors about single topics.
        """
        deadline = Deadline(timeout)
        for left in reversed(range(_ATTEMPTS)):
            client = self._connect_once()
            # The margin is kept free, so that librdkafka also ends the last attempt before the deadline.
            seconds = max(deadline.left - _MARGIN_S, deadline.left / 2) / (left + 1)
            attempt = Deadline(min(seconds + _MARGIN_S, deadline.left))
            try:
                answers = dict(request(client, seconds))
                for answer in answers.values():
                    error = answer.exception(attempt.left)
                    if error is not None and _is_local(error):
                        # A new one: confluent-kafka keeps that of the future in a cycle, which would get this frame.
                        raise type(error)(*error.args) from None
            except (KafkaException, TimeoutError):
                self._give_up(client)
                if left == 0 or deadline.is_over:
                    raise
            else:
                return answers
            finally:
                # Else the error, its traceback and this frame would be a cycle with the client in it. The garbage
                # collector may run in a thread of librdkafka, which ends the process if a client is destroyed there.
                answers = answer = error = None  # type: ignore[assignment]
        raise AssertionError("unreachable: the last attempt returns or raises")

    def describe_topics(self, topics: Iterable[str], timeout: float) -> dict[str, Future[Any]]:
        """Describe these topics with librdkafka's `describe_topics`, by name. Never creates one. Raises as `ask`."""
        names = list(topics)
        return self.ask(
            lambda admin, seconds: admin.describe_topics(TopicCollection(names), request_timeout=seconds), timeout
        )

    def describe_configs(self, topics: Iterable[str], timeout: float) -> dict[str, Future[Any]]:
        """Ask for the configurations of these topics, by name. Raises as `ask`."""
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in topics}
        answers = self.ask(
            lambda admin, seconds: admin.describe_configs(list(resources), request_timeout=seconds), timeout
        )
        return {resources[resource]: answer for resource, answer in answers.items()}

    def describe_topics_and_configs(
        self, topics: Iterable[str], timeout: float
    ) -> tuple[dict[str, Future[Any]], dict[str, Future[Any]]]:
        """Describe these topics with the rights of this user, and their configurations, at once. Raises as `ask`."""
        names = list(topics)

        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}

        def request(admin: AdminClient, seconds: float) -> dict[Any, Future[Any]]:
            described: dict[Any, Future[Any]] = admin.describe_topics(
                TopicCollection(names), include_authorized_operations=True, request_timeout=seconds
            )
            configs: dict[Any, Future[Any]] = admin.describe_configs(list(resources.values()), request_timeout=seconds)
            return described | configs

        answers = self.ask(request, timeout)
        return {name: answers[name] for name in names}, {name: answers[resources[name]] for name in names}

    def lend_client(self, work: Callable[[AdminClient], _T]) -> _T:
        """Return what `work` makes of the client. If Kafka does not answer it, the next request uses another one."""
        client = self._connect_once()
        try:
            return work(client)
        except KafkaUnreachableError:
            self._give_up(client)
            raise

    def _connect_once(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _give_up(self, client: AdminClient) -> None:
        """Make the next request use another client. Requests that wait for this one still hold it."""
        with self._lock:
            if self._client is client:
                self._client = None


def _is_local(error: BaseException) -> bool:
    """Whether the error is librdkafka's, whose codes are negative, and not a broker's."""
    return not isinstance(error, KafkaException) or error.args[0].code() < 0
