"""Asks Kafka who is a member of a consumer group, so that an outage of Kafka neither kills nor silences the process.

librdkafka (2.16) aborts the process when a request to a group's coordinator times out while no coordinator is known and
one is found later: `rd_kafka_enq_once_del_source_return: Assertion eonce->refcnt > 0`. So no such request may ever time
out in librdkafka: it waits as long as librdkafka lets it, those who ask wait as long as they like, each group is asked
once at a time, and a client that does not answer is thrown away with its requests, which is safe.

And it remembers the coordinator of a group for as long as it is asked about that group. When another broker has become
the coordinator and the former one still answers (it stood still for a while, its connections are whole), each answer is
"not the coordinator", for ever. So a client that answers with an error that is not about the group is replaced, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.kafka.denied import DENIED
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import FAIL, TIMED_OUT
from txbridge.log import get_logger

#: The longest that librdkafka accepts.
_LONGEST_REQUEST_S = 3_600.0
#: A healthy coordinator answers in milliseconds, and its election takes seconds. But after a broken connection some
#: requests are never answered at all (librdkafka 2.16, found by killing Kafka).
_ABANDON_AFTER_S = 10.0
#: A client that fails is replaced at most this often: in an outage no client helps, and each costs some threads and a
#: connection to every broker. Within this time a group that is loaded by its new coordinator is there.
_LEAST_LIFE_S = 3.0
#: An outage that lasts is told this often.
_TELL_EVERY_S = 60.0
#: Answers that are about the group itself: another client would be told the same.
_ABOUT_THE_GROUP = DENIED | {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID}

_log = get_logger("txbridge.worker")


@dataclass(frozen=True, slots=True)
class _Question:
    answer: Future[Any]
    asked: float


@dataclass(slots=True)
class _Client:
    """What is known of a client.

    Its callbacks hold this and never the client: one that is let go of last by a thread of librdkafka's aborts the
    process.
    """

    connected: float
    #: What it has failed with.
    failure: KafkaError | None = None


def is_about_the_group(error: KafkaException) -> bool:
    """Whether this is an answer about the group, and not a failure to get one."""
    return error.args[0].code() in _ABOUT_THE_GROUP


class GroupMembership:
    """Shared by all partitions of a process. Thread-safe."""

    def __init__(self, connect: Callable[[], AdminClient], outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._connect = connect
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._known = _Client(connected=float("-inf"))
        self._questions: dict[str, _Question] = {}
        #: When a failure was logged last.
        self._told = float("-inf")

    def ask(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """Kafka's description of each group, in time. While an answer is awaited, asking again returns the same future.

        The futures fail with KafkaException; the call itself raises KafkaException when there can be no client.
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
                answers = self._client.describe_consumer_groups(new, request_timeout=_LONGEST_REQUEST_S)
                for name in new:
                    answer: Future[Any] = Future()
                    answers[name].add_done_callback(partial(_pass_on, self._known, answer))
                    self._questions[name] = _Question(answer, now)
            return {name: self._questions[name].answer for name in wanted}

    def abandon_unanswered(self) -> None:
        """Give up a client that fails, or has not answered for too long.

        Whoever waits without asking calls this now and then.
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
            is_told = self._told > now - _TELL_EVERY_S
            self._told = self._told if is_told else now
        if not is_told:
            _log.warning("groups_not_answered", error=error.str())
        # Out of the lock: to end a client takes as long as its threads take to end.
        del given_up


def _pass_on(client: _Client, ours: Future[Any], theirs: Future[Any]) -> None:
    # Runs in a thread of librdkafka's, or at once in that of whoever asks.
    error = theirs.exception()
    with suppress(InvalidStateError):  # given up
        if error is None:
            ours.set_result(theirs.result())
            return
        failure = error if isinstance(error, KafkaException) else _failed(repr(error))
        if not is_about_the_group(failure):
            client.failure = failure.args[0]
        ours.set_exception(failure)


def _failed(text: str) -> KafkaException:
    return KafkaException(KafkaError(FAIL, text))
