"""The course of a local transaction, as far as its listener knows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Stage(Enum):
    """A stage of a local transaction."""

    #: The function was not called, or the listener tells nothing.
    BEFORE = auto()
    #: COMMIT was not sent, or the database has refused it.
    OPEN = auto()
    #: It may be over: the function may have ended it by itself.
    ENDED = auto()
    #: COMMIT is sent, and not answered. Only the database has the outcome.
    COMMITTING = auto()
    #: It is rolled back, or will be: nothing can commit it any more.
    ROLLED_BACK = auto()


@dataclass(slots=True)
class Course:
    """The course of the local transaction of a message. Its copies share it."""

    stage: Stage = Stage.BEFORE
