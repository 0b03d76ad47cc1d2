"""The simulated Kafka: topics, idempotent producers, the transaction coordinator, members of consumer groups.

Transactions follow Kafka's protocol V1, which librdkafka speaks (KIP-98 with the verification of KIP-890 part 1). One
epoch serves many transactions, so a late copy of an EndTxn request can end a later one (KAFKA-17754).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from tests.simulator.partition_log import PartitionLog, ProducerState, Stored
from txbridge.core.names import Headers

Place = tuple[str, int]
#: Key, value, headers and timestamp (ms; 0 is the broker's) of a record to append.
NewRecord = tuple[bytes | None, bytes | None, Headers, int]
#: Places (topic and partition) and what was stored there.
Records = list[tuple[Place, Stored]]

#: Reasons of a topic to refuse records: its max.message.bytes is below HALF's, or it is compacted and a record has no
#: key.
TOO_SMALL, WANTS_KEYS = "too small", "wants keys"

OK = 0
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)


@dataclass(slots=True)
class Coordinated:
    """The coordinator's state of one transactional.id."""

    name: str
    producer_id: int
    epoch: int = -1
    state: str = EMPTY
    #: Places in the order in which they were added. The value is True while the marker still has to be written.
    places: dict[Place, bool] = field(default_factory=dict)
    timeout: int = 0
    started: int = 0
    #: Number of the transaction, unique in the world, and the name of its owner.
    transaction: int = 0
    owner: str = ""


@dataclass(slots=True)
class Finished:
    """A decided Kafka transaction with its records."""

    number: int
    owner: str
    committed: bool
    #: Its beginning by the world's clock (ms).
    began: int
    records: Records


class Cluster:
    """All brokers as one. Every method is one request, atomic.

    `clock` is the world's clock, `brokers_clock` the one that append times are from.
    """

    def __init__(
        self, clock: Callable[[], int], trace: Callable[[str], None], brokers_clock: Callable[[], int]
    ) -> None:
        self._clock, self._brokers_clock = clock, brokers_clock
        self._trace = trace
        self.logs: dict[Place, PartitionLog] = {}
        self.partitions: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        #: Topics that do not exist at the moment. Their logs come back with them.
        self.hidden: set[str] = set()
        self.coordinated: dict[str, Coordinated] = {}
        #: Topics that permanently refuse a batch because of one of its records, and the reason (`TOO_SMALL`,
        #: `WANTS_KEYS`).
        self.picky: dict[str, str] = {}
        #: Topics without room for a transaction marker, and the time (ms) since when.
        self.endless: dict[str, int] = {}
        #: Whether workers may see the configuration of topics.
        self.shows_configs = True
        #: Number of members by consumer group, as the coordinator sees it.
        self.members: dict[str, int] = {}
        self.on_finished: Callable[[Finished], None] = lambda _: None
        self._open_records: dict[int, Records] = {}
        self._transactions = 0
        self._producer_ids = 1_000

    def create_topic(self, topic: str, partitions: int) -> None:
        self.partitions[topic] = partitions
        self.topic_ids[topic] = f"id-{topic}"
        for partition in range(partitions):
            self.logs[topic, partition] = PartitionLog(topic, partition)

    def exists(self, topic: str) -> bool:
        return topic in self.partitions and topic not in self.hidden

    def append_plain(self, place: Place, record: NewRecord) -> int:
        """Append a record of a client outside transactions and return its offset."""
        return self._append(place, record, -1, -1, 0)[0]

    def produce(self, place: Place, name: str, epoch: int, sequence: int, records: Sequence[NewRecord]) -> int:
        """Append a transactional batch. Returns the offset of its first record, or minus the code of Kafka's error."""
        if not self.exists(place[0]) or place not in self.logs:
            return -KafkaError.UNKNOWN_TOPIC_OR_PART
        coordinated, log = self.coordinated[name], self.logs[place]
        known = log.producers.get(coordinated.producer_id)
        if known is not None and epoch < known.epoch:
            return -KafkaError.INVALID_PRODUCER_EPOCH
        if known is None or known.epoch < epoch:
            known = ProducerState(epoch)
        for first, offset in known.batches:
            if first == sequence:
                return offset
        if sequence != known.last_sequence + 1:
            return -KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        # The leader asks the coordinator whether this transaction is open here (KIP-890).
        if coordinated.epoch != epoch or coordinated.state != ONGOING or place not in coordinated.places:
            return -KafkaError.INVALID_TXN_STATE
        log.producers[coordinated.producer_id] = known
        first = log.high_watermark
        for record in records:
            self._append(place, record, coordinated.producer_id, epoch, coordinated.transaction)
        known.last_sequence += len(records)
        known.batches = [*known.batches[-4:], (sequence, first)]
        return first

    def _append(self, place: Place, record: NewRecord, producer_id: int, epoch: int, number: int) -> tuple[int, Stored]:
        log, now = self.logs[place], self._clock()
        key, value, headers, timestamp = record
        stored = Stored(
            *(log.high_watermark, "data", key, value, headers, timestamp or self._brokers_clock(), now),
            *(producer_id, epoch, number),
        )
        log.append(stored)
        if number:
            self._open_records.setdefault(number, []).append((place, stored))
        return stored.offset, stored

    def init_producer(self, name: str, timeout: int, owner: str) -> int:
        """Handle InitProducerId: the new epoch, or -CONCURRENT_TRANSACTIONS while the old transaction is ending.

        An open transaction of the predecessor is aborted under a higher epoch, which fences the predecessor at once.
        """
        coordinated = self.coordinated.get(name)
        if coordinated is None:
            self._producer_ids += 1
            coordinated = self.coordinated[name] = Coordinated(name, self._producer_ids)
        if coordinated.state == ONGOING:
            coordinated.epoch += 1
            self._prepare(coordinated, commit=False)
        if coordinated.state in {PREPARE_COMMIT, PREPARE_ABORT}:
            return -KafkaError.CONCURRENT_TRANSACTIONS
        coordinated.epoch += 1
        coordinated.state, coordinated.timeout, coordinated.owner = EMPTY, timeout, owner
        return coordinated.epoch

    def add_partition(self, name: str, epoch: int, place: Place) -> int:
        """Handle AddPartitionsToTxn. Returns OK or minus the code of Kafka's error."""
        coordinated = self.coordinated[name]
        if epoch != coordinated.epoch:
            return -KafkaError.PRODUCER_FENCED
        if coordinated.state in {PREPARE_COMMIT, PREPARE_ABORT}:
            return -KafkaError.CONCURRENT_TRANSACTIONS
        if not self.exists(place[0]) or place not in self.logs:
            return -KafkaError.UNKNOWN_TOPIC_OR_PART
        if coordinated.state != ONGOING:
            self._transactions += 1
            coordinated.state, coordinated.places = ONGOING, {}
            coordinated.transaction, coordinated.started = self._transactions, self._clock()
        coordinated.places[place] = True
        return OK

    def end_transaction(self, name: str, epoch: int, *, commit: bool) -> int:
        """Handle EndTxn.

        Returns OK or minus the code of Kafka's error, once the decision is logged and before the markers.
        """
        coordinated = self.coordinated[name]
        if epoch != coordinated.epoch:
            return -KafkaError.PRODUCER_FENCED
        if coordinated.state == ONGOING:
            self._prepare(coordinated, commit=commit)
            return OK
        if coordinated.state in {PREPARE_COMMIT, PREPARE_ABORT}:
            same = (coordinated.state == PREPARE_COMMIT) is commit
            return -KafkaError.CONCURRENT_TRANSACTIONS if same else -KafkaError.INVALID_TXN_STATE
        wanted = COMPLETE_COMMIT if commit else COMPLETE_ABORT
        return OK if coordinated.state == wanted else -KafkaError.INVALID_TXN_STATE

    def _prepare(self, coordinated: Coordinated, *, commit: bool) -> None:
        coordinated.state = PREPARE_COMMIT if commit else PREPARE_ABORT
        records = self._open_records.pop(coordinated.transaction, [])
        self._trace(f"kafka: transaction {coordinated.transaction} of {coordinated.owner} {coordinated.state}")
        # The decision is final here, whenever the markers come. Only the logs decide what a reader may see.
        self.on_finished(Finished(coordinated.transaction, coordinated.owner, commit, coordinated.started, records))

    def expire_transactions(self) -> None:
        """Abort transactions that are open for longer than their transaction.timeout.ms, under a higher epoch."""
        for coordinated in self.coordinated.values():
            if coordinated.state == ONGOING and coordinated.started + coordinated.timeout <= self._clock():
                self._trace(f"kafka: transaction {coordinated.transaction} timed out")
                coordinated.epoch += 1
                self._prepare(coordinated, commit=False)

    def markers_due(self) -> list[tuple[Coordinated, Place]]:
        """Markers that the coordinator still has to write, in any order."""
        return [
            (coordinated, place)
            for coordinated in self.coordinated.values()
            if coordinated.state in {PREPARE_COMMIT, PREPARE_ABORT}
            for place, due in coordinated.places.items()
            if due
        ]

    def write_marker(self, coordinated: Coordinated, place: Place) -> None:
        """Write one marker; the last one completes the transaction."""
        commit = coordinated.state == PREPARE_COMMIT
        self.logs[place].mark(coordinated.producer_id, coordinated.epoch, self._clock(), commit=commit)
        coordinated.places[place] = False
        if not any(coordinated.places.values()):
            coordinated.state = COMPLETE_COMMIT if commit else COMPLETE_ABORT
