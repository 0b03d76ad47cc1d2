"""Admin requests, and requests for the members of groups, that keep working through an outage of Kafka.

librdkafka (2.16) sends requests about topics to the broker that its metadata names as the controller. Under KRaft that
is any live broker. When that broker goes away, an existing client waits for it until it renews its metadata, after five
minutes by default. Until then each request times out, although every other broker would answer. So a client whose
request has failed in librdkafka itself is replaced, and the request is made again.

It also aborts the process when a request to a group's coordinator times out while no coordinator is known and
one is found later: `rd_kafka_enq_once_del_source_return: Assertion eonce->refcnt > 0`. So no such request may ever time
out in librdkafka. It gets the longest time-out that librdkafka accepts, and callers choose their own. Each group has
one request at a time. A client that does not answer is dropped with its requests, which is safe.

librdkafka also keeps the coordinator of a group for as long as there are requests about that group. A former
coordinator may still answer after another broker has replaced it: it stood still for a while, and its connections are
intact. Each answer is then "not the coordinator", forever. So a client whose answer is an error that is not about the
group is replaced, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from txbridge.deadline import Deadline
from txbridge.errors import KafkaUnreachableError
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import DENIED, FAIL, TIMED_OUT
from txbridge.log import get_logger

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


#: The longest time-out that librdkafka accepts (s).
_LONGEST_REQUEST_S = 3_600.0
#: Longest wait for an answer (s). A healthy coordinator answers in milliseconds, and its election takes seconds. But
#: after a broken connection some requests are never answered at all (librdkafka 2.16, found by killing Kafka).
_ABANDON_AFTER_S = 10.0
#: Shortest life of a client that fails (s): in an outage no client helps, and each costs some threads and a connection
#: to every broker. A new coordinator loads a group within this time.
_LEAST_LIFE_S = 3.0
#: Interval (s) at which a lasting outage is logged.
_REPORT_EVERY_S = 60.0
#: Answers that are about the group itself: another client would get the same.
_ABOUT_THE_GROUP = DENIED | {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID}

_log = get_logger("txbridge.worker")


@dataclass(frozen=True, slots=True)
class _MembershipQuestion:
    answer: Future[Any]
    asked: float


@dataclass(slots=True)
class _Client:
    """The state of a client.

    Callbacks hold this object and never the client: the process aborts when a thread of librdkafka drops the last
    reference to a client.
    """

    connected: float
    #: The error that it has failed with.
    failure: KafkaError | None = None


def is_about_the_group(error: KafkaException) -> bool:
    """Whether this is an answer about the group, and not a failure to get one."""
    return error.args[0].code() in _ABOUT_THE_GROUP


class GroupMembership:
    """The requests of all partitions of a process. Thread-safe."""

    def __init__(self, connect: Callable[[], AdminClient], outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._connect = connect
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._known = _Client(connected=float("-inf"))
        self._questions: dict[str, _MembershipQuestion] = {}
        #: When a failure was logged last. None is logged while a new cluster may still elect its first coordinators.
        self._reported_at = outside.monotonic() + _ABANDON_AFTER_S - _REPORT_EVERY_S

    def ask(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """Return futures of Kafka's descriptions of these groups. While one is pending, it is returned again.

        The futures fail with KafkaException; the call itself raises KafkaException when no client can be created.
        """
        wanted = list(groups)
        self.abandon_unanswered()
        with self._lock:
            now = self._outside.monotonic()
            new = [name for name in wanted if name not in self._questions]
            if new:
                if self._client is None:
                    self._client = self._connect()
                    self._known = _Client(connected=now)
                answers = self._client.describe_consumer_groups(
                    new, include_authorized_operations=True, request_timeout=_LONGEST_REQUEST_S
                )
                for name in new:
                    answer: Future[Any] = Future()
                    answers[name].add_done_callback(partial(_pass_on, self._known, answer))
                    self._questions[name] = _MembershipQuestion(answer, now)
            return {name: self._questions[name].answer for name in wanted}

    def abandon_unanswered(self) -> None:
        """Give up a client that fails, or has not answered for too long.

        A caller that waits without asking again must call this from time to time.
        """
        with self._lock:
            self._questions = {name: one for name, one in self._questions.items() if not one.answer.done()}
            now = self._outside.monotonic()
            if any(one.asked <= now - _ABANDON_AFTER_S for one in self._questions.values()):
                error = KafkaError(TIMED_OUT, "the group's coordinator does not answer")
            elif self._known.failure is not None and self._known.connected <= now - _LEAST_LIFE_S:
                error = self._known.failure
            else:
                return
            given_up = self._client
            for question in self._questions.values():
                with suppress(InvalidStateError):  # answered just now
                    question.answer.set_exception(KafkaException(error))
            self._questions.clear()
            self._client, self._known = None, _Client(connected=now)
            is_reported = self._reported_at > now - _REPORT_EVERY_S
            self._reported_at = self._reported_at if is_reported else now
        if not is_reported:
            _log.warning("groups_not_answered", error=error.str())
        # Outside the lock: ending a client takes as long as its threads take to end.
        del given_up


def _pass_on(client: _Client, ours: Future[Any], theirs: Future[Any]) -> None:
    # Runs in a thread of librdkafka, or at once in the caller's.
    error = theirs.exception()
    with suppress(InvalidStateError):  # given up
        if error is None:
            ours.set_result(theirs.result())
            return
        failure = error if isinstance(error, KafkaException) else KafkaException(KafkaError(FAIL, repr(error)))
        if not is_about_the_group(failure):
            client.failure = failure.args[0]
        ours.set_exception(failure)
