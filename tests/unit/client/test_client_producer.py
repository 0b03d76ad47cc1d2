"""The blocking client without Kafka: refused arguments, and cleaning up after a failed start."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.client_fakes import FakeRuntime
from tests.support.listeners import Commits
from txbridge import Message, PrepareError, TransactionProducer, UsageError
from txbridge.errors import KafkaUnreachableError

SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}


class Coroutine(Commits):
    """A listener with one coroutine method."""

    async def check_local_transaction(self, message):
        raise AssertionError


class CoroutineBarrier(Commits):
    async def barrier_id(self):
        raise AssertionError


class AsyncCall:
    """A callable object, for example a decorator's."""

    async def __call__(self, message, arg):
        raise AssertionError


def with_method(method):
    """A listener with a method that is no `def` of its class."""
    listener = Commits()
    listener.execute_local_transaction = method
    return listener


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"listener": Coroutine()}, "check_local_transaction is a coroutine function: that takes an Async"),
        ({"listener": CoroutineBarrier()}, "barrier_id is a coroutine function: that takes an Async"),
        ({"listener": with_method(AsyncCall())}, "AsyncCall is a coroutine function: that takes an Async"),
        ({"listener": with_method(partial(AsyncCall(), 1))}, "AsyncCall is a coroutine function"),
        ({"listener": with_method(partial(Coroutine.check_local_transaction))}, "check_local_transaction is a corout"),
        ({"execute_thread_pool_max_size": 0}, "execute_thread_pool_max_size must be at least 1"),
        ({"listener": None}, "a TransactionListener is needed, not NoneType"),
        ({"listener": print}, "a TransactionListener is needed"),
        ({"group": ""}, "'' cannot be a producer group"),
        ({"group": "a b"}, "cannot be a producer group"),
        ({"group": "g" * 201}, "cannot be a producer group"),
        ({"group": None}, "None cannot be a producer group"),
        ({"namespace": "a/b"}, "namespace 'a/b' cannot prefix"),
        ({"group": "g" * 200, "namespace": "n" * 40}, "longer than 249"),
        ({"settings": {}}, "'bootstrap.servers' is missing"),
        ({"settings": {**SETTINGS, "acks": "1"}}, "'acks' cannot be set"),
        ({"settings": {**SETTINGS, "transactional.id": "x"}}, "'transactional.id' cannot be set"),
        ({"settings": {**SETTINGS, "linger": 5}}, "unknown Kafka property 'linger'"),
        ({"check_thread_pool_max_size": 0}, "check_thread_pool_max_size must be at least 1"),
        ({"check_request_hold_max": 0}, "check_request_hold_max must be at least 1"),
        ({"check_request_hold_max": "2000"}, "check_request_hold_max must be at least 1, not '2000'"),
        ({"start_timeout": -1}, "start_timeout must be seconds, more than 0, not -1"),
        ({"start_timeout": 0}, "start_timeout must be seconds, more than 0, not 0"),
        ({"start_timeout": "30"}, "start_timeout must be seconds, more than 0, not '30'"),
        ({"timer_max_delay": "60"}, "timer_max_delay must be seconds, more than 0, not '60'"),
        ({"commit_interval": 20}, "commit_interval must be 0 to 1 seconds, not 20"),
        ({"commit_interval": -0.02}, "commit_interval must be 0 to 1 seconds, not -0.02"),
        ({"commit_interval": "0.02"}, "commit_interval must be 0 to 1 seconds, not '0.02'"),
    ],
)
def test_constructor_refuses(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        TransactionProducer(**{"group": "orders", "listener": Commits(), "settings": SETTINGS, **arguments})


@pytest.fixture
def never_starts(monkeypatch):
    def start(*_):
        raise AssertionError("it was started")

    monkeypatch.setattr("txbridge.client.runtime.start", start)


@pytest.mark.usefixtures("never_starts")
def test_a_message_that_no_cluster_takes_does_not_even_start_it():
    producer = TransactionProducer("orders", Commits(), SETTINGS)
    with pytest.raises(UsageError, match="the topic is empty"):
        producer.send_message_in_transaction(Message("", b""))
    with pytest.raises(UsageError, match="a Message, or a list of them, is needed, not bytes"):
        producer.send_message_in_transaction(b"value")
    assert producer.flush() == 0


@pytest.mark.usefixtures("never_starts")
def test_closed_before_it_was_started():
    producer = TransactionProducer("orders", Commits(), SETTINGS)
    producer.close()
    producer.close()
    with pytest.raises(UsageError, match="closed"):
        producer.start()
    with pytest.raises(UsageError, match="closed"):
        producer.send_message_in_transaction(Message("t", b""))


def test_a_start_that_failed_can_be_tried_again(monkeypatch):
    attempts = []

    def start(*_):
        attempts.append(1)
        raise KafkaUnreachableError("no Kafka")

    monkeypatch.setattr("txbridge.client.runtime.start", start)
    producer = TransactionProducer("orders", Commits(), SETTINGS)
    for _ in range(2):
        with pytest.raises(KafkaUnreachableError):
            producer.start()
    with pytest.raises(KafkaUnreachableError), producer:
        raise AssertionError("the body was entered")
    assert len(attempts) == 3
    producer.close()


@pytest.mark.parametrize(
    ("room", "refusals", "error", "complaint"),
    [
        (False, [], PrepareError, "too many decisions wait"),
        (True, [BufferError("full")] * 1_000, PrepareError, "librdkafka's queue stayed full"),
        (True, [KeyboardInterrupt()], KeyboardInterrupt, "^$"),
    ],
)
def test_attempts_that_can_not_be_prepared_are_given_up_and_finished(monkeypatch, room, refusals, error, complaint):
    runtime = FakeRuntime(room=room)
    runtime.refusals.extend(refusals)
    monkeypatch.setattr("txbridge.client.runtime.start", lambda *_: runtime)
    producer = TransactionProducer("orders", Commits(), SETTINGS)
    with pytest.raises(error, match=complaint):
        producer.send_message_in_transaction(Message("t", b""))
    assert len(runtime.given_up) == 1
    assert (runtime.running, runtime.written) == (set(), [])
