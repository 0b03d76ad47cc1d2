"""Asks Kafka who is a member of a consumer group, in a way that an outage of Kafka does not kill the process.

librdkafka (2.16) aborts the process when a request to a group's coordinator times out while no coordinator is known and
one is found later: `rd_kafka_enq_once_del_source_return: Assertion eonce->refcnt > 0`. So no such request may ever time
out in librdkafka: it waits as long as librdkafka lets it, those who ask wait as long as they like, each group is asked
once at a time, and a client that does not answer is thrown away with its requests, which is safe.
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

from txbridge.broker.outside import OUTSIDE, Outside

#: The longest that librdkafka accepts.
_LONGEST_REQUEST_S = 3_600.0
#: A healthy coordinator answers in milliseconds, and its election takes seconds. But after a broken connection some
#: requests are never answered at all (librdkafka 2.16, found by killing Kafka).
_ABANDON_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class _Question:
    answer: Future[Any]
    asked: float


class GroupMembership:
    """Shared by all partitions of a process. Thread-safe."""

    def __init__(self, connect: Callable[[], AdminClient], outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._connect = connect
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._questions: dict[str, _Question] = {}

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
                answers = self._client.describe_consumer_groups(new, request_timeout=_LONGEST_REQUEST_S)
                for name in new:
                    answer: Future[Any] = Future()
                    answers[name].add_done_callback(partial(_pass_on, answer))
                    self._questions[name] = _Question(answer, now)
            return {name: self._questions[name].answer for name in wanted}

    def abandon_unanswered(self) -> None:
        """Give up a client that has not answered for too long. Whoever waits without asking calls this now and then."""
        with self._lock:
            self._questions = {name: one for name, one in self._questions.items() if not one.answer.done()}
            too_old = self._outside.monotonic() - _ABANDON_AFTER_S
            if all(one.asked > too_old for one in self._questions.values()):
                return
            error = KafkaError(KafkaError._TIMED_OUT, "the group's coordinator does not answer")  # noqa: SLF001
            for question in self._questions.values():
                with suppress(InvalidStateError):  # answered just now
                    question.answer.set_exception(KafkaException(error))
            self._questions.clear()
            self._client = None


def _pass_on(ours: Future[Any], theirs: Future[Any]) -> None:
    error = theirs.exception()
    with suppress(InvalidStateError):  # given up
        if error is not None:
            ours.set_exception(error)
        else:
            ours.set_result(theirs.result())
