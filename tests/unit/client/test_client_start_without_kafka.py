"""Start in the background in all APIs, without Kafka: what calls get meanwhile, and what is found wrong later."""

from __future__ import annotations

import gc
import time

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from tests.support.apis import APIS
from tests.support.client_fakes import FakeRuntime
from tests.support.interrupts import wait_until
from tests.support.listeners import Answers
from txbridge import LayoutError, Message, PrepareError, TransactionProducer, UsageError
from txbridge.client import runtime as runtime_module
from txbridge.client.flow import lifetime
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError

MESSAGE = Message("t", b"v")
SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
AWAY = KafkaUnreachableError("Kafka is away")
WRONG = LayoutError(["RMQ_SYS_TRANS_HALF_TOPIC is missing"])


@pytest.fixture
def runtime():
    made = FakeRuntime()
    made.is_connected = True
    return made


@pytest.fixture
def listener():
    return Answers()


@pytest.fixture(params=APIS)
def make(request, monkeypatch, listener, runtime):
    """Make producers whose starts fail with these errors in turn, then with the last one while it is there."""
    monkeypatch.setattr(lifetime, "_START_SOON_S", 0.5)
    monkeypatch.setattr(lifetime, "_START_AGAIN_S", 0.01)
    made = []

    def make(errors):
        def start(*_):
            if not errors:
                return runtime
            error = errors.pop(0) if len(errors) > 1 else errors[0]
            raise error

        monkeypatch.setattr(runtime_module, "start", start)
        made.append(request.param("orders", listener, SETTINGS, start_without_kafka=True))
        return made[-1]

    yield make
    for producer in made:
        producer.close()
        producer.end_loop()


def fails(producer, error, call="send", *given):
    """Send, or make another call, and return the error that it raises at once."""
    began = time.monotonic()
    with pytest.raises(error) as raised:
        getattr(producer, call)(*given or [MESSAGE])
    assert time.monotonic() - began < 0.4
    return raised.value


def test_it_starts_and_refuses_messages_until_kafka_answers(make, listener, runtime, caplog):
    errors = [AWAY]
    producer = make(errors)
    assert not producer.is_connected
    producer.start()
    assert not producer.is_connected
    for _ in range(2):
        refused = fails(producer, PrepareError)
        assert str(refused) == (
            "nothing was sent: Kafka has not answered since the start (Kafka is away); is_connected says when it has"
        )
        assert (refused.passes, refused.cause.code()) == (True, KafkaError._ALL_BROKERS_DOWN)
    assert listener.executed == []
    # One line for a reason, whatever the number of attempts.
    assert [record.event for record in caplog.records] == ["client_not_started"]
    errors.clear()
    wait_until(lambda: producer.is_connected, 20)
    producer.start()
    producer.close()
    assert not producer.is_connected


def test_a_kafka_that_does_not_even_refuse_delays_no_call_after_the_first_seconds(make, monkeypatch):
    producer = make([AWAY])

    def start(*_):
        time.sleep(2)
        raise AWAY

    monkeypatch.setattr(runtime_module, "start", start)
    producer.start()
    assert "(no answer yet)" in str(fails(producer, PrepareError))
    assert "(no answer yet)" in str(fails(producer, KafkaUnreachableError, "cancel", "A" * 32, "paid"))


@pytest.mark.parametrize(
    "found",
    [WRONG, EnvironmentProblemError("Kafka refused"), UsageError("no such file")],
    ids=["topics", "refusal", "setting"],
)
def test_what_is_found_wrong_after_the_start_is_raised_by_every_send(make, listener, found):
    errors = [AWAY]
    producer = make(errors)
    producer.start()
    fails(producer, PrepareError)
    errors.append(found)
    assert wait_until(lambda: str(raised(producer)) == str(found), 20)
    for _ in range(2):
        assert fails(producer, type(found)) is found
    with pytest.raises(type(found)):
        producer.start()
    assert listener.executed == []


def raised(producer):
    try:
        producer.send(MESSAGE)
    except Exception as error:
        return error


def test_topics_that_are_mended_let_it_start(make, runtime):
    errors = [WRONG]
    producer = make(errors)
    with pytest.raises(LayoutError):
        producer.start()
    errors.clear()
    wait_until(lambda: producer.is_connected, 20)


def test_p14_attempts_to_start_leave_no_client_behind(listener):
    producer, clients = TransactionProducer("orders", listener, SETTINGS, start_timeout=0.1), []
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with pytest.raises(KafkaUnreachableError):
                producer.start()
            clients.append(sum(issubclass(type(one), AdminClient) for one in gc.get_objects()))
    finally:
        gc.enable()
        producer.close()
    # The last error may still hold the client of its request, and other tests have left some.
    assert clients[-1] <= clients[0]
