"""Simulated transactional producer: librdkafka's side of Kafka's transactions, protocol V1, with possible faults."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tests.simulator.actors import EFFECT, Actor
from tests.simulator.cluster import ONGOING, TOO_SMALL, WANTS_KEYS, NewRecord, Place
from tests.simulator.kafka_readers import SimulatedMessage, kafka_exception
from tests.simulator.partition_log import Stored
from tests.simulator.world import World
from txbridge.core.names import Headers

#: A real topic refuses a batch with this in a value, as a topic with a schema refuses a record that breaks it.
POISON = b"poison"
#: librdkafka's max.in.flight for an idempotent producer: batches on their way to one broker.
_IN_FLIGHT = 5
#: Time (ms) for which a worker may believe that a topic has room for a transaction marker.
_NO_ROOM_MS = 1_000
#: Time between two attempts of a request that the coordinator defers (ms).
_RETRY_MS = 10

_Report = Callable[[KafkaError | None, SimulatedMessage], None]
_Queued = tuple[NewRecord, _Report]


class SimulatedProducer:
    """One instance of a transactional producer."""

    def __init__(self, world: World, actor: Actor, config: Mapping[str, Any]) -> None:
        self._world, self._actor, self._cluster = world, actor, world.cluster
        self._name: str = config["transactional.id"]
        self._timeout: int = config["transaction.timeout.ms"]
        self._message_timeout: int = config["message.timeout.ms"]
        self._on_trouble: Callable[[KafkaError], None] = config["error_cb"]
        self._log: Callable[[int, str, str, str, str], None] = config["logger"].log
        self._connected = False
        self._epoch = -1
        self._sequences: dict[Place, int] = {}
        self._queues: dict[Place, list[_Queued]] = {}
        self._added: set[Place] = set()
        self._reports: deque[Callable[[], None]] = deque()
        # Errors that allow only an abort of the transaction, or that make the producer unusable.
        self._abortable: KafkaError | None = None
        # Whether the first of them is a broker's about records.
        self._is_refused = False
        self._fatal: KafkaError | None = None
        #: Time (ms) at which this transaction began.
        self._began = 0
        #: Bytes of this transaction that the link has carried, and whether it was too slow for the rest.
        self._carried = 0
        self._was_too_slow = False

    def list_topics(self, _topic: str, timeout: float) -> None:
        if self._connected:
            # Later calls keep librdkafka's connections open. Their result cannot change.
            return
        self._actor.io()
        if self._world.strikes("metadata not answered"):
            self._actor.wait(int(timeout * 1000))
            raise kafka_exception(KafkaError._TRANSPORT, "no broker answers")
        self._connected = True
        self._world.saw(self._actor.name, "connected")

    def init_transactions(self, timeout: float) -> None:
        deadline = self._world.now + int(timeout * 1000)
        if self._world.fence_ms:
            self._actor.wait(self._world.fence_ms)
        if self._world.strikes("InitProducerId late"):
            # The request may arrive when another producer has the fence, and take it from that one without using it.
            self._world.late_requests.append(("InitProducerId", partial(self._late_init, self._actor.name)))
            self._actor.wait(int(timeout * 1000))
            raise kafka_exception(KafkaError._TIMED_OUT, "no answer to InitProducerId")
        while True:
            self._actor.io(EFFECT)
            epoch = self._cluster.init_producer(self._name, self._timeout, self._actor.name)
            if epoch >= 0:
                break
            if self._world.now > deadline:
                raise kafka_exception(KafkaError._TIMED_OUT, "InitProducerId took too long")
            self._actor.wait(_RETRY_MS)
        self._epoch = epoch
        self._world.saw(self._actor.name, "epoch", epoch)
        self._world.trace(f"{self._actor.name}: has the fence, epoch {epoch}")

    def _late_init(self, owner: str) -> None:
        self._cluster.init_producer(self._name, self._timeout, owner)

    def begin_transaction(self) -> None:
        self._raise_fatal()
        self._carried, self._was_too_slow, self._is_refused = 0, False, False
        self._began = self._world.now

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: _Report,
        _on_delivery: None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        if len(self) and self._world.strikes("producer's queue full"):
            raise BufferError("queue full")
        if partition < 0:
            partitions = self._cluster.partitions.get(topic, 1)
            partition = self._world.hash(key) % partitions if key is not None else 0
        self._queues.setdefault((topic, partition), []).append(((key, value, headers, timestamp), callback))

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._reports)

    def poll(self, _timeout: float) -> int:
        return self._serve()

    def flush(self, _timeout: float) -> int:
        self._send_all()
        self._serve()
        return 0

    def commit_transaction(self, timeout: float) -> None:
        if any(self._queues.values()):
            self._send_all()
        self._raise_fatal()
        if self._abortable is not None:
            raise kafka_exception(self._abortable.code(), self._abortable.str(), abort=True)
        if self._added and self._world.strikes("commit must be aborted"):
            self._excuse_all()
            self._abortable = KafkaError(KafkaError.INVALID_TXN_STATE, "abort it")
            raise kafka_exception(KafkaError.INVALID_TXN_STATE, "abort it", abort=True)
        self._end(timeout, commit=True)

    def abort_transaction(self, timeout: float) -> None:
        self._raise_fatal()
        for place in self._queues:
            self._report_failed(place, KafkaError._PURGE_QUEUE)
        self._end(timeout, commit=False)
        self._abortable = None

    def _end(self, timeout: float, *, commit: bool) -> None:
        world, milliseconds = self._world, int(timeout * 1000)
        self._actor.io(EFFECT)
        if not self._added:
            return
        if world.strikes("EndTxn lost"):
            self._give_up(milliseconds)
        copy = partial(self._late_end, self._epoch, self._cluster.coordinated[self._name].transaction, commit=commit)
        if world.strikes("EndTxn late"):
            world.late_requests.append(("EndTxn", copy))
            self._give_up(milliseconds)
        if world.strikes("EndTxn resent"):
            # The connection broke. The first copy may still arrive, whatever becomes of the second one.
            world.late_requests.append(("EndTxn", copy))
            self._say("_TRANSPORT")
            self._actor.io(EFFECT)
        if world.strikes("EndTxn resent silently"):
            # Not among the faults of a run: it shows the consequences if librdkafka reported nothing.
            world.late_requests.append(("EndTxn", copy))
        is_unanswered = world.strikes("EndTxn not answered")
        deadline = world.now + milliseconds
        while True:
            code = self._cluster.end_transaction(self._name, self._epoch, commit=commit)
            world.saw(self._actor.name, "EndTxn", code)
            if code != -KafkaError.CONCURRENT_TRANSACTIONS:
                break
            if world.now > deadline:
                raise kafka_exception(KafkaError._TIMED_OUT, "EndTxn took too long")
            self._actor.wait(_RETRY_MS)
            self._actor.io(EFFECT)
        if is_unanswered:
            self._give_up(milliseconds)
        self._actor.io(EFFECT)
        if code == -KafkaError.PRODUCER_FENCED:
            self._fatal = KafkaError(KafkaError._FENCED, "fenced", True)
            self._raise_fatal()
        if code < 0:
            self._fatal = KafkaError(-code, "EndTxn refused", True)
            self._raise_fatal()
        self._say("NO_ERROR")
        self._added.clear()

    def _give_up(self, milliseconds: int) -> None:
        self._excuse_all()
        if self._world.random.random() < 0.5:
            self._trouble()
        self._actor.wait(milliseconds)
        raise kafka_exception(KafkaError._TIMED_OUT, "no answer to EndTxn")

    def _late_end(self, epoch: int, transaction: int, *, commit: bool) -> None:
        coordinated = self._cluster.coordinated[self._name]
        if coordinated.epoch != epoch:
            self._world.count("late EndTxn refused, its epoch is over")
        elif coordinated.state != ONGOING:
            self._world.count("late EndTxn without effect")
        elif coordinated.transaction == transaction:
            self._world.count("late EndTxn ends its own transaction")
        else:
            self._world.count("late EndTxn ENDS A LATER TRANSACTION")
        self._cluster.end_transaction(self._name, epoch, commit=commit)

    def _send_all(self) -> None:
        places = [place for place, queue in self._queues.items() if queue]
        if len(places) > 1 and self._world.random.random() < 0.3:
            # Partitions have leaders of their own, so there is no order between them.
            self._world.random.shuffle(places)
        in_flight = _IN_FLIGHT
        for place in places:
            if self._was_too_slow:
                self._report_failed(place, KafkaError._MSG_TIMED_OUT)
            elif self._fatal is not None or (self._abortable is not None and (not in_flight or not self._is_refused)):
                self._report_failed(place, KafkaError._PURGE_QUEUE)
            elif self._add(place):
                self._send(place)
                # Batches that are sent before the answer to a refused one get an answer of their own.
                in_flight -= self._is_refused and in_flight > 0

    def _add(self, place: Place) -> bool:
        if place in self._added:
            return True
        if self._began - self._cluster.endless.get(place[0], self._began) > _NO_ROOM_MS:
            raise AssertionError(f"writes to {place[0]}, which has had no room for a marker for more than a second")
        deadline = self._world.now + self._message_timeout
        while True:
            self._actor.io(EFFECT)
            if self._world.strikes("coordinator moved"):
                self._trouble()
                self._actor.wait(_RETRY_MS)
            code = self._cluster.add_partition(self._name, self._epoch, place)
            self._world.saw(self._actor.name, "added", place, code)
            if code != -KafkaError.CONCURRENT_TRANSACTIONS:
                break
            if self._world.now > deadline:
                self._fail(place, KafkaError._MSG_TIMED_OUT)
                return False
            self._actor.wait(_RETRY_MS)
        if code == 0:
            self._added.add(place)
            return True
        if code == -KafkaError.UNKNOWN_TOPIC_OR_PART:
            known = self._cluster.exists(place[0])
            self._fail(place, KafkaError._UNKNOWN_PARTITION if known else KafkaError._UNKNOWN_TOPIC)
        else:
            self._fatal = KafkaError(KafkaError._FENCED, "fenced", True)
            self._fail(place, KafkaError._PURGE_QUEUE)
        return False

    def _send(self, place: Place) -> None:
        world, queue = self._world, self._queues[place]
        sequence = self._sequences.get(place, 0)
        records = [record for record, _ in queue]
        self._actor.io(EFFECT)
        if not place[0].startswith(("RMQ_", "TRANS_")):
            values = [record[1] or b"" for record in records]
            if any(POISON in value for value in values):
                world.count("fault record refused")
                self._refuse(place, [POISON in value for value in values])
                return
            if sum(map(len, values)) > world.max_batch:
                world.count("fault batch too large")
                self._fail(place, KafkaError.MSG_SIZE_TOO_LARGE)
                return
        picky = self._cluster.picky.get(place[0])
        if picky == TOO_SMALL and sum(len(record[1] or b"") for record in records) > world.max_batch:
            world.count("fault check too large")
            self._fail(place, KafkaError.MSG_SIZE_TOO_LARGE)
            return
        if picky == WANTS_KEYS and any(record[0] is None for record in records):
            world.count("fault check without key")
            self._refuse(place, [record[0] is None for record in records])
            return
        if self._is_too_slow_for(place, records) or self._hides_lost_tail(place, sequence, records):
            return
        if world.strikes("records timed out"):
            if world.random.random() < 0.5:
                self._cluster.produce(place, self._name, self._epoch, sequence, records)
            self._trouble()
            self._actor.wait(self._message_timeout)
            self._fail(place, KafkaError._MSG_TIMED_OUT)
            return
        if world.strikes("Produce refused"):
            self._fail(place, KafkaError.INVALID_TXN_STATE)
            return
        if world.strikes("Produce lost"):
            self._trouble()
            self._actor.io(EFFECT)
        first = self._cluster.produce(place, self._name, self._epoch, sequence, records)
        if world.strikes("Produce not answered"):
            self._trouble()
            self._actor.io(EFFECT)
            first = self._cluster.produce(place, self._name, self._epoch, sequence, records)
        world.saw(self._actor.name, "stored", place, first)
        if first < 0:
            self._fail(place, -first)
            return
        if world.strikes("Produce answered late"):
            # The batch is stored at once, and reported when the other replicas have it as well.
            self._actor.wait(world.random.choice((50, 300, 1_500)))
        self._sequences[place] = sequence + len(records)
        for number, ((key, value, headers, timestamp), report) in enumerate(queue):
            entry = self._cluster.logs[place].entries[first + number]
            stored = Stored(first + number, "data", key, value, headers, timestamp or entry.timestamp, entry.appended)
            self._reports.append(partial(report, None, SimulatedMessage(*place, first + number, stored)))
        queue.clear()

    def _is_too_slow_for(self, place: Place, records: list[NewRecord]) -> bool:
        """Whether the link does not carry all records in time. It carries the first ones."""
        carried, count = self._carried, 0
        for key, value, headers, _ in records:
            carried += len(key or b"") + len(value or b"") + sum(len(name) + len(text or b"") for name, text in headers)
            count += carried <= self._world.link
        if carried <= self._world.link:
            self._carried = carried
            return False
        self._world.count("link too slow")
        self._world.trace(f"the link carries {count} of {len(records)} records for {place} in time")
        queue = self._queues[place]
        if count:
            sequence = self._sequences.get(place, 0)
            first = self._cluster.produce(place, self._name, self._epoch, sequence, records[:count])
            for number, (_, report) in enumerate(queue[:count]):
                # The offset is -1 when the broker refused the records: the producer does not learn the place.
                stored = SimulatedMessage(*place, first + number if first >= 0 else -1)
                self._reports.append(partial(report, None, stored))
            del queue[:count]
        else:
            # To the worker it looks as if the topic took nothing.
            self._world.refused.add(place[0])
        self._was_too_slow = True
        self._actor.wait(self._message_timeout)
        self._report_failed(place, KafkaError._MSG_TIMED_OUT)
        return True

    def _hides_lost_tail(self, place: Place, sequence: int, records: list[NewRecord]) -> bool:
        """Whether the transaction fails, so that its records or markers take offsets of lost records unseen."""
        lost = self._world.lost_tails.get(place)
        if lost is None or not lost.hidden_by or self._cluster.logs[place].high_watermark >= len(lost.whole):
            return False
        self._world.count("aborted behind a lost tail")
        if lost.hidden_by == "markers":
            self._fail(place, KafkaError.INVALID_TXN_STATE)
            return True
        # They are stored, and the answer is lost.
        self._cluster.produce(place, self._name, self._epoch, sequence, records)
        self._trouble()
        self._actor.wait(self._message_timeout)
        self._fail(place, KafkaError._MSG_TIMED_OUT)
        return True

    def _fail(self, place: Place, code: int) -> None:
        """Fail all queued records of this partition. The transaction can only be aborted."""
        self._excuse_all()
        self._is_refused |= code > 0
        self._report_failed(place, code)

    def _refuse(self, place: Place, culprits: list[bool]) -> None:
        """Refuse a batch for some of its records. librdkafka reports which, unless there is only one of them."""
        if sum(culprits) < 2:
            self._fail(place, KafkaError.INVALID_RECORD)
            return
        self._excuse_all()
        for (_, report), is_culprit in zip(self._queues[place], culprits, strict=True):
            code = KafkaError.INVALID_RECORD if is_culprit else KafkaError._INVALID_DIFFERENT_RECORD
            self._reports.append(partial(report, KafkaError(code, "not stored"), SimulatedMessage(*place, -1)))
        self._queues[place].clear()
        self._is_refused = True
        self._abortable = self._abortable or KafkaError(KafkaError.INVALID_RECORD, "not stored")

    def _excuse_all(self) -> None:
        """Count all topics of this transaction as refusing: any of them may be the cause of an error."""
        self._world.refused.update(topic for topic, _ in self._queues)

    def _report_failed(self, place: Place, code: int) -> None:
        error = KafkaError(code, "not stored")
        for _, report in self._queues[place]:
            self._reports.append(partial(report, error, SimulatedMessage(*place, -1)))
        self._queues[place].clear()
        if self._abortable is None:
            self._abortable = error

    def _trouble(self) -> None:
        self._excuse_all()
        error = KafkaError(KafkaError._TRANSPORT, "connection lost")
        self._reports.append(partial(self._on_trouble, error))

    def _say(self, returned: str) -> None:
        """Log the debug line of an answer to EndTxn.

        A connection that breaks during EndTxn raises no error: only this line shows it.
        """
        line = f"[thrd:main]: EndTxn returned {returned} in state CommittingTransaction (may_retry=true)"
        self._reports.append(partial(self._log, logging.DEBUG, "%s [%s] %s", "ENDTXN", "simulated", line))

    def _serve(self) -> int:
        count = len(self._reports)
        while self._reports:
            self._reports.popleft()()
        self._raise_fatal()
        return count

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise KafkaException(self._fatal)
