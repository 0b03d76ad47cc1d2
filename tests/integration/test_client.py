"""The client on a real Kafka, judged by the records in HALF and END; no worker runs here.

One suite for all APIs of the client (tests/support/apis.py).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from urllib.parse import unquote

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.support.apis import APIS, AsyncioPlain
from tests.support.client_fakes import FakeRecord
from tests.support.harness import Bridge, eventually, quiet
from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN, Answers
from tests.support.own_threads import names_of_ours
from txbridge import EndTransactionError, LayoutError, Message, PrepareError, SendStatus, UsageError
from txbridge.client.checks import consumer
from txbridge.client.flow import send_path
from txbridge.embedded import EmbeddedKafka
from txbridge.errors import KafkaUnreachableError
from txbridge.kafka import admin
from txbridge.kafka import config as kafka_config


@pytest.fixture(params=APIS, ids=lambda api: api.__name__)
def api(request):
    """Make producers of one API; their event loops end with the test."""
    made = []

    def make(*arguments, **options):
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield make
    for producer in made:
        producer.end_loop()


#: For tests of the way in which the listener is called. `make test` leaves these out: the pipelined API has the same
#: checks as the blocking one, and all APIs have the same connection.
of_checks = pytest.mark.long_for("Pipelined")
of_the_connection = pytest.mark.long_for("Pipelined", "Asyncio")
#: Other answers that the same line of each API reads.
another_answer = pytest.mark.long_for("Pipelined", "AsyncioPlain")
every_listener = pytest.mark.parametrize("api", [*APIS, AsyncioPlain], indirect=True, ids=lambda api: api.__name__)


@pytest.fixture
def producer_on(api):
    def make(bridge, listener, *, group="orders", settings=None, **options):
        return api(
            group,
            listener,
            {"bootstrap.servers": bridge.bootstrap_servers, **(settings or {})},
            namespace=bridge.namespace,
            **options,
        )

    return make


def ends(bridge, source=None):
    """All entries in END as (partition, half offset, transaction id, decision, check times, remark), in order."""
    found = []
    for record in bridge.read(bridge.names.end):
        headers = dict(record.headers())
        assert headers["TXB_V"] == b"1"
        if source is None or headers["SOURCE"] == source.encode():
            for line in record.value().decode().split("\n"):
                offset, transaction_id, decision, times, remark = (*line.split(","), "", "")[:5]
                found.append((record.partition(), int(offset), transaction_id, int(decision), times, unquote(remark)))
    return found


def check_record(bridge, half, times=1, group="orders", **changed):
    """Send a check as the worker does, with our headers `changed`."""
    headers = {
        "TRANSACTION_CHECK_TIMES": b"%d" % times,
        "TXB_HALF": b"%d:%d" % (half.partition(), half.offset()),
        "TXB_END": b"1",
        "TXB_BORN": b"%d" % half.timestamp()[1],
        **changed,
    }
    bridge.produce(
        bridge.names.check(group), key=half.key(), value=half.value(), headers=[*half.headers(), *headers.items()]
    )


def half_of(bridge, transaction_id):
    return next(
        half for half in bridge.read(bridge.names.half) if dict(half.headers())["UNIQ_KEY"].decode() == transaction_id
    )


def test_message_arrives_unchanged_and_the_result_tells_where(bridge, producer_on):
    listener = Answers()
    sent = Message(
        "orders.placed",
        b"\x00\xff value",
        key=b"42",
        headers=[("trace", b"1"), ("null", None), ("trace", b"2"), ("empty", b""), ("ümlaut", b"\xff"), ("", b"x")],
        timestamp=1_234_567_890_123,
        partition=5,
        check_immunity_time=90,
    )
    before = time.time() * 1000
    with producer_on(bridge, listener) as producer:
        result = producer.send(sent, {"an": "argument"})
    [half] = bridge.read(bridge.names.half)
    assert (half.key(), half.value()) == (b"42", b"\x00\xff value")
    assert half.headers() == [
        ("trace", b"1"),
        ("null", None),
        ("trace", b"2"),
        ("empty", b""),
        ("ümlaut", b"\xff"),
        ("", b"x"),
        ("TXB_V", b"1"),
        ("TRAN_MSG", b"true"),
        ("REAL_TOPIC", b"orders.placed"),
        ("PGROUP", b"orders"),
        ("UNIQ_KEY", result.transaction_id.encode()),
        ("REAL_QID", b"5"),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS", b"90"),
        ("BORN_TIMESTAMP", b"1234567890123"),
    ]
    assert result.send_status is SendStatus.SEND_OK
    assert result.msg_id == result.transaction_id
    assert (result.half_partition, result.half_offset) == (half.partition(), half.offset())
    assert result.queue_offset == half.offset()
    assert result.local_transaction_state is COMMIT
    assert result.local_exception is None
    assert result.end.result(0) is None
    [(given, argument)] = listener.executed
    assert argument == {"an": "argument"}
    assert (given.topic, given.value, given.key, given.headers) == (sent.topic, sent.value, sent.key, sent.headers)
    assert (given.timestamp, given.partition, given.check_immunity_time) == (1_234_567_890_123, 5, 90)
    assert given.transaction_id == result.transaction_id
    assert (given.half_partition, given.half_offset, given.check_times) == (half.partition(), half.offset(), 0)
    assert given.born_timestamp == half.timestamp()[1]
    assert before - 5_000 < given.born_timestamp < before + 60_000
    [end] = bridge.read(bridge.names.end)
    assert end.key() is None
    assert end.partition() == half.partition()
    assert end.value() == f"{half.offset()},{result.transaction_id},8".encode()
    headers = dict(end.headers())
    assert set(headers) == {"TXB_V", "PGROUP", "SOURCE", "CLIENT_ID"}
    assert (headers["PGROUP"], headers["SOURCE"]) == (b"orders", b"client")


@every_listener
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupt_in_the_local_transaction_gets_out_and_the_worker_learns_unknown(bridge, producer_on, error):
    with producer_on(bridge, Answers(error)) as producer:
        with pytest.raises(type(error)):
            producer.send(Message("t", b"v"))
        assert producer.flush() == 0
        [(_, _, _, decision, _, remark)] = ends(bridge)
        assert decision == 0
        assert remark.startswith(f"executeLocalTransactionBranch exception: {type(error).__name__}")


def test_refusals_send_nothing(bridge, producer_on):
    listener = Answers()
    with producer_on(bridge, listener) as producer:
        for bad in (
            Message(bridge.names.half, b""),
            # The half topic keeps its messages for 7 days.
            Message("t", b"", check_immunity_time=604_801),
            # The topic plan's max_message_size is 1,000,000.
            Message("t", b"x" * 1_000_001),
        ):
            with pytest.raises(UsageError):
                producer.send(bad)
    assert (listener.executed, bridge.read(bridge.names.half), bridge.read(bridge.names.end)) == ([], [], [])


def test_a_timestamp_that_the_real_topic_refuses_is_refused_before_the_local_transaction(bridge, producer_on):
    listener, hour = Answers(), 3_600_000
    limited = bridge.create_topic("limited", message_timestamp_before_max_ms=str(hour))
    usual, own = bridge.create_topic("usual"), bridge.create_topic("own", message_timestamp_type="LogAppendTime")
    now = time.time_ns() // 1_000_000
    with producer_on(bridge, listener) as producer:
        for topic, timestamp, text in (
            (usual, now + 2 * hour, "more than 1h ahead (message.timestamp.after.max.ms)"),
            (usual, now * 1_000, "is a time in microseconds or nanoseconds"),
            (limited, now - 2 * hour, "more than 1h behind (message.timestamp.before.max.ms)"),
        ):
            with pytest.raises(UsageError) as caught:
                producer.send(Message(topic, b"", timestamp=timestamp))
            assert text in str(caught.value)
        assert (listener.executed, bridge.read(bridge.names.half)) == ([], [])
        # These are taken: an hour and a half ago; any time, because the topic has its own; when it is delivered.
        producer.send(Message(usual, b"", timestamp=now - 5_400_000))
        producer.send(Message(own, b"", timestamp=now + 2 * hour))
        producer.send(Message("missing", b"", timestamp=now + 2 * hour))
        producer.send(Message(usual, b"", timestamp=now + 2 * hour, delay=2 * 3_600))
    assert len(listener.executed) == 4


def test_the_largest_message_is_sent(bridge, producer_on):
    with producer_on(bridge, Answers()) as producer:
        largest = Message("t", b"x" * 1_000_000, key=b"k" * 32_768, check_immunity_time=604_800)
        producer.send(largest).wait(120)
    [half] = bridge.read(bridge.names.half)
    assert len(half.value()) == 1_000_000


def test_settings_pass_through_by_librdkafkas_names_and_a_callback_that_exits_ends_no_thread(bridge, producer_on):
    statistics, left = [], []

    def leave(given):
        statistics.extend([json.loads(given)] if isinstance(given, str) else [])
        if threading.current_thread() is not threading.main_thread():
            left.append(threading.current_thread().name)
            sys.exit("as an application may")

    settings = {
        "client.id": "my-service",
        "statistics.interval.ms": 100,
        "stats_cb": leave,
        "compression.type": "gzip",
        "session.timeout.ms": 9_000,
    }
    with producer_on(bridge, Answers(check=COMMIT), settings=settings) as producer:
        producer.send(Message("t", b"v" * 1_000)).end.add_done_callback(leave)
        eventually(lambda: {one["type"] for one in statistics} == {"producer", "consumer"})
        result = producer.send(Message("t", b"v"))
        check_record(bridge, half_of(bridge, result.transaction_id))
        eventually(lambda: len(ends(bridge)) == 3)
    assert {one["client_id"] for one in statistics} == {"my-service"}
    assert {"txbridge-check", "txbridge-end", "txbridge-half"} <= set(left)


@every_listener
def test_a_listener_may_send_another_message(bridge, producer_on):
    def nested(message, arg):
        if message.topic == "outer":
            assert producer.send(Message("inner", b"v")).local_transaction_state is COMMIT
        return COMMIT

    with producer_on(bridge, Answers(nested)) as producer:
        producer.send(Message("outer", b"v"))
    assert len(ends(bridge)) == 2


def test_close_waits_and_ends_everything_and_can_be_repeated(bridge, producer_on):
    producer = producer_on(bridge, Answers())
    assert producer.start() is producer
    producer.start()
    results = [producer.send(Message("t", b"v")) for _ in range(50)]
    producer.close()
    assert all(result.end.result(0) is None for result in results)
    eventually(lambda: not names_of_ours())
    producer.close()
    with pytest.raises(UsageError, match="closed"):
        producer.send(Message("t", b"v"))
    with pytest.raises(UsageError, match="closed"), producer:
        raise AssertionError
    assert len(bridge.read(bridge.names.half)) == 50


def test_a_body_that_raises_is_flushed_all_the_same(bridge, producer_on):
    results = []

    def body():
        with producer_on(bridge, Answers()) as producer:
            results.extend(producer.send(Message("t", b"v")) for _ in range(20))
            raise LookupError("the body")

    with pytest.raises(LookupError, match="the body"):
        body()
    assert all(result.end.done() for result in results)
    assert len(ends(bridge)) == 20


@every_listener
def test_close_by_a_listener_is_refused(bridge, producer_on):
    def closes(*_):
        producer.close()

    with producer_on(bridge, Answers(closes, closes)) as producer:
        result = producer.send(Message("t", b"v"))
        assert isinstance(result.local_exception, UsageError)
        check_record(bridge, half_of(bridge, result.transaction_id))
        eventually(lambda: ends(bridge, "check"))
    [(*_, remark)] = ends(bridge, "check")
    assert remark.startswith("checkLocalTransactionState Exception: UsageError: close() was called by a listener")


def test_without_topics_it_does_not_start_and_creates_nothing(api, kafka):
    with pytest.raises(LayoutError, match=r"missing-namespace\.RMQ_SYS_TRANS_HALF_TOPIC: does not exist"):
        api("orders", Answers(), {"bootstrap.servers": kafka.bootstrap_servers}, namespace="missing-namespace").start()
    consumer = Consumer({**quiet(kafka.bootstrap_servers), "group.id": "look"})
    try:
        topics = consumer.list_topics(timeout=120).topics
    finally:
        consumer.close()
    assert not [topic for topic in topics if topic.startswith("missing-namespace")]
    assert not [name for name in names_of_ours() if not name.startswith("txbridge-async")]


@of_checks
@every_listener
@pytest.mark.parametrize(
    ("answer", "decision", "remark"),
    [
        (COMMIT, 8, ""),
        pytest.param(ROLLBACK, 12, "", marks=another_answer),
        (KeyError("row"), 0, "checkLocalTransactionState Exception: KeyError: 'row'"),
    ],
)
def test_what_a_check_is_answered(bridge, producer_on, answer, decision, remark):
    listener = Answers(UNKNOWN, answer)
    with producer_on(bridge, listener) as producer:
        sent = Message("orders.placed", b"value", b"42", [("a", None), ("a", b"1")], 1_700_000_000_077, 3)
        result = producer.send(sent)
        check_record(bridge, half_of(bridge, result.transaction_id), times=7)
        eventually(lambda: ends(bridge, "check"))
    where = (result.half_partition, result.half_offset, result.transaction_id)
    assert ends(bridge, "check") == [(*where, decision, "7", remark)]
    [message] = listener.checked
    assert (message.topic, message.value, message.key, message.headers) == (
        "orders.placed",
        b"value",
        b"42",
        (("a", None), ("a", b"1")),
    )
    assert (message.timestamp, message.partition, message.check_times) == (1_700_000_000_077, 3, 7)
    assert (message.half_partition, message.half_offset, message.transaction_id) == where
    assert message.born_timestamp == half_of(bridge, result.transaction_id).timestamp()[1]


@of_checks
def test_check_of_a_running_local_transaction_is_unknown_without_asking(bridge, producer_on):
    def checked_meanwhile(message, _):
        check_record(bridge, half_of(bridge, message.transaction_id))
        eventually(lambda: ends(bridge, "check"))
        return COMMIT

    listener = Answers(checked_meanwhile, ROLLBACK)
    with producer_on(bridge, listener) as producer:
        result = producer.send(Message("t", b"v"))
        result.wait(120)
        # The local transaction has ended, so the application is asked.
        check_record(bridge, half_of(bridge, result.transaction_id), times=2)
        eventually(lambda: len(ends(bridge, "check")) == 2)
    assert [(entry[3], entry[4]) for entry in ends(bridge, "check")] == [(0, "1"), (12, "2")]
    assert [entry[3] for entry in ends(bridge, "client")] == [8]
    assert len(listener.checked) == 1


@of_checks
def test_malformed_checks_are_skipped_and_the_next_is_answered(bridge, producer_on, caplog):
    listener = Answers()
    with producer_on(bridge, listener) as producer:
        result = producer.send(Message("t", b"v"))
        half = half_of(bridge, result.transaction_id)
        topic = bridge.names.check("orders")
        for partition in range(4):
            bridge.produce(topic, value=b"hello", partition=partition)
            bridge.produce(topic, value=None, headers=[("TXB_V", b"\xff")], partition=partition)
        check_record(bridge, half, TXB_HALF=b"99:0")
        check_record(bridge, half, TXB_HALF=b"nonsense")
        check_record(bridge, half, UNIQ_KEY=b"again")
        check_record(bridge, half, TRANSACTION_CHECK_TIMES=b"many")
        check_record(bridge, half, times=5)
        eventually(lambda: ends(bridge, "check"))
        eventually(lambda: caplog.text.count("check_request_malformed") == 12)
    assert [entry[4] for entry in ends(bridge, "check")] == ["5"]
    assert len(listener.checked) == 1
    assert result.transaction_id not in caplog.text
    assert "check_thread_error" not in caplog.text


@of_checks
def test_answered_checks_are_not_asked_again_and_waiting_ones_are(bridge, producer_on):
    first = Answers()
    with producer_on(bridge, first) as producer:
        half = half_of(bridge, producer.send(Message("t", b"v")).transaction_id)
        for times in range(1, 21):
            check_record(bridge, half, times)
        eventually(lambda: len(ends(bridge, "check")) == 20)
    # This check is sent while no member of the group is live.
    check_record(bridge, half, 21)
    second = Answers()
    with producer_on(bridge, second):
        eventually(lambda: len(ends(bridge, "check")) >= 21)
    assert [message.check_times for message in second.checked] == [21]
    assert sorted(int(entry[4]) for entry in ends(bridge, "check")) == list(range(1, 22))


@of_checks
def test_no_more_checks_are_read_than_can_be_held_and_none_is_lost(bridge, producer_on):
    go_on = threading.Event()
    listener = Answers(UNKNOWN, lambda _: go_on.wait(30) and COMMIT)
    with producer_on(bridge, listener, check_request_hold_max=3) as producer:
        half = half_of(bridge, producer.send(Message("t", b"v")).transaction_id)
        for times in range(1, 31):
            check_record(bridge, half, times)
        eventually(lambda: listener.checked)
        consumer = producer.runtime._checks
        eventually(lambda: consumer._paused)
        assert consumer._held == 3
        go_on.set()
        eventually(lambda: len(ends(bridge, "check")) >= 30)
    assert sorted(int(entry[4]) for entry in ends(bridge, "check")) == list(range(1, 31))


@of_the_connection
def test_members_of_a_group_share_the_checks_and_take_over(bridge, producer_on):
    one, other = Answers(), Answers()
    with producer_on(bridge, one) as first:
        half = half_of(bridge, first.send(Message("t", b"v")).transaction_id)
        with producer_on(bridge, other):
            times = 0

            def both_are_asked():
                nonlocal times
                times += 1
                check_record(bridge, half, times)
                return one.checked and other.checked

            eventually(both_are_asked)
        before = times
        for times in range(before + 1, before + 11):
            check_record(bridge, half, times)
        eventually(lambda: {int(entry[4]) for entry in ends(bridge, "check")} == set(range(1, before + 11)))


@of_checks
def test_the_group_is_alive_while_the_producer_is(bridge, producer_on):
    group = bridge.names.check("orders")

    def members():
        described = bridge.admin.describe_consumer_groups([group])[group].result(120)
        return len(described.members)

    with producer_on(bridge, Answers()):
        eventually(lambda: members() == 1)
    assert members() == 0


@of_checks
def test_a_check_topic_that_was_deleted_is_made_again_and_its_checks_are_answered(
    bridge, producer_on, monkeypatch, caplog
):
    monkeypatch.setattr(consumer, "_LOOK_EVERY_S", 1.0)
    topic = bridge.names.check("orders")
    with producer_on(bridge, Answers(UNKNOWN, COMMIT)) as producer:
        result = producer.send(Message("t", b"v"))
        bridge.admin.delete_topics([topic])[topic].result(120)
        eventually(lambda: "check_topic_created_again" in caplog.text)
        check_record(bridge, half_of(bridge, result.transaction_id))
        eventually(lambda: ends(bridge, "check"))


@of_checks
def test_a_check_topic_that_somebody_deletes_and_creates_is_read_again(bridge, producer_on, monkeypatch):
    """The client's own look, which comes too late here, finds nothing wrong."""
    monkeypatch.setattr(kafka_config, "CHECK_REFRESH_MS", 1_000)
    topic = bridge.names.check("orders")

    def assigned():
        members = bridge.admin.describe_consumer_groups([topic])[topic].result(120).members
        return any(member.assignment.topic_partitions for member in members)

    with producer_on(bridge, Answers(UNKNOWN, COMMIT)) as producer:
        result = producer.send(Message("t", b"v"))
        eventually(assigned)
        bridge.admin.delete_topics([topic])[topic].result(120)
        eventually(lambda: not assigned())
        bridge.admin.create_topics([NewTopic(topic, 1)])[topic].result(120)
        check_record(bridge, half_of(bridge, result.transaction_id))
        eventually(lambda: ends(bridge, "check"))


@pytest.fixture
def own_bridge(own_kafka, request):
    with Bridge(own_kafka.bootstrap_servers, request.node.name) as bridge:
        yield bridge


@of_the_connection
def test_unacknowledged_half_message_runs_no_local_transaction(producer_on, request, monkeypatch, caplog):
    ids = iter([f"{number:032X}" for number in range(1, 1_000)])
    monkeypatch.setattr(send_path, "new_transaction_id", lambda: next(ids))
    listener = Answers()
    # The controller must not declare the broker dead while it is paused.
    with (
        EmbeddedKafka(config={"broker.session.timeout.ms": "60000"}) as kafka,
        Bridge(kafka.bootstrap_servers, request.node.name) as bridge,
        producer_on(bridge, listener, settings={"message.timeout.ms": 1_000}) as producer,
    ):
        eventually(lambda: _sends(producer, Message("t", b"before")))
        kafka.pause()
        # The broker's threads stop a moment later.
        failure = eventually(lambda: _fails(producer, Message("t", b"paused")))
        assert failure.cause.name() == "_MSG_TIMED_OUT"
        assert "check the brokers" in str(failure)
        executed = [message.transaction_id for message, _ in listener.executed]
        lost = f"{int(executed[-1], 16) + 1:032X}"
        # Kafka may have answered something while that message was on its way. Then only the next message reports the
        # loss.
        eventually(lambda: connection_events(caplog) or (_fails(producer, Message("t", b"too")) and None))
        kafka.resume()
        eventually(lambda: _sends(producer, Message("t", b"after")))
        # Simulate that Kafka has stored the message, which depends on how far the request came. The answer is rollback.
        headers = bridge.half_headers("t", "orders", lost)
        check_record(bridge, FakeRecord(1, 777, value=b"paused", headers=headers))
        eventually(lambda: ends(bridge, "check"))
        assert ends(bridge, "check") == [(1, 777, lost, 12, "1", "")]
        assert listener.checked == []
        assert lost not in {message.transaction_id for message, _ in listener.executed}
        assert lost not in {entry[2] for entry in ends(bridge, "client")}
        eventually(lambda: connection_events(caplog)[-1] == "kafka_connection_back")
    assert connection_events(caplog) == ["kafka_connection_lost", "kafka_connection_back"]
    assert lost not in caplog.text


def connection_events(caplog):
    return [record.event for record in caplog.records if record.event.startswith("kafka_connection")]


def _fails(producer, message):
    try:
        producer.send(message)
    except PrepareError as failure:
        return failure
    return None


def _sends(producer, message):
    try:
        return producer.send(message)
    except PrepareError:
        return None


def test_no_end_is_lost_when_kafka_is_killed_and_comes_back(own_kafka, own_bridge, producer_on, caplog):
    results, stop = [], threading.Event()
    listener = Answers()
    with producer_on(own_bridge, listener, settings={"message.timeout.ms": 1_000}) as producer:

        def work():
            while not stop.is_set():
                result = _sends(producer, Message("t", b"v"))
                if result is not None:
                    results.append(result)

        def kill(*_):
            own_kafka.kill()
            return COMMIT

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        eventually(lambda: len(results) > 200)
        # At least one END is sent while no Kafka can take it.
        listener.execute = kill
        eventually(lambda: not own_kafka.is_running())
        listener.execute = COMMIT
        eventually(lambda: "kafka_connection_lost" in caplog.text)
        own_kafka.restart()
        many = len(results) + 200
        eventually(lambda: len(results) > many)
        stop.set()
        for worker in workers:
            worker.join()
        for result in results:
            result.wait(60)
        eventually(lambda: connection_events(caplog)[-1] == "kafka_connection_back")
    found = Counter(entry[2] for entry in ends(own_bridge, "client"))
    assert found == Counter(result.transaction_id for result in results)
    assert connection_events(caplog) == ["kafka_connection_lost", "kafka_connection_back"]


def test_close_in_time_while_kafka_is_away(own_kafka, own_bridge, producer_on, caplog):
    def kill(*_):
        own_kafka.kill()
        return COMMIT

    producer = producer_on(own_bridge, Answers(kill)).start()
    result = producer.send(Message("t", b"v"))
    with pytest.raises(TimeoutError):
        result.wait(0.1)
    assert producer.flush(0.1) == 1
    began = time.monotonic()
    producer.close(0.5)
    assert time.monotonic() - began < 60
    with pytest.raises(EndTransactionError, match="the worker will ask check_local_transaction"):
        result.wait(0)
    [event] = [record for record in caplog.records if record.event == "closed_too_early"]
    assert event.fields["ends_not_acknowledged"] == 1


def test_start_waits_for_a_kafka_that_comes_late(own_kafka, own_bridge, producer_on, monkeypatch, caplog):
    monkeypatch.setattr(admin, "REQUEST_TIMEOUT_S", 1.0)
    own_kafka.kill()
    # Longer than a few attempts. The pauses grow, and soon exceed the time-out of a request.
    restart = threading.Timer(6, own_kafka.restart)
    restart.start()
    with producer_on(own_bridge, Answers()) as producer:
        eventually(lambda: _sends(producer, Message("t", b"v"))).wait(120)
        eventually(lambda: connection_events(caplog)[-1] == "kafka_connection_back")
    restart.join()
    assert connection_events(caplog) == ["kafka_connection_lost", "kafka_connection_back"]


def test_start_gives_up_in_the_end(api, caplog):
    producer = api("orders", Answers(), {"bootstrap.servers": "127.0.0.1:1"}, start_timeout=1)

    def seconds() -> float:
        began = time.monotonic()
        with pytest.raises(KafkaUnreachableError, match="cannot be reached"):
            producer.send(Message("t", b"v"))
        return time.monotonic() - began

    # The time-out is 1 s. A single request may take 10 s by default, and then none of three would be below 9 s. On a
    # busy machine one or two may be.
    assert any(0.5 < seconds() < 9 for _ in range(3))
    producer.close()
    assert [record.event for record in caplog.records if hasattr(record, "event")][:1] == ["kafka_connection_lost"]


def test_partitions_added_to_half_are_refused_before_the_local_transaction(bridge, producer_on, caplog):
    listener = Answers()
    # librdkafka learns of new partitions at once, instead of within 5 minutes.
    settings = {"topic.metadata.refresh.interval.ms": 100}
    with producer_on(bridge, listener, settings=settings) as producer:
        producer.send(Message("t", b"before"))
        half = bridge.names.half
        bridge.admin.create_partitions([NewPartitions(half, 8)])[half].result(120)
        failure = eventually(lambda: _fails(producer, Message("t", b"after")))
        assert f"the number of partitions of {half} has changed" in str(failure)
        # This includes messages for the partitions that a worker reads.
        for number in range(20):
            with pytest.raises(PrepareError, match="use another namespace"):
                producer.send(Message("t", b"later", b"%d" % number))
    ran = {message.half_partition for message, _ in listener.executed}
    assert ran <= {0, 1}
    assert b"later" not in {message.value for message, _ in listener.executed}
    assert {(entry[0], entry[2]) for entry in ends(bridge)} == {
        (message.half_partition, message.transaction_id) for message, _ in listener.executed
    }
    assert [record.event for record in caplog.records].count("half_partitions_changed") == 1
