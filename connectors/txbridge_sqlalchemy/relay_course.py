"""The decisions of a relay: what comes next in a lane. Without I/O, and without a clock of their own.

relay.py carries them out, and says why they lose, repeat and reorder nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto

from txbridge.client.message import Message
from txbridge.client.several_messages import Several
from txbridge.core.message_frames import MOST_MESSAGES, MOST_TOPICS
from txbridge_sqlalchemy.outbox_messages import OutboxRow
from txbridge_sqlalchemy.outbox_rows import LaneState

#: Most bytes of a batch of several rows. A thousand rows of 200 bytes have a fifth of it. Larger batches would be no
#: cheaper, and readers wait for the whole of one.
MOST_BYTES = 1024 * 1024
#: Bytes of a message in the frames of a batch beside its topic, key, value and headers, and of a header beside its name
#: and value.
_FRAME_BYTES = 32
_HEADER_BYTES = 8

#: Pause (s) between the beginnings of two reads while there are some rows. A Kafka transaction costs the same for one
#: row as for five hundred, so at 200 rows/s eight of them share one. A pause of 0.02 took 1.7 times the processor time
#: for 5 ms less to visible.
BUSY_PAUSE_S = 0.04
#: First pause (s) without rows, and while the newest ones wait for transactions that write: they are soon over.
_FIRST_PAUSES_S = {False: BUSY_PAUSE_S, True: 0.004}
#: Longest pause (s) of a lane without rows: four short queries a second are a thousandth of a processor.
IDLE_PAUSE_S = 0.25
#: Looks (about a second each) for which lanes that were given back are left to others.
_LEAVE_LOOKS = 4
#: Factor from one pause without rows to the next. So the longest pause begins after a quiet second.
_SLOWING = 1.3


class LaneStep(Enum):
    """What comes next in a lane."""

    #: Read which batch was the last one, of this relay or of another.
    READ_STATE = auto()
    #: Make sure that Kafka has the END of that batch.
    SETTLE_END = auto()
    #: Send the next batch.
    SEND_BATCH = auto()


class LaneCourse:
    """The order of the steps in a lane that this relay holds.

    Whatever fails, the last batch is read again from the table: it alone says what is committed.
    """

    def __init__(self) -> None:
        #: The last batch of the lane in the table, as far as is known; None if there was none.
        self.state: LaneState | None = None
        self._is_known = False
        #: The batch whose END Kafka has acknowledged to this relay.
        self._settled: LaneState | None = None

    @property
    def next_step(self) -> LaneStep:
        if not self._is_known:
            return LaneStep.READ_STATE
        return LaneStep.SEND_BATCH if self.state == self._settled else LaneStep.SETTLE_END

    def note_state(self, state: LaneState | None) -> None:
        """Note the last batch as it is in the table, or as this relay has just committed it."""
        self.state, self._is_known = state, True
        if state is None:
            self._settled = None

    def note_end_stored(self) -> None:
        """Note that Kafka has acknowledged the END of the last batch."""
        self._settled = self.state

    def forget_state(self) -> None:
        """Note that a step has failed, or that another relay may have held the lane."""
        self._is_known = False


class LaneShare:
    """How many lanes a relay gives back, so that relays without one get some."""

    def __init__(self) -> None:
        self._wanted = 0
        self._waits = 0

    def count_surplus(self, held: int, *, is_wanted: bool) -> int:
        """Number of lanes to give back now. Asked about once a second."""
        # Twice, because two relays that ask at the same moment look like one that waits.
        self._wanted = self._wanted + 1 if is_wanted and held > 1 else 0
        if self._wanted < 2:
            return 0
        self._wanted, self._waits = 0, _LEAVE_LOOKS
        return held // 2

    def may_take(self) -> bool:
        """Whether free lanes may be taken. Not at once after some were given back for others."""
        self._waits -= self._waits > 0
        return not self._waits


class Pace:
    """When a lane is read next."""

    def __init__(self) -> None:
        self._pauses = dict(_FIRST_PAUSES_S)

    def next_pause(self, *, found: bool, is_gate_closed: bool, took: float) -> float:
        """Pause (s) after a read that has `found` rows or not, and, if so, a batch; together they `took` seconds."""
        if found:
            self._pauses = dict(_FIRST_PAUSES_S)
            return max(0.0, BUSY_PAUSE_S - took)
        pause = self._pauses[is_gate_closed]
        self._pauses[is_gate_closed] = min(pause * _SLOWING, IDLE_PAUSE_S)
        return pause


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are sent as one transaction."""

    ids: tuple[object, ...]
    message: Message


class RowsByFate:
    """Rows that are read and not sent yet.

    The worker delivers or holds a batch as a whole, at one time. So a batch has rows of one fate: None for delivery
    now, or the time of delivery and what the worker will hold them for. Those for delivery now come first, as of the
    others each may need a batch. That is no change of an order that holds: delayed messages are ordered by their times,
    and one that is held lets the others pass.
    """

    def __init__(self) -> None:
        self._by_fate: defaultdict[Hashable, deque[OutboxRow]] = defaultdict(deque)

    def __bool__(self) -> bool:
        return bool(self._by_fate)

    def add_row(self, row: OutboxRow, fate: Hashable) -> None:
        """Add a row that has a message. Those of one fate keep their order."""
        self._by_fate[fate].append(row)

    def take_batch(self, most_bytes: int) -> Batch:
        """Take the next batch, of at least one row. There must be one."""
        most_bytes = min(most_bytes, MOST_BYTES)
        fate = None if None in self._by_fate else next(iter(self._by_fate))
        rows = self._by_fate[fate]
        ids: list[object] = []
        messages: list[Message] = []
        topics: set[str] = set()
        size = 0
        while rows:
            message = rows[0].message
            assert message is not None
            size += frame_size(message)
            topics.add(message.topic)
            if messages and (size > most_bytes or len(topics) > MOST_TOPICS or len(ids) == MOST_MESSAGES):
                break
            ids.append(rows.popleft().id)
            messages.append(message)
        if not rows:
            del self._by_fate[fate]
        return Batch(tuple(ids), _as_one(messages))


def _as_one(messages: list[Message]) -> Message:
    """The message of the transaction. A single one has no frames, so it may be as large as HALF allows."""
    return messages[0] if len(messages) == 1 else Several(tuple(messages), None)


def frame_size(message: Message) -> int:
    """Bytes of the message in a batch, rounded up."""
    size = _FRAME_BYTES + len(message.topic) + len(message.key or b"") + len(message.value or b"")
    for name, value in message.headers:
        # Up to four bytes a character: quicker than to encode it.
        size += _HEADER_BYTES + 4 * len(name) + len(value or b"")
    return size
