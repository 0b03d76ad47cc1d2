"""ManualTime: a monotonic clock that the test moves, for everything that takes its time from `Outside`."""

from __future__ import annotations

from txbridge.kafka.environment import Outside


class ManualTime(Outside):
    """`seconds` is the monotonic time."""

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds

    def monotonic(self) -> float:
        return self.seconds
