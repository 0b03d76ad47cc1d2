"""What a scenario is made of: answers, the fate of a transaction, and the stage on which either side plays it."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.support.harness import eventually

# The longest silence between two events of one transaction: RocketMQ's rounds are 1 to 2.1 s apart (an interval, and a
# second's sleep when OP has nothing new), ours 1 s and a turn of the commit loop. Three times that is for a machine
# that is loaded.
_QUIET_S = 6.0
# Something that never comes to rest: more than all checks of a message take, twenty times over.
_SETTLED_TIMEOUT_S = 180.0
# A check or a discard comes within 10 s on either side (see above, times three checks); the rest is for the machine.
_AWAIT_TIMEOUT_S = 60.0
_POLL_S = 0.5


class Answer(StrEnum):
    """What a local transaction or a check answers, or somebody decides by hand."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    EXCEPTION = "exception"


@dataclass(frozen=True)
class Fate:
    """What became of a transaction, as people outside can see it."""

    #: Copies that a consumer of the real topic sees.
    copies: int
    #: How often the producer's listener was asked.
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
    """One scenario on one side, with a producer group of its own. Transactions go by a name within the scenario."""

    @abstractmethod
    def send(
        self,
        name: str,
        answer: Answer,
        checks: Sequence[Answer] = (),
        *,
        immunity: int | None = None,
        lost: bool = False,
    ) -> None:
        """Store a half message and run its local transaction, which answers this; a check answers the next of `checks`.

        The last one is repeated. `immunity` is CHECK_IMMUNITY_TIME_IN_SECONDS. With `lost` the answer to the SEND gets
        lost, and the client sends again by itself.
        """

    @abstractmethod
    def decide(self, name: str, decision: Answer, *, stranger: bool = False) -> None:
        """Send a decision by hand, naming the half message as the producer does; a stranger is of another group."""

    @abstractmethod
    def answer_again(self, name: str, decision: Answer) -> None:
        """Send once more, by hand, an answer to the last check of this transaction."""

    @abstractmethod
    def resume(self, name: str) -> None:
        """Resume what was set aside, by the side's own means."""

    @abstractmethod
    def leave(self) -> None:
        """The producer goes away, and nobody of its group is left."""

    @abstractmethod
    def come_back(self) -> None:
        """A producer of the same group starts."""

    @abstractmethod
    def checks(self, name: str) -> int:
        """How often the listener was asked about this transaction until now; quick, because the next check is near."""

    @abstractmethod
    def fates(self) -> Mapping[str, Fate]:
        """What has become of all transactions until now."""

    @abstractmethod
    def close(self) -> None:
        """End the producer of this stage."""

    # --- what both sides do the same way ----------------------------------------------------------------------------

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
        """The fates once nothing has happened for longer than anything takes."""
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
    """What is to become of one transaction on either side, written by hand."""

    txbridge: Fate
    #: What RocketMQ may do; empty is the same. When timing decides there are several.
    rocketmq: tuple[Fate, ...] = ()
    #: Key of the row of docs/parity.md that says why we differ.
    row: str = ""
    #: With several fates: what the timing is.
    tolerance: str = ""


@dataclass(frozen=True)
class Scenario:
    """A script for either side, and what is to become of its transactions."""

    name: str
    play: Callable[[Stage], None]
    expected: Mapping[str, Expected]
    #: Not for txbridge's own client, in which librdkafka sends again.
    only_rocketmqs_client: bool = False

    @property
    def group(self) -> str:
        """The name as a producer group, which both sides take."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())
