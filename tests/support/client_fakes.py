"""Stand-ins for the Kafka side of the client, driven by the test."""

from __future__ import annotations

import threading
from collections import deque

from confluent_kafka import KafkaError, KafkaException

from txbridge import PrepareError, UsageError
from txbridge.client import runtime, start
from txbridge.client.checks import consumer
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.flow.registry import TransactionIds
from txbridge.client.flow.send_path import SendPath
from txbridge.client.message import MessageLimits
from txbridge.client.prepare.half_writer import Prepared
from txbridge.core.decision_record import DecisionEntry
from txbridge.topics.verify import Layout


class FakeRecord:
    """The part of a delivery report or of a consumed record that the client reads."""

    def __init__(self, partition=0, offset=0, timestamp=1_000, key=None, value=None, headers=()):
        self._partition, self._offset, self._timestamp = partition, offset, timestamp
        self._key, self._value, self._headers = key, value, list(headers)

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def timestamp(self):
        return (2, self._timestamp)

    def latency(self):
        return 1.0

    def key(self):
        return self._key

    def value(self):
        return self._value

    def headers(self):
        return self._headers


class FakeWire:
    """A Wire whose acknowledgements come from the test. With `automatic`, every record is acknowledged when served."""

    def __init__(self, *, automatic=False):
        self.automatic = automatic
        self.refusals = deque()
        self.records = []
        self.closed = self.used = False
        self._reports = deque()
        self._condition = threading.Condition()
        self._offset = 0

    def connect(self, topic):
        self.used = True

    def produce(self, topic, value, key, headers, on_delivery, partition=-1):
        with self._condition:
            if self.refusals:
                raise self.refusals.popleft()
            self.records.append((topic, value, key, list(headers), partition))
            record = FakeRecord(max(partition, 0), self._offset)
            self._offset += 1
            self._reports.append([None, on_delivery, record, self.automatic])
            self._condition.notify_all()

    def serve_reports(self, timeout):
        with self._condition:
            self._condition.wait_for(lambda: any(ready for *_, ready in self._reports), timeout)
            due = [report for report in self._reports if report[3]]
            self._reports = deque(report for report in self._reports if not report[3])
        for error, on_delivery, record, _ in due:
            on_delivery(error, record)

    def acknowledge(self, error=None):
        """Report everything that was produced so far: as failed with `error` if given, else as stored."""
        with self._condition:
            for report in self._reports:
                report[0], report[3] = error, True
            self._condition.notify_all()

    def wait_records(self, count, timeout=10):
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.records) >= count, timeout), self.records

    def close(self):
        self.closed = True
        for _, on_delivery, record, _ in self._reports:
            on_delivery(KafkaError(KafkaError._PURGE_QUEUE), record)
        self._reports.clear()


def refusal(code):
    return KafkaException(KafkaError(code))


class FakeHalfWriter:
    """A writer whose room never lasts."""

    def __init__(self, room_waits):
        self._room_waits = room_waits

    def wait_for_room(self, timeout):
        self._room_waits.append(timeout)
        threading.Event().wait(min(timeout, 0.01))


class FakeRuntime(SendPath):
    """A started client without Kafka. The test says when half messages are acknowledged."""

    is_of_this_process = True

    def __init__(self, *, room=True):
        self.sends = self
        self._ids = TransactionIds()
        self._limits = MessageLimits(LAYOUT.max_message_size, 604_800)
        self._prepare_timeout = 0.1
        self.room = room
        self.refusals = deque()
        self.written, self.running, self.given_up, self.ends = [], set(), [], []
        self.room_waits = []
        self.closed = False
        self.after_reports = None
        self._half_writer = FakeHalfWriter(self.room_waits)
        self._condition = threading.Condition()

    def is_called_by_it(self):
        return False

    def begin_attempt(self, transaction_id, running=None):
        if self.closed:
            raise UsageError("this producer is closed; create a new one")
        self.running.add(transaction_id)

    def finish_attempt(self, transaction_id):
        with self._condition:
            self.running.discard(transaction_id)
            self._condition.notify_all()

    def give_up(self, transaction_id):
        self.given_up.append(transaction_id)

    def _has_room_for_ends(self, timeout):
        if timeout and not self.room:
            self.room_waits.append(timeout)
            threading.Event().wait(timeout)
        return self.room

    def half_writer(self, *, gathers=False, in_order=False):
        return self._half_writer

    def _write_half(self, writer, message, transaction_id, on_done, deadline, after_reports):
        assert writer is self._half_writer
        self.after_reports = after_reports
        if self.refusals:
            raise self.refusals.popleft()
        with self._condition:
            self.written.append((message, transaction_id, on_done))
            self._condition.notify_all()

    def wait_written(self, count, timeout=10):
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.written) >= count, timeout), self.written

    def acknowledge(self, error=None):
        """Report everything written so far, oldest first: as stored, or with `error`."""
        with self._condition:
            written, self.written = self.written, []
        for number, (_, transaction_id, on_done) in enumerate(written):
            on_done(error or Prepared(transaction_id, 0, number, 1_000, 1))
        if self.after_reports is not None:
            self.after_reports()

    def send_decision(self, prepared, outcome):
        entry = DecisionEntry(prepared.offset, prepared.transaction_id, outcome.decision)
        end = Ticket(entry, prepared.size)
        self.ends.append((prepared.transaction_id, outcome, end))
        return end

    def flush(self, timeout):
        return sum(not end.as_future().done() for *_, end in self.ends)

    def close(self, timeout, finish_calls):
        with self._condition:
            self.closed = True
            self._condition.wait_for(lambda: not self.running, timeout)
        finish_calls(timeout)
        self.acknowledge(PrepareError("the producer was closed meanwhile"))


class FakeConsumer:
    """A consumer that receives nothing."""

    def __init__(self, settings):
        self.closed = False
        self.used = False
        self._waiting = threading.Event()

    def subscribe(self, topics, **callbacks):
        self.used = True
        callbacks["on_assign"](self, [])

    def poll(self, timeout):
        self._waiting.wait(min(timeout, 0.005))

    def list_topics(self, topic, timeout):
        raise refusal(KafkaError._TRANSPORT)

    def close(self):
        self.closed = True


class FakeAdmin:
    """An admin client that does nothing."""

    def __init__(self, settings):
        pass

    def poll(self, timeout):
        pass


LAYOUT = Layout(2, {}, 1_065_536, 1_065_536, 604_800_000, 1, 1, ())


class WorkingKafka:
    """A Kafka of fakes that works, with all connections that producers have made to it."""

    def __init__(self):
        self.wires, self.consumers = [], []

    def forget(self):
        self.wires.clear()
        self.consumers.clear()

    def wire(self, config, connection):
        self.wires.append(FakeWire(automatic=True))
        self.wires[-1].is_half = "message.max.bytes" in config
        return self.wires[-1]

    def consumer(self, settings):
        self.consumers.append(FakeConsumer(settings))
        return self.consumers[-1]

    def half_wires(self):
        return [wire for wire in self.wires if wire.is_half]

    def left_open(self):
        """Connections that were used and never closed. A connection that was only made ends with its object."""
        return [wire for wire in self.wires if wire.used and not wire.closed] + [
            consumer for consumer in self.consumers if consumer.used and not consumer.closed
        ]


def working_kafka(monkeypatch):
    """Give producers a Kafka that acknowledges everything at once."""
    kafka = WorkingKafka()
    monkeypatch.setattr(start, "AdminClient", FakeAdmin)
    monkeypatch.setattr(start, "check_layout", lambda *_, **__: LAYOUT)
    monkeypatch.setattr(start, "ensure_check_topic", lambda *_, **__: None)
    monkeypatch.setattr(runtime, "Wire", kafka.wire)
    monkeypatch.setattr(runtime, "find_missing", lambda *_: [])
    monkeypatch.setattr(consumer, "Consumer", kafka.consumer)
    return kafka
