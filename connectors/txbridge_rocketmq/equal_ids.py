"""Messages of different content, or of different clients, that have the same id."""

from __future__ import annotations

import time

from txbridge.log import get_logger
from txbridge_rocketmq.door_metrics import DoorMetrics

#: Messages that are remembered. Clients with equal ids send them within seconds of each other. They take 3 MiB.
_MOST = 10_000
#: Seconds between two warnings, which would otherwise come with each message.
_WARN_EVERY_S = 60.0

_log = get_logger("txbridge.rocketmq")


class EqualIds:
    """The ids of the last messages of a door, to warn of clients that make equal ones. For the event loop only."""

    def __init__(self, metrics: DoorMetrics) -> None:
        self._metrics = metrics
        #: Fingerprint and peer of a message, by a hash of group and UNIQ_KEY, which may be long.
        self._seen: dict[int, tuple[str, str]] = {}
        self._next_warning = 0.0

    def note_message(self, group: str, uniq_key: str, fingerprint: str, peer: str) -> None:
        """Count the message if another one has had its id."""
        first = self._seen.setdefault(hash((group, uniq_key)), (fingerprint, peer))
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]
        if first[0] == fingerprint:
            return
        self._metrics.equal_ids.inc()
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARN_EVERY_S
            _log.warning(
                "equal_message_ids",
                group=group,
                id=uniq_key[:80],
                peers=[first[1], peer],
                next="each message is a transaction of its own; give each container its own IP and MAC address",
            )
