"""Which producer groups have somebody alive: Kafka's own membership of the group that reads their checks."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from txbridge.core.names import Names

#: A membership is believed this long. A dead member stays one for its session time-out anyway.
_FRESH_S = 1.0
_REQUEST_TIMEOUT_S = 5.0


class GroupDirectory:
    """Answers from memory; `refresh` asks Kafka beforehand. Not thread-safe."""

    def __init__(self, admin: AdminClient, names: Names) -> None:
        self._admin = admin
        self._names = names
        self._alive: dict[str, tuple[float, bool]] = {}

    def refresh(self, groups: Iterable[str]) -> None:
        """Ask Kafka about groups whose answer is old. No answer counts as nobody alive: no check is burned."""
        now = time.monotonic()
        old = [group for group in groups if group not in self._alive or self._alive[group][0] <= now]
        if not old:
            return
        answers = self._admin.describe_consumer_groups(
            [self._names.check(group) for group in old],
            request_timeout=_REQUEST_TIMEOUT_S,
        )
        for group in old:
            try:
                description = answers[self._names.check(group)].result(_REQUEST_TIMEOUT_S)
                alive = len(description.members) > 0
            except KafkaException:
                alive = False
            self._alive[group] = (now + _FRESH_S, alive)

    def is_alive(self, group: str) -> bool:
        """Whether the group had a member when it was last asked about."""
        return self._alive.get(group, (0.0, False))[1]
