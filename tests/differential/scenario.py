"""Parts of a scenario: answers, the fate of a transaction, and the stage on which each side plays."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.support.harness import eventually

# The longest silence between two events of one transaction. RocketMQ's rounds are 1 to 2.1 s apart (an interval, and a
# second's sleep when OP has nothing new). Ours are 1 s and a turn of the commit loop apart. Three times that allows for
# a loaded machine.
_QUIET_S = 6.0
# Limit for a scenario that does not settle: twenty times as long as all checks of a message take.
_SETTLED_TIMEOUT_S = 180.0
# A check or a discard comes within 10 s on either side (three checks, see above); the rest allows for a loaded machine.
_AWAIT_TIMEOUT_S = 60.0
_POLL_S = 0.5


class Answer(StrEnum):
    """Answer of a local transaction or a check, or decision by hand."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    EXCEPTION = "exception"


@dataclass(frozen=True)
class Fate:
    """Fate of a transaction, as seen from outside."""

    #: Copies that a consumer of the real topic sees.
    copies: int
    #: Number of checks that the producer's listener got.
    checks: int
    #: Copies in TRANS_CHECK_MAX_TIME_TOPIC.
    set_aside: int = 0
    #: Decisions and resumes by hand that were refused.
    refused: int = 0

    def __str__(self) -> str:
        parts = [f"{self.copies} visible", f"{self.checks} check{'s' * (self.checks != 1)}"]
        parts += [f"{self.set_aside} set aside"] * bool(self.set_aside) + [f"{self.refused} refused"] * bool(
            self.refused
        )
        return ", ".join(parts)


class Stage(ABC):
    """One scenario on one side, with a producer group of its own. Its transactions are known by name."""

    def send(
        self,
        name: str,
        answer: Answer,
        checks: Sequence[Answer] = (),
        *,
        immunity: int | None = None,
        lost: bool = False,
    ) -> None:
        """Store a half message and run its local transaction, which answers `answer`.

        Checks get the answers in `checks` in turn; the last one is repeated. `immunity` is
        CHECK_IMMUNITY_TIME_IN_SECONDS. With `lost` the answer to the SEND is lost, and the client sends again by
        itself.
        """
        self._send(name, answer, list(checks) or [Answer.UNKNOWN], immunity, lost=lost)

    @abstractmethod
    def _send(self, name: str, answer: Answer, checks: list[Answer], immunity: int | None, *, lost: bool) -> None:
        """Do it by the side's own means."""

    @abstractmethod
    def decide(self, name: str, decision: Answer, *, stranger: bool = False) -> None:
        """Send a decision by hand, with the half message named as the producer does. A stranger is of another group."""

    @abstractmethod
    def answer_again(self, name: str, decision: Answer) -> None:
        """Send another answer to the last check of this transaction, by hand."""

    @abstractmethod
    def resume(self, name: str) -> None:
        """Resume a discarded message by the side's own means."""

    @abstractmethod
    def leave(self) -> None:
        """End the producer, so that nobody of its group is left."""

    @abstractmethod
    def come_back(self) -> None:
        """Start a producer of the same group."""

    @abstractmethod
    def checks(self, name: str) -> int:
        """Number of checks of this transaction so far. This call is quick, because the next check is near."""

    @abstractmethod
    def fates(self) -> Mapping[str, Fate]:
        """Fates of all transactions at this moment."""

    @abstractmethod
    def close(self) -> None:
        """End the producer of this stage."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def until_checked(self, name: str, times: int) -> None:
        eventually(lambda: self.checks(name) >= times, _AWAIT_TIMEOUT_S, f"{name} was not checked {times} times")

    def until_visible(self, name: str) -> None:
        self._until(name, lambda fate: fate.copies > 0, "did not become visible")

    def until_set_aside(self, name: str) -> None:
        self._until(name, lambda fate: fate.set_aside > 0, "was not set aside")

    def _until(self, name: str, reached: Callable[[Fate], bool], failure: str) -> None:
        eventually(lambda: reached(self.fates()[name]), _AWAIT_TIMEOUT_S, f"{name} {failure}")

    def settled(self) -> Mapping[str, Fate]:
        """Return the fates once nothing has happened for longer than any event takes."""
        last, since = self.fates(), time.monotonic()
        deadline = since + _SETTLED_TIMEOUT_S
        while time.monotonic() - since < _QUIET_S:
            assert time.monotonic() < deadline, f"did not come to rest in {_SETTLED_TIMEOUT_S:.0f} s: {last}"
            time.sleep(_POLL_S)
            if (now := self.fates()) != last:
                last, since = now, time.monotonic()
        return last


@dataclass(frozen=True)
class Expected:
    """Expected fates of one transaction on both sides, written by hand."""

    txbridge: Fate
    #: Fates that RocketMQ may reach; empty means the same as ours. There are several where timing decides.
    rocketmq: tuple[Fate, ...] = ()
    #: Key of the row of tests/parity.csv that explains the difference.
    row: str = ""
    #: The timing that decides between several fates.
    tolerance: str = ""


Steps = Sequence[Callable[[Stage], None]]


@dataclass(frozen=True)
class Scenario:
    """A script for each side, and the expected fates of its transactions."""

    name: str
    steps: Steps
    expected: Mapping[str, Expected]
    #: True if txbridge's own client is left out, because its librdkafka repeats a send by itself.
    only_rocketmqs_client: bool = False

    @property
    def group(self) -> str:
        """The name in the form of a producer group that both sides accept."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())
