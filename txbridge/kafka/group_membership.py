"""Requests for the members of consumer groups, which keep working through an outage of Kafka.

librdkafka (2.16) aborts the process when a request to a group's coordinator times out while no coordinator is known and
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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.deadline import Deadline
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import ABOUT_THE_GROUP, FAIL, TIMED_OUT

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
    return error.args[0].code() in ABOUT_THE_GROUP


class GroupMembership:
    """The requests of all partitions of a process. Thread-safe."""

    def __init__(
        self,
        connect: Callable[[], AdminClient],
        outside: Outside = OUTSIDE,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`report` is told of a lasting outage, with the error."""
        self._report = report
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
                else:
                    # What it has reported about its connections. Otherwise that piles up in an outage.
                    self._client.poll(0)
                answers = self._client.describe_consumer_groups(
                    new, include_authorized_operations=True, request_timeout=_LONGEST_REQUEST_S
                )
                for name in new:
                    answer: Future[Any] = Future()
                    answers[name].add_done_callback(partial(_pass_on, self._known, answer))
                    self._questions[name] = _MembershipQuestion(answer, now)
            return {name: self._questions[name].answer for name in wanted}

    def describe_groups(self, groups: Iterable[str], seconds: float) -> dict[str, Any]:
        """Kafka's description of each group, or the KafkaError of one that cannot be seen, within so many seconds."""
        deadline = Deadline(seconds, self._outside.monotonic)
        found: dict[str, Any] = {}
        for name, answer in self.ask(groups).items():
            try:
                found[name] = answer.result(deadline.left)
            except KafkaException as failure:
                found[name] = failure.args[0]
            except NoAnswer:
                found[name] = KafkaError(TIMED_OUT, "the group's coordinator does not answer")
        return found

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
            self._report(error.str())
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
