"""Stand-ins for the Kafka side of the client, driven by the test."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from confluent_kafka import KafkaError, KafkaException

from txbridge import PrepareError, UsageError
from txbridge.client import runtime
from txbridge.client.checks import consumer
from txbridge.client.decide.decision_batcher import Ticket
from txbridge.client.flow.send_path import SendPath
from txbridge.client.kafka.topic_watch import TopicWatch
from txbridge.client.message import MessageLimits
from txbridge.client.options import ClientOptions
from txbridge.client.prepare.prepared import Prepared
from txbridge.core.names import Names
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
    """A producer whose acknowledgements come from the test. With `automatic`, each is acknowledged when served."""

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


class FakeRuntime:
    """A started client without Kafka, on the real SendPath. The test says when half messages are acknowledged.

    It is its own writers of half messages, of which there is one, its own sender of decisions and registry of attempts.
    """

    def __init__(self, *, room=True):
        #: Whether there is room for ENDs. `refusals` are raised for the next half messages.
        self.room, self.refusals = room, deque()
        self.written, self.running, self.given_up, self.ends = [], set(), [], []
        self.looks_for_room = 0
        self.closed = False
        self.after_reports = None
        self._condition = threading.Condition()
        limits = MessageLimits(LAYOUT.max_message_size, 604_800)
        options = ClientOptions("orders", {"bootstrap.servers": "127.0.0.1:1"}, "", 1.0, 1)
        self.sends = SendPath(options, limits, 0.1, self, self, TopicWatch(Names(), LAYOUT.partitions), None)
        self.sends.attempts = self

    # As Runtime.

    def is_called_by_it(self):
        return False

    def flush(self, timeout):
        return sum(not end.as_future().done() for end in self.ends)

    def close(self, timeout, finish_calls):
        with self._condition:
            self.closed = True
            self._condition.wait_for(lambda: not self.running, timeout)
        finish_calls(timeout)
        self.acknowledge(PrepareError("the producer was closed meanwhile"))

    # As Attempts.

    def begin_attempt(self, transaction_id, running=None):
        if self.closed:
            raise UsageError("this client is closed; create a new one")
        self.running.add(transaction_id)

    local = 0

    def note_stored(self, transaction_id):
        assert transaction_id in self.running

    def finish_attempt(self, transaction_id):
        with self._condition:
            self.running.discard(transaction_id)
            self._condition.notify_all()

    def give_up(self, transaction_id):
        self.given_up.append(transaction_id)

    # As HalfWriters, and as each HalfWriter.

    def for_caller(self, running, local):
        return self

    def for_many(self, *, waits):
        return self

    def write_half(self, message, transaction_id, on_done, deadline, barrier_id):
        if self.refusals:
            raise self.refusals.popleft()
        with self._condition:
            self.written.append((message, transaction_id, on_done))
            self._condition.notify_all()

    # As DecisionSender.

    @property
    def has_room(self):
        self.looks_for_room += 1
        return self.room

    def submit_command(self, partition, entry, source, size):
        self.ends.append(Ticket(entry, size))
        return self.ends[-1]

    # The test calls these.

    def decisions(self):
        return [end.entry.decision.name for end in self.ends]

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


async def until(what):
    """Wait in a coroutine until `what` is true. Threads set it, or code that knows no Event of the test."""
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


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
    monkeypatch.setattr(runtime, "AdminClient", FakeAdmin)
    monkeypatch.setattr(runtime, "check_layout", lambda *_, **__: LAYOUT)
    monkeypatch.setattr(runtime, "ensure_check_topic", lambda *_, **__: None)
    monkeypatch.setattr(runtime, "LastingProducer", kafka.wire)
    monkeypatch.setattr(runtime, "find_missing", lambda *_: [])
    monkeypatch.setattr(consumer, "Consumer", kafka.consumer)
    return kafka
