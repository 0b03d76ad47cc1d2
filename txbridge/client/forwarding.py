"""Store and forward, the client's part: which ENDs must be in Kafka before a message of a key goes there directly.

txbridge_sqlalchemy/forwarding.py has the whole argument.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from txbridge.client.decide.decision_batcher import Ticket
    from txbridge.client.message import Message

#: A committed transaction whose END may be missing: its id, and the partition and offset of its half message.
CommittedHalf: TypeAlias = tuple[str, int, int]

#: Seconds between two half messages while Kafka answers and does not take them in their time. Each makes a caller wait
#: for `message.timeout.ms`, by default 3 s, and the last one delays the return to the direct way.
_TRY_EVERY_S = 10.0


@dataclass(slots=True, eq=False)
class _OpenEnd:
    """A commit of this process whose END Kafka has not acknowledged."""

    half: CommittedHalf
    keys: frozenset[bytes]
    is_given_up: bool = False


class Forwarding:
    """What a listener with an outbox and its producer know of each other. Thread-safe."""

    def __init__(self) -> None:
        #: The producer group, once the producer has reached Kafka.
        self.group = ""
        #: Whether the producer has a Kafka to send to. Without it the outbox has all messages, and so their order.
        self.has_kafka = True
        #: Called for each transaction that is stored.
        self.count_stored: Callable[[], object] = lambda: None
        self._send_again: Callable[[str, int, int], Future[None]] | None = None
        #: By transaction id.
        self._open: dict[str, _OpenEnd] = {}
        #: When a half message is tried again (time.monotonic) after one that Kafka has not taken; 0 if it takes them.
        self._tries_at = 0.0
        self._trying = threading.Lock()

    def connect(self, group: str, send_again: Callable[[str, int, int], Future[None]]) -> None:
        """Take the producer's way to send the END of a committed transaction once more."""
        self.group, self._send_again = group, send_again

    def note_half(self, *, is_stored: bool) -> None:
        """Note that Kafka has taken a half message, or has not taken one in its time."""
        self._tries_at = 0.0 if is_stored else time.monotonic() + _TRY_EVERY_S

    def skips_half(self) -> bool:
        """Whether a message is stored without a half message, as Kafka has not taken the last one and none is due."""
        if not self._tries_at:
            return False
        with self._trying:
            now = time.monotonic()
            if now < self._tries_at:
                return True
            # This caller tries, and the others need not wait with it.
            self._tries_at = now + _TRY_EVERY_S
            return False

    def note_commit(self, message: Message, half: CommittedHalf, end: Ticket) -> None:
        """Remember that the END of a committed message is on its way, until Kafka has it."""
        one = self._open[half[0]] = _OpenEnd(half, keys_of(message))
        end.as_future().add_done_callback(partial(self._note_end, one))

    def _note_end(self, one: _OpenEnd, end: Future[None]) -> None:
        if end.exception() is None:
            self._open.pop(one.half[0], None)
        else:
            one.is_given_up = True

    def list_open(self, keys: Collection[bytes]) -> list[CommittedHalf]:
        """Commits of messages with these keys that Kafka may not know of, in the order of their calls."""
        return [one.half for one in tuple(self._open.values()) if not one.keys.isdisjoint(keys)]

    def settle_ends(self) -> list[Future[None]]:
        """Send the ENDs again that this process has given up, and return their futures.

        Without them no message may go directly.
        """
        assert self._send_again is not None, "no message has a half message before the producer has reached Kafka"
        futures = []
        for one in tuple(self._open.values()):
            if one.is_given_up:
                futures.append(self._send_again(*one.half))
                futures[-1].add_done_callback(partial(self._note_end, one))
        return futures


def keys_of(message: Message) -> frozenset[bytes]:
    """The keys of all messages of a transaction."""
    return frozenset(one.key for one in message.messages if one.key is not None)
