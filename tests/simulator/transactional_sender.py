"""A foreign application that sends in Kafka transactions, because its framework makes every sender transactional.

docs/protocol.md forbids it. A decision that it aborts must decide nothing, and one that it commits counts in its place.
An open Kafka transaction delays all later records and checks until Kafka's time-out ends it. A half message counts
however its Kafka transaction ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulator.applications import COMMIT, ROLLBACK, Application
from tests.simulator.cluster import OK, NewRecord, Place
from tests.simulator.records import end_headers
from tests.simulator.world import World
from txbridge.core.names import Names

#: Its transactional.id, by which the coordinator knows it.
STRANGER = "stranger"
#: Its transaction.timeout.ms: shorter than a run's rest, longer than most pauses of a run.
_TIMEOUT_MS = 20_000


class TransactionalSender:
    """One process with a random source of its own."""

    def __init__(self, world: World, names: Names, applications: Sequence[Application]) -> None:
        self._world, self._names, self._applications = world, names, applications
        self._chance = world.side(STRANGER)
        self.is_here = self._chance.random() < 0.25
        self._epoch = -1
        #: Number of records sent to each place in this epoch.
        self._sent: dict[Place, int] = {}
        #: Whether its Kafka transaction has records.
        self._is_open = False
        #: Whether it hangs with an open Kafka transaction, which only the time-out ends.
        self._hangs = False

    def act(self) -> None:
        """Perhaps begin, send, or end. After a refusal of Kafka it begins anew later."""
        if not self.is_here:
            return
        pick = self._chance.random()
        if self._is_open:
            if self._hangs:
                self._hangs = self._is_mine()
                self._is_open = self._hangs
            elif pick < 0.15:
                self._send()
            elif pick < 0.17:
                self._send_half()
            elif pick < 0.25:
                self.end(commit=pick < 0.20)
            elif pick < 0.255:
                self._world.count("stranger hangs with a decision")
                self._hangs = True
        elif pick < 0.15:
            self._send()
        elif pick < 0.18:
            self._send_half()

    def end(self, *, commit: bool) -> None:
        """Commit or abort the open Kafka transaction."""
        if not self._is_open or self._hangs:
            return
        self._is_open = False
        code = self._world.cluster.end_transaction(STRANGER, self._epoch, commit=commit)
        self._world.trace(f"{STRANGER}: {'commits' if commit else 'aborts'}, {code}")
        if code == OK:
            self._world.count(f"stranger {'committed' if commit else 'aborted'} decisions")
        else:
            self._epoch = -1

    def _is_mine(self) -> bool:
        return self._world.cluster.coordinated[STRANGER].epoch == self._epoch

    def _send(self) -> None:
        """Send a decision about any half message, mostly an undecided one."""
        stored = [
            (application, one)
            for application in self._applications
            for one in application.transactions
            if one.offset is not None and (one.outcome is None or self._chance.random() < 0.1)
        ]
        if not stored or not self._has_epoch():
            return
        application, one = self._chance.choice(stored)
        decision = self._chance.choice((COMMIT, COMMIT, ROLLBACK))
        headers = end_headers(application.group)
        value = f"{one.offset},{one.transaction_id},{decision}".encode()
        self._produce((self._names.end, one.partition), (None, value, headers, 0))

    def _send_half(self) -> None:
        """Send a half message instead of its application.

        It counts from now on, even if the Kafka transaction is aborted.
        """
        senders = [one for one in self._applications if one.outgoing and one.outgoing[0][0][0] == self._names.half]
        if not senders or not self._has_epoch():
            return
        application = self._chance.choice(senders)
        place, record, acknowledged = application.outgoing[0]
        offset = None if application.is_given_up(record) else self._produce(place, record)
        if offset is not None:
            application.outgoing.popleft()
            acknowledged(offset)

    def _has_epoch(self) -> bool:
        if self._epoch >= 0 and self._is_mine():
            return True
        self._is_open = False
        epoch = self._world.cluster.init_producer(STRANGER, _TIMEOUT_MS, STRANGER)
        self._epoch, self._sent = epoch, {}
        return epoch >= 0

    def _produce(self, place: Place, record: NewRecord) -> int | None:
        cluster = self._world.cluster
        if cluster.add_partition(STRANGER, self._epoch, place) != OK:
            # The markers of its last Kafka transaction are still to be written.
            return None
        sequence = self._sent.get(place, 0)
        offset = cluster.produce(place, STRANGER, self._epoch, sequence, [record])
        if offset < 0:
            self._epoch = -1
            return None
        self._sent[place] = sequence + 1
        self._is_open = True
        self._world.trace(f"{STRANGER}: {place[0]}[{place[1]}] has {record[1]!r} at {offset}, not committed")
        return offset
