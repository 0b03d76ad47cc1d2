"""Simulated producers that prepare, decide in all ways open to a client, answer checks, die and come back.

They follow only docs/protocol.md: records are built here by hand, not by the library's own client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.simulator.cluster import WANTS_KEYS, NewRecord, Place
from tests.simulator.kafka_writer import POISON
from tests.simulator.load import Load
from tests.simulator.records import end_headers, half_headers
from tests.simulator.world import World
from tests.support import message_frames as frames
from txbridge.core.names import Headers, Names

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
#: Real topics: two that always exist, one that comes and goes, one that never exists.
REAL_TOPICS = {"orders": 1, "stock": 2}
FLAKY_TOPIC, MISSING_TOPIC = "flaky", "missing"
#: Time from a message's preparation to its time of delivery (ms). The decision may come later than that.
_DELAYS = (-1_000, 2_000, 20_000, 90_000, 90_000)
#: The worker's option, and a longer delay (ms).
MAX_DELAY, _TOO_LONG = 100_000, 10_000_000
#: Time for which a member counts after its death (ms).
SESSION_TIMEOUT = 1_000
#: Time for which a half message is sent again (ms): the longest message.timeout.ms that a client may have.
_SENT_FOR = 30_000


@dataclass(slots=True, eq=False)
class LocalTransaction:
    """An application's knowledge of one of its transactions."""

    transaction_id: str
    partition: int
    #: Result of the local transaction, None while it runs. UNKNOWN: the application will never know it.
    outcome: int | None = None
    #: Half offset, once the acknowledgement has come.
    offset: int | None = None
    sent: list[int] = field(default_factory=list)


class Application:
    """One process of a service."""

    def __init__(self, world: World, names: Names, name: str, group: str, partitions: int, load: Load) -> None:
        self.name, self.group = name, group
        self.is_alive = True
        self.transactions: list[LocalTransaction] = []
        #: Sent records that Kafka does not have yet, in order, as in an idempotent producer.
        self.outgoing: deque[tuple[Place, NewRecord, Callable[[int], None]]] = deque()
        self.dies_for_the_group_at: int | None = None
        self._world, self._names, self._partitions = world, names, partitions
        self._side = world.side(name)
        self._asks = world.side(f"what {name} asks")
        self._several = world.side(f"several of {name}")
        self._delays = world.side(f"delays of {name}")
        self._steps = world.side(f"steps of {name}")
        self._strangers = world.side(f"strangers of {name}")
        self._load = load
        self._check_position = 0
        #: Number of the records that asked for a reply.
        self._asked = 0
        self._prepared = 0
        #: First time at which a half message was sent to Kafka, by transaction id (ms).
        self._sent: dict[bytes | None, int] = {}

    def prepare(self, topic: str) -> None:
        """Send a half message."""
        chance = self._world.random
        transaction = self._begin(chance)
        headers = [("colour", b"red"), *half_headers(topic, self.group, transaction.transaction_id)]
        has_options = not self._load.is_plain
        if chance.random() < 0.2 and has_options:
            headers.append(("CHECK_IMMUNITY_TIME_IN_SECONDS", chance.choice([b"0", b"2", b"-1", b"3"])))
        if topic in REAL_TOPICS and chance.random() < 0.1 and has_options:
            headers.append(("REAL_QID", b"0" if chance.random() < 0.7 else b"7"))
        if self._load.delayed and self._delays.random() < self._load.delayed:
            delay = _TOO_LONG if self._delays.random() < 0.05 else self._delays.choice(_DELAYS)
            headers.append(("TXB_DELIVER_AT", b"%d" % max(0, self._world.now + delay)))
        value = b"%d" % self._prepared
        if chance.random() < 0.06:
            value += POISON
        elif chance.random() < 0.1:
            # Too large for every real topic, or only together with others.
            value += b"x" * chance.choice((100, 200))
        several = self._messages(topic) if self._several.random() < (0.02 if self._load.is_plain else 0.2) else []
        if self._load.is_heavy:
            headers.insert(0, ("padding", self._load.padding()))
        key: bytes | None = b"key%d" % self._prepared
        picky = self._world.cluster.picky.get(self._names.check(self.group))
        if picky is not None and self._side.random() < 0.2:
            # A message that can be delivered and not checked, or neither.
            key, value = (None, value) if picky == WANTS_KEYS else (key, value + b"x" * 200)
        if several:
            several[0].key = key
            headers = [one for one in headers if one[0] != "REAL_QID"]
            headers.append(("TXB_MESSAGES", b"%d" % len(several)))
            if self._load.delayed and self._steps.random() < 0.6:
                headers = [one for one in headers if one[0] != "TXB_DELIVER_AT"]
                self._name_times(several)
            value = frames.write(several)
            if self._several.random() < 0.05:
                # Cut off: this is no half message, and nothing of it may ever be delivered.
                value = value[: self._several.randrange(len(value))]
        self._hand_over(transaction, (key, value, headers, 0), topic)

    def _begin(self, chance: Random) -> LocalTransaction:
        """A new transaction, in some half partition."""
        self._prepared += 1
        name = f"{self._world.hash(self.name.encode()):08X}{self._world.seed & 0xFFFFFFFF:08X}{self._prepared:016X}"
        transaction = LocalTransaction(name, chance.randrange(self._partitions))
        self.transactions.append(transaction)
        return transaction

    def _hand_over(self, transaction: LocalTransaction, record: NewRecord, topic: str) -> None:
        """Have its half message sent."""

        def acknowledged(offset: int) -> None:
            transaction.offset = offset

        self.outgoing.append(((self._names.half, transaction.partition), record, acknowledged))
        self._world.trace(f"{self.name}: prepare {transaction.transaction_id[-4:]} for {topic}")

    def _messages(self, topic: str) -> list[frames.Framed]:
        """Several messages for one transaction: the first for this topic, the others for any."""
        chance, several = self._several, []
        for number in range(chance.randrange(2, 5)):
            value = b"%d.%d" % (self._prepared, number)
            if chance.random() < 0.03:
                value += POISON
            elif chance.random() < 0.05:
                value += b"x" * chance.choice((100, 200))
            to = topic if number == 0 else chance.choice(("orders", "stock", "orders", "stock", "stock", FLAKY_TOPIC))
            key = None if chance.random() < 0.3 else b"key%d" % chance.randrange(3)
            one = frames.Framed(to, key, value, [("colour", b"blue"), ("number", b"%d" % number)])
            if to in REAL_TOPICS and chance.random() < 0.1:
                one.partition = 0 if chance.random() < 0.8 else 7
            if chance.random() < 0.2:
                one.timestamp = 1_000 + number
            several.append(one)
        return several

    def _name_times(self, several: list[frames.Framed]) -> None:
        """Give messages different times, some of them the same one."""
        chance, now = self._steps, self._world.now
        for one in several:
            one.deliver_at = chance.choice((-1, *[max(1, now + delay) for delay in _DELAYS]))
        if len({one.deliver_at for one in several}) == 1:
            several[0].deliver_at, several[1].deliver_at = -1, now + _DELAYS[-1]
        if chance.random() < 0.03:
            several[-1].deliver_at = now + _TOO_LONG

    def decide(self) -> None:
        """End local transactions, and usually send their decisions."""
        chance = self._world.random
        running = [one for one in self.transactions if one.outcome is None and one.offset is not None]
        if not running:
            return
        if (self._load.is_heavy or self._load.is_plain) and self._load.random.random() < 0.5:
            self._decide_all(running)
            return
        batch = [one for one in running[:4] if chance.random() < 0.6] or running[:1]
        for one in batch:
            one.outcome = chance.choice((COMMIT, COMMIT, COMMIT, ROLLBACK, ROLLBACK, UNKNOWN))
        if chance.random() < 0.8:
            self._send_end([one for one in batch if one.partition == batch[0].partition], "client")

    def _decide_all(self, running: list[LocalTransaction]) -> None:
        """Send a backlog of decisions, in one record or in many."""
        batch = [one for one in running if one.partition == running[0].partition]
        for one in batch:
            one.outcome = self._load.random.choice((COMMIT, COMMIT, COMMIT, COMMIT, ROLLBACK))
        together = self._load.random.choice((1, 3, len(batch)))
        for first in range(0, len(batch), together):
            self._send_end(batch[first : first + together], "client")

    def decide_again(self) -> None:
        """Send the same or another decision for a decided transaction."""
        chance = self._world.random
        decided = [one for one in self.transactions if one.outcome is not None and one.offset is not None]
        if not decided:
            return
        one = chance.choice(decided)
        decision = chance.choice((COMMIT, ROLLBACK, UNKNOWN, one.outcome or COMMIT))
        self._world.count("client decided again")
        self._send_entries(one.partition, [f"{one.offset},{one.transaction_id},{decision}"], "client")

    def resume(self) -> None:
        """Resume a message as an operator, discarded or not."""
        stored = [one for one in self.transactions if one.offset is not None]
        if stored:
            one = self._world.random.choice(stored)
            self._send_entries(one.partition, [f"{one.offset},{one.transaction_id},0"], "resume")

    def abandon(self) -> None:
        """Abandon a message as an operator, held or not."""
        stored = [one for one in self.transactions if one.offset is not None]
        if stored:
            committed = [one for one in stored if one.outcome == COMMIT]
            one = self._side.choice(committed or stored)
            if self._asks.random() < 0.4:
                self.cancel(self._asks.choice(stored[-3:]) if self._asks.random() < 0.5 else one)
                return
            count = 2 if self._side.random() < 0.2 else 1
            self._send_entries(one.partition, [_given_up(one)] * count, "abandon")

    def cancel(self, one: LocalTransaction) -> None:
        """Ask where a transaction is, and cancel it as the application, whatever the answer."""
        for partition in range(self._partitions) if self._asks.random() < 0.7 else ():
            end = self._world.cluster.logs[self._names.half, partition].high_watermark
            if end:
                self._ask(partition, f"{end - 1},{one.transaction_id},0", "find")
        if self._asks.random() < 0.7:
            self._ask(one.partition, _given_up(one), "cancel")
        if self._strangers.random() < 0.3:
            # Another group asks, which knows the id.
            end = self._world.cluster.logs[self._names.half, one.partition].high_watermark
            entry = f"{end - 1},{one.transaction_id},0"
            self._ask(one.partition, entry, "find", "group1" if self.group == "group0" else "group0")

    def _ask(self, partition: int, entry: str, source: str, group: str | None = None) -> None:
        self._asked += 1
        self._send_entries(partition, [entry], source, group, reply=f"{self.name}-{self._asked}")

    def forge(self) -> None:
        """Send a record that no client of ours would send."""
        chance = self._world.random
        stored = [one for one in self.transactions if one.offset is not None]
        kind = chance.randrange(6)
        partition = stored[0].partition if stored else 0
        self._world.count(f"client forged {kind}")
        if kind == 0 and stored:
            self._send_entries(partition, [f"{stored[0].offset},{'F' * 32},8"], "client")
        elif kind == 1 and stored:
            one = chance.choice(stored)
            entry = f"{one.offset},{one.transaction_id},8"
            self._send_entries(one.partition, [entry], "client", group="another-group")
        elif kind == 2:
            self._send_entries(partition, [f"{2**60},{'F' * 32},8"], "operator")
        elif kind == 3:
            self._send((self._names.end, partition), b"not an END record", [("TXB_V", b"1")])
        elif kind == 4 and not self._load.is_plain:
            self._send((self._names.half, partition), b"not a half message", [("TXB_V", b"1")])
        elif len(stored) > 1:
            one = chance.choice(stored)
            entries = [f"{one.offset},{one.transaction_id},{decision}" for decision in (COMMIT, ROLLBACK)]
            chance.shuffle(entries)
            self._send_entries(one.partition, entries, "client")

    def _send_end(self, batch: list[LocalTransaction], source: str, check_times: str = "") -> None:
        entries = []
        for one in batch:
            decision = UNKNOWN if one.outcome is None else one.outcome
            one.sent.append(decision)
            entries.append(f"{one.offset},{one.transaction_id},{decision}" + (f",{check_times}" if check_times else ""))
        self._send_entries(batch[0].partition, entries, source)

    def _send_entries(
        self, partition: int, entries: list[str], source: str, group: str | None = None, reply: str | None = None
    ) -> None:
        headers = end_headers(group or self.group, source)
        if reply is not None:
            headers.append(("TXB_REPLY", reply.encode()))
        self._world.trace(f"{self.name}: END {source} {[entry.split(',')[::2] for entry in entries]}")
        self._send((self._names.end, partition), "\n".join(entries).encode(), headers)

    def _send(self, place: Place, value: bytes, headers: Headers) -> None:
        self.outgoing.append((place, (None, value, headers, 0), lambda _: None))

    def answer_checks(self, *, is_final: bool = False) -> None:
        """Read check requests and answer them. With `is_final`, all are answered and decided."""
        log = self._world.cluster.logs[self._names.check(self.group), 0]
        records, self._check_position = log.visible(self._check_position, 50, committed=True)
        for record in records:
            headers = dict(record.headers)
            if "TXB_REPLY" in headers:
                continue
            transaction_id = (headers["UNIQ_KEY"] or b"").decode()
            one = next((one for one in self.transactions if one.transaction_id == transaction_id), None)
            if one is None:
                continue
            self._world.count("client checked")
            if one.offset is None:
                # The half message is not acknowledged: the client has given up, or still waits.
                one.outcome = ROLLBACK if is_final else one.outcome
                one.offset = int((headers["TXB_HALF"] or b"").decode().partition(":")[2])
            if is_final and one.outcome is None:
                one.outcome = self._world.random.choice((COMMIT, ROLLBACK))
            if is_final or self._world.random.random() < 0.8:
                self._send_end([one], "check", (headers["TRANSACTION_CHECK_TIMES"] or b"").decode())

    def is_given_up(self, record: NewRecord) -> bool:
        """Whether the record's first attempt was so long ago that it is not sent again. Called before each attempt."""
        transaction_id = next((value for name, value in record[2] if name == "UNIQ_KEY"), None)
        now = self._world.now
        return transaction_id is not None and now - self._sent.setdefault(transaction_id, now) > _SENT_FOR

    def die(self) -> None:
        """Kill -9: unsent records are lost. The group learns of it when the session times out."""
        self.is_alive = False
        self.outgoing.clear()
        self.dies_for_the_group_at = self._world.now + SESSION_TIMEOUT
        self._world.trace(f"{self.name}: dies")

    def come_back(self) -> None:
        """The service is started again and knows its transactions from its database."""
        self.is_alive = True
        self._world.trace(f"{self.name}: is back")


def _given_up(one: LocalTransaction) -> str:
    """The entry of END that gives a transaction up."""
    return f"{one.offset},{one.transaction_id},0,,gone%20for%20good"
