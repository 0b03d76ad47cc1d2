"""Lost tails: OFFSET or OP loses acknowledged records in an unclean leader election, and an operator restores them.

The operator acts when a take-over was refused. The lost records are always needed: OP names a message that the
remaining checkpoint does not know, or holds fewer records than the checkpoint counts. If both lose the same Kafka
transactions, no worker can notice it (docs/runbook.md), so this is left out. Meanwhile former leaders of the other
topics may answer as if the records that show the loss did not exist.
"""

from __future__ import annotations

import json
from typing import Any

from tests.simulator.cluster import Place
from tests.simulator.partition_log import LostTail, PartitionLog
from tests.simulator.world import World
from txbridge.core.names import Names
from txbridge.worker.partitions import REFUSED_RETRY_S


class LostTails:
    """Loses and restores the tails of logs."""

    def __init__(self, world: World, names: Names) -> None:
        self._world, self._names = world, names
        self._logs = world.cluster.logs
        #: Time when the last tail was restored and its owner has looked again (ms of the world).
        self.served_from = 0
        #: Partitions that may have been refused. The refusal of a take-over may come late.
        self.struck: set[int] = set()

    def lose_offset(self, partition: int) -> bool:
        """Set OFFSET back to an earlier checkpoint, or to none. Returns whether there was one to go back to."""
        place = (self._names.offset, partition)
        if not self._is_quiet(partition):
            return False
        named = max((max(offsets) for _, offsets in self._ops(partition)), default=-1)
        cuts = [
            self._behind(self._logs[place], offset)
            for offset, checkpoint in self._checkpoints(partition)[:-1]
            if checkpoint["read"] <= named
        ]
        if named >= 0:
            cuts.append(0)
        return bool(cuts) and self._lose(place, self._world.side(f"cut at {self._world.now}").choice(cuts))

    def lose_op(self, partition: int) -> bool:
        """Remove a record that the checkpoint has counted from OP, and all after it."""
        place = (self._names.op, partition)
        checkpoints = self._checkpoints(partition)
        if not self._is_quiet(partition) or not checkpoints:
            return False
        needed = [offset for offset, _ in self._ops(partition) if offset >= checkpoints[-1][1]["op"]]
        if not needed:
            return False
        entries = self._logs[place].entries
        last = entries[self._world.side(f"cut at {self._world.now}").choice(needed)].transaction
        # The cut is not within a Kafka transaction: the rest of it would stay open.
        return self._lose(place, next(one.offset for one in entries if one.transaction == last))

    def refused(self, partition: int) -> bool:
        """Note that a take-over was refused. Returns whether a lost tail may be the reason."""
        for place, lost in self._world.lost_tails.items():
            if place[1] == partition:
                lost.was_refused = True
        return partition in self.struck

    def restore(self) -> bool:
        """Restore refused tails, as an operator does: the replica with all records leads again."""
        due = [place for place, lost in self._world.lost_tails.items() if lost.was_refused and self._is_quiet(place[1])]
        for place in due:
            log = self._logs[place]
            log.entries = self._world.lost_tails.pop(place).whole
            log.leader_epoch += 1
            self.served_from = self._world.now + int(REFUSED_RETRY_S * 1000)
            self._world.count("lost tail restored")
            self._world.trace(f"{place[0]}[{place[1]}] is restored, its end is {log.high_watermark}")
        return bool(due)

    def unnoticed(self) -> list[str]:
        """Needed tails that no take-over has reported. Tails that nobody needs are dropped from the list."""
        for place, lost in list(self._world.lost_tails.items()):
            if place[0] == self._names.op:
                op = self._checkpoints(place[1])[-1][1]["op"]
                # A log that ends below the position of the checkpoint is refused, needed or not.
                if not self.is_needed(lost, op) and self._logs[place].high_watermark >= op:
                    del self._world.lost_tails[place]
        return [
            f"P3: {topic}[{partition}] lacks its tail, and is served" for topic, partition in self._world.lost_tails
        ]

    @staticmethod
    def is_needed(lost: LostTail, op: int) -> bool:
        """Whether a take-over that replays OP from there needs one of the lost records."""
        return any(offset >= op for offset in lost.missing)

    def _lose(self, place: Place, cut: int) -> bool:
        log, world = self._logs[place], self._world
        missing = [one.offset for one in log.visible(cut, len(log.entries), committed=True)[0]]
        hidden_by = world.side(f"hidden at {world.now}").choice(("", "", "records", "markers"))
        world.lost_tails[place] = LostTail([*log.entries], missing, hidden_by)
        log.lose(log.high_watermark - cut)
        world.former_leaders.pop(place, None)
        self.struck.add(place[1])
        world.trace(f"{place[0]}[{place[1]}] has lost its tail, its end is {cut}")
        return True

    def _is_quiet(self, partition: int) -> bool:
        """Whether the state topics of the partition have no open Kafka transaction and no marker to be written."""
        places = [(topic, partition) for topic in (self._names.offset, self._names.op)]
        due = {place for _, place in self._world.cluster.markers_due()}
        return not any(self._logs[place].open or place in due for place in places)

    def _checkpoints(self, partition: int) -> list[tuple[int, dict[str, Any]]]:
        log, key = self._logs[self._names.offset, partition], self._names.checkpoint_key(partition)
        records, _ = log.visible(0, len(log.entries), committed=True)
        return [(one.offset, json.loads(one.value or b"")) for one in records if one.key == key]

    def _ops(self, partition: int) -> list[tuple[int, list[int]]]:
        log = self._logs[self._names.op, partition]
        records, _ = log.visible(0, len(log.entries), committed=True)
        return [(one.offset, [int(text) for text in (one.value or b"").decode().split(",")]) for one in records]

    @staticmethod
    def _behind(log: PartitionLog, offset: int) -> int:
        """The offset after the marker of the Kafka transaction of this record."""
        producer = log.entries[offset].producer_id
        markers = (one.offset for one in log.entries[offset:] if one.kind == "commit" and one.producer_id == producer)
        return next(markers) + 1
