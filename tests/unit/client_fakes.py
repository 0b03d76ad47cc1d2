"""Stand-ins for Kafka's side of the client, driven by the test."""

from __future__ import annotations

import threading
from collections import deque

from confluent_kafka import KafkaError, KafkaException


class FakeRecord:
    """What a delivery report or a consumer shows of a record."""

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
    """A Wire whose acknowledgements the test gives; with `automatic` every record is acknowledged when served."""

    def __init__(self, *, automatic=False):
        self.automatic = automatic
        self.refusals = deque()
        self.records = []
        self.closed = False
        self._reports = deque()
        self._condition = threading.Condition()
        self._offset = 0

    def produce(self, topic, value, key, headers, on_delivery, partition=-1):
        with self._condition:
            if self.refusals:
                raise self.refusals.popleft()
            self.records.append((topic, value, key, list(headers), partition))
            record = FakeRecord(max(partition, 0), self._offset)
            self._offset += 1
            self._reports.append([None, on_delivery, record, self.automatic])
            self._condition.notify_all()

    def serve(self, timeout):
        with self._condition:
            self._condition.wait_for(lambda: any(ready for *_, ready in self._reports), timeout)
            due = [report for report in self._reports if report[3]]
            self._reports = deque(report for report in self._reports if not report[3])
        for error, on_delivery, record, _ in due:
            on_delivery(error, record)

    def acknowledge(self, error=None):
        """Let everything that was produced so far be reported, as failed with `error` if given."""
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
