"""Requests that are made again with another client, and their one time limit."""

from __future__ import annotations

import gc
import logging
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_sqlalchemy.batch_writer import BatchWriter

from tests.support.harness import eventually
from txbridge.cli.service_program import AnswerWatch
from txbridge.core.names import Names
from txbridge.doctor.cluster_view import _describe
from txbridge.doctor.topic_checks import _has
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError, UsageError
from txbridge.kafka import admin
from txbridge.kafka.acl import ResourceKind
from txbridge.kafka.admin import Bounds, KafkaCluster
from txbridge.kafka.group_membership import GroupMembership
from txbridge.worker.startup import require_rights


def failed(code: int) -> Future[str]:
    answer: Future[str] = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    return answer


def requests(clients: list[Any]) -> KafkaCluster:
    left = iter(clients)
    return KafkaCluster(lambda: next(left))


def test_a_request_that_fails_in_librdkafka_is_made_again_with_another_client() -> None:
    answers: dict[str, Future[str]] = {"first": failed(KafkaError._TIMED_OUT), "second": Future()}
    answers["second"].set_result("here")
    client: Any = requests(["first", "second"])
    found = client.ask(lambda name, _seconds: {"orders": answers[name]}, 10)
    assert found["orders"].result() == "here"


def test_a_refusal_of_a_broker_is_an_answer() -> None:
    client: Any = requests(["first"])
    found = client.ask(lambda _name, _seconds: {"orders": failed(KafkaError.TOPIC_AUTHORIZATION_FAILED)}, 10)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        found["orders"].result()


def test_an_error_that_is_no_answer_of_kafka_keeps_its_type() -> None:
    broken: Future[str] = Future()
    broken.set_exception(ValueError("no such number"))
    client: Any = requests(["first", "second", "third"])
    with pytest.raises(ValueError, match="no such number"):
        client.ask(lambda *_: {"orders": broken}, 10)


def test_without_any_answer_it_ends_in_time() -> None:
    """Neither the brokers nor librdkafka itself end the requests."""
    asked: list[float] = []

    def silent(_name: str, seconds: float) -> dict[str, Future[str]]:
        asked.append(seconds)
        return {"orders": Future(), "mail": Future()}

    client: Any = requests(["first", "second", "third"])
    with pytest.raises(TimeoutError):
        client.ask(silent, 0.6)
    assert sum(asked) <= 0.6
    assert min(asked) > 0


def test_three_attempts_that_librdkafka_ends_late_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka ends each request as late as it may after its time-out."""
    monkeypatch.setattr(admin, "_MARGIN_S", 0.2)
    asked: list[float] = []
    slept: list[float] = []

    class Late(Future[str]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            assert timeout is not None
            slept.append(min(timeout, asked[-1] + 0.2))
            time.sleep(slept[-1])
            return KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def late(_name: str, seconds: float) -> dict[str, Future[str]]:
        asked.append(seconds)
        return {"orders": Late()}

    client: Any = requests(["first", "second", "third"])
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        client.ask(late, 0.9)
    assert len(asked) == 3
    # Not the time that has passed: a busy machine adds to that.
    assert sum(slept) < 1.2


def given_up(make: Callable[[], Any], use: Callable[[KafkaCluster], object]) -> list[object]:
    """What is left of the clients that a use of a cluster has given up, before Python looks for cycles."""
    made: list[weakref.ref[Any]] = []

    def connect() -> Any:
        client = make()
        made.append(weakref.ref(client))
        return client

    gc.disable()
    try:
        with suppress(KafkaException, TimeoutError, KafkaUnreachableError):
            use(KafkaCluster(connect))
        return [client() for client in made]
    finally:
        gc.enable()


def test_a_client_that_was_given_up_does_not_wait_for_the_garbage_collector() -> None:
    """It may run in a thread of librdkafka, which ends the process if a client is destroyed there."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "logger": logging.getLogger("silent"), "log_level": 0}
    assert given_up(lambda: AdminClient(settings), lambda one: one.describe_topics(["a", "b"], 4.0)) == [None] * 3


def test_a_client_that_cannot_be_made_again_is_no_mistake_of_the_user() -> None:
    """A certificate is being replaced, for example. What waits for Kafka goes on waiting."""

    def refuse() -> Any:
        raise UsageError("no such file")

    cluster = KafkaCluster(cast(Any, SimpleNamespace))
    cluster._give_up(cluster.admin)
    cluster.make_client = refuse
    with pytest.raises(EnvironmentProblemError, match="no such file"):
        _ = cluster.admin


def test_questions_of_several_threads_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one Consumer do: confluent-kafka serves them one after the other. Those of an AdminClient do not."""
    monkeypatch.setattr(admin, "_ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", "log_level": 0}
        shared = KafkaCluster(lambda: AdminClient({**settings, "logger": logging.getLogger("silent")}))
        questions: list[Callable[[], object]] = [
            lambda: shared.describe_topics(["orders"], 3.0),
            lambda: shared.admin.list_topics(timeout=3.0),
        ] * 3
        began = time.monotonic()
        with ThreadPoolExecutor(len(questions)) as threads:
            errors = [asked.exception() for asked in [threads.submit(question) for question in questions]]
        assert all(isinstance(error, KafkaException | TimeoutError) for error in errors)
        assert time.monotonic() - began < 2 * 3.0


class Unanswered:
    meanwhile = poll = print

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[str]]:
        self.meanwhile()
        return {"orders": failed(KafkaError._TIMED_OUT)}

    describe_configs = describe_topics


def test_nor_does_one_of_a_cluster_that_did_not_answer() -> None:
    def ask_twice(cluster: KafkaCluster) -> None:
        for _ in range(2):
            with suppress(KafkaUnreachableError):
                cluster.within(Bounds()).read_topics(["orders"])

    assert given_up(Unanswered, ask_twice) == [None, None]


def test_a_client_that_another_thread_has_made_meanwhile_is_not_given_up() -> None:
    first: Any = Unanswered()
    cluster = requests([first, second := Unanswered()])
    first.meanwhile = lambda: (cluster._give_up(first), cluster.admin)
    with pytest.raises(KafkaUnreachableError):
        cluster.within(Bounds()).read_topics(["orders"])
    assert cluster.admin is second


@pytest.mark.parametrize("use", ["a cluster", "questions about groups"])
def test_errors_of_a_client_that_is_kept_do_not_pile_up_in_an_outage(use: str) -> None:
    """librdkafka keeps each error until the client is polled, also without error_cb."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 10}
    cluster = KafkaCluster.connect(settings)
    membership = GroupMembership(cluster.make_client)
    membership.ask(["orders"])
    client = cluster.admin if use == "a cluster" else membership._client
    assert client is not None
    eventually(lambda: len(client) > 0)
    if use == "a cluster":
        cluster.serve_errors()
    else:
        membership.ask(["mail"])
    assert len(client) == 0


def test_a_right_about_which_kafka_does_not_answer_is_not_missing() -> None:
    client: Any = SimpleNamespace(describe_topics=lambda *_, **__: {"half": failed(KafkaError._TIMED_OUT)})
    groups: Any = SimpleNamespace(describe_groups=lambda names, _: dict.fromkeys(names, KafkaError(-185)))
    require_rights(KafkaCluster(lambda: client), groups, Names(), "workers")
    assert _describe(KafkaCluster(lambda: client), ["half"]) == {}
    view, right = SimpleNamespace(described={}, seen={"half": "found"}), SimpleNamespace(kind=ResourceKind.TOPIC)
    assert _has(cast(Any, view), {}, cast(Any, right), "half") is None


def test_a_relay_that_is_not_ready_names_the_address_of_kafka_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "REQUEST_TIMEOUT_S", 0.3)
    watch = AnswerWatch("Kafka", BatchWriter({"bootstrap.servers": "127.0.0.1:1"}, Names()).greet_kafka)
    watch.start()
    reason = eventually(lambda: [one for one in watch.list_problems() if "silent" not in one])[0]
    assert reason.startswith("Kafka cannot be reached at 127.0.0.1:1 (connect): ")
    assert "Connection refused" in reason


def test_a_client_that_nobody_has_ends_before_python_looks_for_cycles() -> None:
    gc.disable()
    audit = AuditedCluster(kafka_settings("127.0.0.1:1", None))
    commands = KafkaCluster.connect({"bootstrap.servers": "127.0.0.1:1"})
    clients = weakref.ref(commands.admin), weakref.ref(audit._admin)
    del commands, audit
    gc.enable()
    assert [one() for one in clients] == [None, None]
