"""A listener with an outbox in all APIs, without Kafka: when its messages are stored, and which errors are raised."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry

from tests.support.apis import APIS
from tests.support.client_fakes import FakeRuntime
from tests.support.interrupts import wait_until
from txbridge import (
    ClientMetrics,
    LayoutError,
    LocalTransactionState,
    Message,
    PrepareError,
    SendStatus,
    TransactionListener,
    UsageError,
)
from txbridge.client import runtime as runtime_module
from txbridge.client.answers import Stored
from txbridge.client.flow import lifetime
from txbridge.client.forwarding import Forwarding
from txbridge.errors import KafkaUnreachableError

MESSAGE = Message("t", b"v", b"k", delay=60)
SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
COMMIT = LocalTransactionState.COMMIT_MESSAGE
AWAY = PrepareError("no answer", KafkaError(KafkaError._MSG_TIMED_OUT))


class Storing(TransactionListener):
    """Stores a message without a half message, and another one if it is told to."""

    def __init__(self):
        self.forwarding = Forwarding()
        self.given = []
        self.stores_all = False

    def execute_local_transaction(self, message, arg):
        self.given.append(message)
        return Stored() if self.stores_all or not message.has_half else COMMIT

    def check_local_transaction(self, message):
        raise AssertionError


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def listener():
    return Storing()


@pytest.fixture(params=APIS)
def producer(request, runtime, listener, monkeypatch):
    monkeypatch.setattr(runtime_module, "start", lambda *_: runtime)
    runtime.sends._forwarding = listener.forwarding
    made = request.param("orders", listener, SETTINGS)
    yield made
    made.close()
    made.end_loop()


def sending(producer, method="send"):
    """Send in a thread. Returns a function that waits for the result, or raises the error."""
    found = []

    def send():
        try:
            found.append(getattr(producer, method)(MESSAGE))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=send)
    thread.start()

    def result():
        thread.join(20)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    return result


def test_with_kafka_its_messages_go_directly(producer, runtime, listener):
    result = sending(producer)
    runtime.wait_written(1)
    runtime.acknowledge()
    assert (result().send_status, result().half_offset, runtime.decisions()) == (SendStatus.SEND_OK, 0, ["COMMIT"])
    # Until Kafka has acknowledged its END, a row of its key would name it.
    assert listener.forwarding.list_open({b"k"}) == [(result().transaction_id, 0, 0)]
    runtime.ends[0].settle_with()
    assert listener.forwarding.list_open({b"k"}) == []


def test_without_an_acknowledgement_the_local_transaction_stores_the_message(producer, runtime, listener):
    result = sending(producer)
    runtime.wait_written(1)
    (_, half, _) = runtime.written[0]
    runtime.acknowledge(AWAY)
    stored = result()
    assert (stored.send_status, stored.local_transaction_state, stored.half_offset) == (SendStatus.STORED, COMMIT, -1)
    assert stored.end.done()
    # The half message may be in Kafka: its id is given up, and the local transaction has another one.
    assert (runtime.given_up, runtime.decisions()) == ([half], [])
    assert listener.given[0].transaction_id == stored.transaction_id != half


def test_while_kafka_is_known_to_be_away_no_half_message_is_sent(producer, runtime):
    runtime.sends._is_connected = lambda: False
    assert sending(producer)().send_status is SendStatus.STORED
    assert (runtime.written, runtime.given_up) == ([], [])


def test_while_kafka_answers_and_takes_nothing_one_caller_tries_now_and_then(producer, runtime, listener):
    """Too few replicas in sync: without that, each call would wait for a whole time-out."""
    result = sending(producer)
    runtime.wait_written(1)
    runtime.acknowledge(AWAY)
    statuses = [result().send_status, *(sending(producer)().send_status for _ in range(3))]
    assert (statuses, runtime.written) == ([SendStatus.STORED] * 4, [])
    listener.forwarding._tries_at -= 10  # the time passes
    trying = sending(producer)
    runtime.wait_written(1)
    # The others do not wait with it.
    assert (sending(producer)().send_status, len(runtime.written)) == (SendStatus.STORED, 1)
    runtime.acknowledge()
    assert trying().send_status is SendStatus.SEND_OK
    last = sending(producer)
    runtime.wait_written(1)
    runtime.acknowledge()
    assert last().send_status is SendStatus.SEND_OK


def test_an_end_that_is_sent_again_is_counted_once(listener, runtime):
    registry = CollectorRegistry()
    runtime.sends._watchers = (ClientMetrics(registry).of_group("orders"),)
    runtime.sends.send_commit_again("A" * 32, 0, 7)
    assert runtime.decisions() == ["COMMIT"]
    labels = {"group": "orders", "outcome": "commit", "source": "client"}
    assert registry.get_sample_value("txbridge_client_decisions_total", labels) is None


def test_a_listener_may_store_a_message_that_has_a_half_message(producer, runtime, listener):
    listener.stores_all = True
    result = sending(producer)
    runtime.wait_written(1)
    runtime.acknowledge()
    assert (result().send_status, result().local_transaction_state) == (SendStatus.STORED, COMMIT)
    assert runtime.decisions() == ["ROLLBACK"]
    # Nobody has to wait for that.
    assert result().end.done()


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED, None])
def test_what_waiting_does_not_mend_is_raised(producer, runtime, listener, code):
    result = sending(producer)
    runtime.wait_written(1)
    runtime.acknowledge(PrepareError("no", None if code is None else KafkaError(code)))
    with pytest.raises(PrepareError):
        result()
    assert listener.given == []


def test_stored_transactions_are_counted(listener):
    registry = CollectorRegistry()
    APIS[0]("orders", listener, SETTINGS, metrics=ClientMetrics(registry))
    for count in range(3):
        assert registry.get_sample_value("txbridge_client_stored_in_outbox_total", {"group": "orders"}) == count
        listener.forwarding.count_stored()


class Start:
    """A start that fails with these errors, and then works."""

    def __init__(self, runtime, *errors):
        self.runtime, self.errors = runtime, list(errors)

    def __call__(self, *_):
        if self.errors:
            raise self.errors.pop(0)
        return self.runtime


@pytest.fixture(params=APIS)
def make(request, monkeypatch, listener, runtime):
    """Make producers whose starts fail like that. The next attempt follows at once."""
    monkeypatch.setattr(lifetime, "_START_AGAIN_S", 0.01)
    made = []

    def make(*errors):
        monkeypatch.setattr(runtime_module, "start", Start(runtime, *errors))
        made.append(request.param("orders", listener, SETTINGS))
        return made[-1]

    yield make
    for producer in made:
        producer.close()
        producer.end_loop()


def test_a_service_starts_without_kafka_and_its_client_later(make, runtime):
    producer = make(*[KafkaUnreachableError("away")] * 20)
    producer.start()
    assert sending(producer)().send_status is SendStatus.STORED
    wait_until(lambda: producer.runtime is not None, 20)
    result = sending(producer)
    runtime.wait_written(1)
    runtime.acknowledge()
    assert result().send_status is SendStatus.SEND_OK


def test_a_start_that_finds_wrong_topics_raises_and_messages_are_stored(make):
    producer = make(*[LayoutError(["RMQ_SYS_TRANS_HALF_TOPIC is missing"])] * 1_000)
    with pytest.raises(LayoutError):
        producer.start()
    assert sending(producer)().send_status is SendStatus.STORED


def test_a_setting_that_can_never_work_is_raised_by_every_call(make):
    producer = make(UsageError("no such file"))
    for _ in range(2):
        with pytest.raises(UsageError, match="no such file"):
            sending(producer)()


def test_after_close_nothing_is_stored(make):
    producer = make(*[KafkaUnreachableError("away")] * 1_000)
    producer.start()
    producer.close()
    with pytest.raises(UsageError, match="closed"):
        sending(producer)()
