"""The writer of half messages, without Kafka."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import pytest
from confluent_kafka import KafkaError

from tests.support.client_fakes import FakeRecord, FakeWire, refusal
from tests.support.harness import eventually
from txbridge import Message, PrepareError
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.prepare.half_writer import HalfWriter, HalfWriters
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.names import Names
from txbridge.errors import UsageError

ID = "0123456789ABCDEF" * 2


@pytest.fixture
def wire():
    return FakeWire()


class TopicDiagnosis:
    looks = 0
    reason = ""

    def look_soon(self):
        self.looks += 1
        self.reason = "too few replicas are in sync"


def new_writer(wire, link=None, namespace="", diagnosis=None, miss_before_s=0.0):
    link, names = link or KafkaConnection("127.0.0.1:1"), Names(namespace)
    return HalfWriter(
        wire, link, names, "orders", "half", diagnosis or TopicDiagnosis(), miss_before_s, TopicWatch(names, 4)
    )


@pytest.fixture
def writer(wire):
    writer = new_writer(wire, namespace="ns")
    writer.start()
    yield writer
    writer.close()


def write(writer, **more):
    """Write a half message. Returns the queue of its report."""
    reports = SimpleQueue()
    writer.write_half(Message("real", b""), ID, reports.put, **more)
    return reports


def test_the_record_and_its_acknowledgement(wire, writer):
    reports = SimpleQueue()
    writer.write_half(Message("real", b"value", b"key", [("a", None), ("a", b"1")], 5, 2, 30), ID, reports.put)
    assert wire.records == [
        (
            "ns.RMQ_SYS_TRANS_HALF_TOPIC",
            b"value",
            b"key",
            [
                ("a", None),
                ("a", b"1"),
                ("TXB_V", b"1"),
                ("TRAN_MSG", b"true"),
                ("REAL_TOPIC", b"real"),
                ("PGROUP", b"orders"),
                ("UNIQ_KEY", ID.encode()),
                ("REAL_QID", b"2"),
                ("CHECK_IMMUNITY_TIME_IN_SECONDS", b"30"),
                ("BORN_TIMESTAMP", b"5"),
            ],
            -1,
        )
    ]
    assert reports.empty()
    wire.acknowledge()
    # 5 of the value, 3 of the key, two headers of 1 + 10 and 1 + 1 + 10.
    assert reports.get(timeout=120) == Prepared(ID, 0, 0, 1_000, 31)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._MSG_TIMED_OUT, "check the brokers and the network, then send again"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "send a smaller message"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "grant this user WRITE"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "txbridge topics apply"),
        (KafkaError.CORRUPT_MESSAGE if hasattr(KafkaError, "CORRUPT_MESSAGE") else 2, "see Kafka's description"),
    ],
)
def test_failure_names_the_cause_and_what_to_do(wire, writer, code, words, caplog):
    caplog.set_level("DEBUG")
    reports = write(writer)
    wire.acknowledge(KafkaError(code))
    error = reports.get(timeout=120)
    assert isinstance(error, PrepareError)
    assert error.cause.code() == code
    assert str(error).startswith(
        "the half message was not acknowledged by Kafka (topic ns.RMQ_SYS_TRANS_HALF_TOPIC), so the local transaction "
        "was not run: "
    )
    assert KafkaError(code).name() in str(error)
    assert words in str(error)
    assert ID not in caplog.text
    assert "half_message_not_acknowledged transaction=01234567" in caplog.text


def test_an_acknowledgement_without_an_offset_is_a_failure(writer):
    # The broker's answer to a retry of a record that it stored too long ago.
    reports = []
    writer.write_half(Message("real", b""), ID, reports.append)
    delivery = writer._expected[0]
    delivery(None, FakeRecord(0, -1001))
    assert isinstance(reports[0], PrepareError)
    assert "did not return its offset" in str(reports[0])


def test_after_some_reports_somebody_is_called_once_also_for_a_record_that_was_not_even_accepted(wire, writer):
    reports, told = [], SimpleQueue()
    writer.after_reports = lambda: reports and told.put(len(reports))
    for number in range(3):
        writer.write_half(Message("real", b"%d" % number), ID, reports.append)
    wire.acknowledge()
    assert told.get(timeout=120) == 3
    wire.refusals.append(refusal(KafkaError.MSG_SIZE_TOO_LARGE))
    writer.write_half(Message("real", b""), ID, reports.append)
    assert reports[3].cause.code() == KafkaError.MSG_SIZE_TOO_LARGE
    eventually(lambda: told.get(timeout=120) == 4)


def test_full_queue_is_left_to_the_caller(wire, writer):
    wire.refusals.append(BufferError("full"))
    with pytest.raises(BufferError):
        writer.write_half(Message("real", b""), ID, print)


def test_close_fails_what_is_not_acknowledged(wire):
    writer = new_writer(wire)
    writer.start()
    reports = []
    writer.write_half(Message("real", b""), ID, reports.append)
    writer.close()
    assert wire.closed
    assert "the producer was closed meanwhile" in str(reports[0])


@pytest.mark.parametrize("cluster", ["first", "second"])
def test_an_acknowledgement_after_an_outage_counts_once_the_cluster_is_recognised(wire, cluster):
    link = KafkaConnection("127.0.0.1:1")
    link.cluster_id = "first"
    writer = new_writer(wire, link)
    writer.start()
    link.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    reports = write(writer)
    wire.acknowledge()
    eventually(lambda: writer._unsure)
    # The answer to a question from before the outage.
    link.note_cluster("first", link.errors - 1)
    assert (link.is_unsure, reports.empty()) == (True, True)
    link.note_cluster(cluster, link.errors)
    result = reports.get(timeout=120)
    if cluster == "first":
        assert isinstance(result, Prepared)
    else:
        assert "second, not first as at the start" in str(result)
        with pytest.raises(PrepareError, match="second, not first"):
            write(writer)
    writer.close()


@pytest.mark.parametrize("error", [ValueError("the user's stats_cb"), SystemExit(1)], ids=["exception", "exit"])
def test_a_callback_of_the_users_that_raises_does_not_end_the_thread(wire, writer, caplog, error):
    serve, raised = wire.serve_reports, threading.Event()

    def broken(timeout):
        wire.serve_reports = serve
        raised.set()
        raise error

    wire.serve_reports = broken
    assert raised.wait(120)
    reports = write(writer)
    wire.acknowledge()
    assert isinstance(reports.get(timeout=120), Prepared)
    assert "kafka_callback_raised" in caplog.text


def test_no_caller_hangs_whatever_a_step_of_the_thread_raises(wire):
    """Neither a start, which waits for the connection, nor a send, which waits for its report."""

    def broken(*_):
        raise RuntimeError("no thread is left on this machine")

    wire.connect = wire.close = broken
    writer = new_writer(wire)
    writer.start()
    writer.connected.wait()
    reports = SimpleQueue()
    writer.after_reports = broken
    writer.write_half(Message("real", b""), ID, reports.put)
    wire.acknowledge()
    assert isinstance(reports.get(timeout=120), Prepared)
    writer.write_half(Message("real", b""), ID, reports.put)
    writer.close()
    assert "the producer was closed meanwhile" in str(reports.get(timeout=120))


def test_reports_are_taken_where_no_signal_handler_runs(wire, writer):
    threads = SimpleQueue()
    writer.write_half(Message("real", b""), ID, lambda _: threads.put(threading.current_thread()))
    wire.acknowledge()
    assert threads.get(timeout=120).name == "txbridge-half"


def test_what_nobody_acknowledges_is_given_up_at_its_deadline_once(wire, writer):
    reports = write(writer, deadline=time.monotonic() + 0.2)
    writer.write_half(Message("real", b""), ID, reports.put, deadline=time.monotonic() + 600)
    began = time.monotonic()
    error = reports.get(timeout=120)
    assert isinstance(error, PrepareError)
    assert error.cause.code() == KafkaError._MSG_TIMED_OUT
    assert time.monotonic() - began > 0.1
    # The first of these comes too late, the other one in time.
    wire.acknowledge()
    assert isinstance(reports.get(timeout=120), Prepared)
    assert reports.empty()


def test_a_shortage_is_looked_for_in_time_and_named(wire):
    diagnosis = TopicDiagnosis()
    writer = new_writer(wire, diagnosis=diagnosis, miss_before_s=0.3)
    writer.start()
    reports = write(writer)
    wire.acknowledge()
    assert isinstance(reports.get(timeout=120), Prepared)
    assert diagnosis.looks == 0
    writer.write_half(Message("real", b""), ID, reports.put, deadline=time.monotonic() + 0.5)
    assert "(_MSG_TIMED_OUT); too few replicas are in sync, then send again" in str(reports.get(timeout=120))
    writer.close()


class Writer:
    """A writer that is connected at once, except for the second and later ones while `go_on` is not set."""

    def __init__(self, linger, thread, go_on=None):
        self.linger, self.thread = linger, thread
        self.log = []
        self.on_their_way = 0
        self.connected = threading.Event() if go_on is None or thread == "half" else go_on
        if self.connected is not go_on:
            self.connected.set()

    def start(self):
        if "start" not in self.log:
            self.log.append("start")

    def stop(self):
        self.log.append("stop")

    def close(self):
        self.log.append("close")


@pytest.fixture
def made():
    return []


def writers_of(made, go_on=None):
    def new(linger, thread):
        made.append(Writer(linger, thread, go_on))
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    return writers


def test_few_callers_wait_for_nobody_and_need_one_connection(made):
    assert writers_of(made).for_caller(1, 0).linger == 0
    assert [(writer.thread, writer.log) for writer in made] == [("half", ["start"])]


def test_where_five_would_be_on_their_way_the_next_one_is_taken_and_the_last_one_lingers(made):
    writers = writers_of(made)
    for _ in range(6):
        writers.for_caller(1, 0).on_their_way += 4
    assert [(writer.linger, writer.on_their_way) for writer in made] == [(0, 4)] * 4 + [(0.5, 8)]
    # The first one with room is chosen: few callers use few connections.
    made[1].on_their_way = 3
    assert writers.for_caller(1, 0) is made[1]
    assert writers.for_many(waits=False).linger == 5
    assert [writer.thread for writer in made] == ["half", "half-2", "half-3", "half-4", "half-callers", "half-many"]
    assert all(writer.log == ["start"] for writer in made)


def test_from_16_transactions_on_all_callers_share_the_one_that_lingers(made):
    writers = writers_of(made)
    assert [writers.for_caller(running, 0).linger for running in (15, 16, 32)] == [0, 0.5, 0.5]
    assert [writer.thread for writer in made] == ["half", "half-callers"]


def test_beside_four_local_transactions_up_to_four_callers_share_it_too(made):
    """More would wait behind five, about which librdkafka asks without a pause."""
    writers = writers_of(made)
    numbers = ((7, 3), (8, 4), (9, 4), (11, 7), (15, 10))
    assert [writers.for_caller(*one).linger for one in numbers] == [0, 0.5, 0, 0.5, 0]
    assert [writer.thread for writer in made] == ["half", "half-callers"]


def test_threads_that_need_it_at_once_make_one(made):
    writers = writers_of(made)
    threads = [threading.Thread(target=lambda: writers.for_many(waits=True)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2


def test_who_does_not_wait_gets_another_one_until_it_is_connected(made):
    connected = threading.Event()
    writers = writers_of(made, connected)
    made[0].on_their_way = 4
    for _ in range(3):
        assert writers.for_caller(1, 0) is made[0]
        assert writers.for_many(waits=False) is made[0]
    threading.Timer(0.05, connected.set).start()
    assert writers.for_many(waits=True).linger == 5
    assert writers.for_many(waits=False).linger == 5
    assert len(made) == 3


def test_where_no_other_can_be_made_any_more_the_first_one_serves_everybody(made, caplog):
    """Its key file may be unreadable by now, or no thread can be started. No send fails because of that."""

    def new(linger, thread):
        if made:
            raise UsageError("Kafka settings refused: ssl.key.location failed")
        made.append(Writer(linger, thread))
        return made[-1]

    writers = HalfWriters(new)
    writers.start()
    made[0].on_their_way = 4
    for _ in range(3):
        assert writers.for_caller(1, 0) is made[0]
        assert writers.for_many(waits=True) is made[0]
    assert caplog.text.count("half_writer_not_made writer=half-2 ") == 1
    writers.close()


def test_close_ends_all_and_no_other_is_made_that_nobody_would_end(made):
    writers = writers_of(made)
    writers.for_many(waits=True)
    writers.close()
    assert [writer.log for writer in made] == [["start", "stop", "close"]] * 2
    made[0].on_their_way = 4
    assert writers.for_caller(1, 0) is made[0]
    assert len(made) == 2
