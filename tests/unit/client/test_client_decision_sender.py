"""The sender of END commands, without Kafka."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest
from confluent_kafka import KafkaError

from tests.support.client_fakes import FakeWire, refusal
from txbridge import EndTransactionError
from txbridge.client.decide import decision_sender
from txbridge.client.decide.decision_sender import DecisionSender
from txbridge.client.kafka.connection import KafkaConnection
from txbridge.core.decision_record import Decision, DecisionEntry, Source, parse_end
from txbridge.core.names import Names


def entry(offset, decision=Decision.COMMIT, **more):
    return DecisionEntry(offset, f"{offset:032X}", decision, **more)


def started(wire, interval=0.0):
    sender = DecisionSender(wire, KafkaConnection("127.0.0.1:1"), Names("ns"), "orders", "host@1", interval)
    sender.start()
    return sender


@pytest.fixture
def wire():
    return FakeWire()


@pytest.fixture
def sender(wire):
    sender = started(wire)
    yield sender
    wire.automatic = True
    wire.acknowledge()
    sender.close(10)


def submit(sender, *offsets, partition=0, source=Source.CLIENT):
    return [sender.submit_command(partition, entry(offset), source, 100).as_future() for offset in offsets]


def entries(record):
    return [line.split(b",")[0].decode() for line in record[1].split(b"\n")]


def test_the_record(wire, sender):
    future = sender.submit_command(
        3, entry(17, Decision.ROLLBACK, check_times=2, remark="50 %"), Source.CHECK, 100
    ).as_future()
    wire.wait_records(1)
    assert wire.records == [
        (
            "ns.RMQ_SYS_TRANS_END_TOPIC",
            b"17,00000000000000000000000000000011,12,2,50 %25",
            None,
            [("TXB_V", b"1"), ("PGROUP", b"orders"), ("SOURCE", b"check"), ("CLIENT_ID", b"host@1")],
            3,
        )
    ]
    assert not future.done()
    wire.acknowledge()
    assert future.result(120) is None


AN_HOUR = 3_600.0


@pytest.mark.parametrize("waits", ["future of a result", "flush", "close"])
def test_who_waits_is_not_kept_waiting_for_company(wire, waits):
    wire.automatic = True
    sender = started(wire, AN_HOUR)
    submit(sender, 1)
    wire.wait_records(1)
    ticket = sender.submit_command(0, entry(2), Source.CLIENT, 100)
    sender.submit_command(0, entry(3), Source.CLIENT, 100)
    # It does not leave as long as no caller waits for it.
    assert not wait([ticket.as_future()], 0.05).done
    if waits == "flush":
        assert sender.flush(120) == 0
    elif waits == "close":
        assert sender.close(10) == 0
    else:
        ticket.leave_soon()
    assert ticket.as_future().result(120) is None
    assert [entries(record) for record in wire.records] == [["1"], ["2", "3"]]
    sender.close(10)


def test_close_sends_all_that_waits_in_however_many_records(wire):
    sender = started(wire, AN_HOUR)
    submit(sender, 1)
    wire.wait_records(1)
    futures = submit(sender, *range(2, 1_007))
    wire.automatic = True
    wire.acknowledge()
    assert sender.close(10) == 0
    assert [future.exception(0) for future in futures] == [None] * 1_005
    assert [len(entries(record)) for record in wire.records] == [1, 1_000, 5]


def test_order_of_every_thread_is_kept_and_nothing_doubled(wire, sender):
    wire.automatic = True

    def work(thread):
        for number in range(500):
            sender.submit_command(0, entry(thread * 1_000 + number), Source.CLIENT, 100)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sender.flush(120) == 0
    sent = [parsed.half_offset for r in wire.records for parsed in parse_end(0, r[1], r[3]).entries]
    assert len(sent) == 4_000
    for thread in range(8):
        assert [offset for offset in sent if offset // 1_000 == thread] == [thread * 1_000 + n for n in range(500)]


def test_failure_reaches_every_command_and_the_lane_goes_on(wire, sender, caplog):
    futures = submit(sender, 1)
    wire.wait_records(1)
    futures += submit(sender, 2, 3)
    wire.acknowledge(KafkaError(KafkaError._MSG_TIMED_OUT))
    wire.wait_records(2)
    wire.acknowledge(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    errors = [future.exception(10) for future in futures]
    assert [error.cause.name() for error in errors] == ["_MSG_TIMED_OUT", *["TOPIC_AUTHORIZATION_FAILED"] * 2]
    assert all("the worker will ask check_local_transaction" in str(error) for error in errors)
    assert errors[1] is not errors[2]
    [again] = submit(sender, 4)
    wire.wait_records(3)
    wire.acknowledge()
    assert again.result(120) is None
    assert sender.flush(0) == 0
    failed = [record.fields for record in caplog.records if record.event == "end_not_acknowledged"]
    assert [(fields["transactions"], fields["first"]) for fields in failed] == [(1, "00000000"), (2, "00000000")]


def test_record_that_can_not_be_sent(wire, sender):
    wire.refusals.append(refusal(KafkaError._UNKNOWN_PARTITION))
    [future] = submit(sender, 1)
    with pytest.raises(EndTransactionError, match="restart this process"):
        future.result(120)


def test_record_that_can_not_even_be_made(wire, sender, caplog):
    wire.refusals.append(TypeError("a bug"))
    [future] = submit(sender, 1)
    with pytest.raises(EndTransactionError, match="cannot be sent: a bug"):
        future.result(120)
    assert "end_can_not_be_sent" in caplog.text
    [again] = submit(sender, 2)
    wire.wait_records(1)
    wire.acknowledge()
    assert again.result(120) is None


def test_full_queue_of_librdkafka_is_waited_for(wire, sender):
    wire.automatic = True
    wire.refusals.extend(BufferError("full") for _ in range(3))
    [future] = submit(sender, 1)
    assert future.result(120) is None
    assert len(wire.records) == 1


def test_there_is_room_again_once_decisions_are_acknowledged(wire, sender, monkeypatch):
    monkeypatch.setattr(decision_sender, "MAX_UNSETTLED", 2)
    assert sender.has_room
    futures = submit(sender, 1, 2)
    assert not sender.has_room
    wire.automatic = True
    wire.acknowledge()
    wait(futures, 10)
    assert sender.has_room


def test_close_gives_up_in_time_and_says_what_is_lost(wire):
    sender = started(wire)
    futures = submit(sender, 1)
    wire.wait_records(1)
    futures += submit(sender, 2, 3)
    assert sender.close(0.05) == 3
    assert [type(future.exception(10)) for future in futures] == [EndTransactionError] * 3
    [late] = submit(sender, 4)
    with pytest.raises(EndTransactionError, match="closed before the END was given"):
        late.result(0)


def test_close_while_librdkafkas_queue_is_full(wire):
    sender = started(wire)
    produce = wire.produce

    def full(*arguments):
        raise BufferError("full")

    wire.produce = full
    [future] = submit(sender, 1)
    assert sender.close(0.05) == 1
    with pytest.raises(EndTransactionError, match="closed before the END was sent"):
        future.result(0)
    wire.produce = produce


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_callback_of_the_users_that_raises_does_not_end_the_thread(wire, sender, caplog, error):
    serve = wire.serve_reports

    def broken(timeout):
        wire.serve_reports = serve
        raise error("the user's stats_cb")

    wire.serve_reports = broken
    [future] = submit(sender, 1)
    wire.wait_records(1)
    wire.acknowledge()
    assert future.result(120) is None
    assert "kafka_callback_raised" in caplog.text


def test_a_decision_behind_a_record_that_was_given_up_is_sent_also_by_close(wire):
    sender = started(wire)
    [first] = submit(sender, 1)
    wire.wait_records(1)
    [second] = submit(sender, 2)
    closed = []
    closer = threading.Thread(target=lambda: closed.append(sender.close()))
    closer.start()
    wire.acknowledge(KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(EndTransactionError):
        first.result(120)
    # Each record has the whole time of a record, so close() without a time-out waits for the second one, too.
    wire.wait_records(2)
    closer.join(0.05)
    assert closer.is_alive()
    wire.acknowledge()
    closer.join(120)
    assert second.result(0) is None
    assert closed == [0]
