"""Overview of a namespace's open messages, grouped by cause, for the status page.

The partitions are read one after the other, within limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappush, heappushpop

from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.kafka.failures import ReadStoppedError
from txbridge.operations.causes import cause_of
from txbridge.operations.connection import Connection
from txbridge.operations.group_states import GroupStates
from txbridge.operations.model import OpenMessage
from txbridge.operations.reading import TooMuchToReadError, read_view

#: Time limit for one partition (s). A second reads some hundred thousand records.
_PARTITION_S = 10.0
#: Most records of HALF above the low watermark; each is an object of half a kilobyte while its partition is read. A
#: worker parks long before (park_after_records): there are more only when no worker has served the partition for long.
_MOST_HALF = 300_000
#: Most causes with a count of their own. Their texts contain topics, groups and errors, so there may be thousands.
_MOST_CAUSES = 200


@dataclass(slots=True)
class Cause:
    text: str
    state: TransactionState
    #: A short and stable name for it.
    name: str = field(init=False)
    count: int = 0
    #: The oldest messages by birth, as many as requested.
    _heap: list[tuple[int, int, int, OpenMessage]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = sha256(self.text.encode()).hexdigest()[:16]

    @property
    def oldest(self) -> Sequence[OpenMessage]:
        return [message for *_, message in sorted(self._heap, key=lambda one: (-one[0], -one[1], -one[2]))]

    def add_message(self, message: OpenMessage, most: int) -> None:
        self.count += 1
        # The youngest is at the top of the heap, and is removed first. Coordinates are unique: no message is compared.
        item = (-message.born, -message.partition, -message.half_offset, message)
        if len(self._heap) < most:
            heappush(self._heap, item)
        else:
            heappushpop(self._heap, item)


@dataclass(frozen=True, slots=True)
class OpenOverview:
    """Open messages of a namespace, by their causes; the most frequent first."""

    #: By this machine's clock (ms).
    at: int
    partitions: int
    causes: Sequence[Cause]
    warnings: Sequence[str] = ()
    #: Partitions that could not be read, and why. Their open messages are not counted.
    unread: Mapping[int, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(cause.count for cause in self.causes)


def read_overview(
    connection: Connection,
    most: int,
    *,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> OpenOverview:
    """Read all partitions, one after the other.

    The `most` oldest messages of each cause are kept. `progress` gets the number of partitions that are read, and the
    number of all. A partition that cannot be read, or would take too long, is named and does not hide the others.
    Raises KafkaUnreachableError.
    """
    causes: dict[str, Cause] = {}
    warnings: list[str] = []
    unread: dict[int, str] = {}
    now = time.time_ns() // 1_000_000
    problem_of = GroupStates(connection).problem_of
    for partition in range(connection.partitions):
        progress(partition, connection.partitions)
        try:
            view = read_view(connection, partition, _is_over(Deadline(_PARTITION_S)), _MOST_HALF)
        except KafkaUnreachableError:
            raise
        except ReadStoppedError:
            unread[partition] = f"not read within {_PARTITION_S:g} s; `txbridge pending` takes the time"
        except TooMuchToReadError as error:
            unread[partition] = f"{error}; `txbridge pending` lists them"
        except TxBridgeError as error:
            unread[partition] = str(error)
        else:
            warnings += view.warnings
            for message in view.open_messages():
                _cause(causes, cause_of(message, now, problem_of), message.state).add_message(message, most)
    ranked = sorted(causes.values(), key=lambda cause: (-cause.count, cause.text))
    return OpenOverview(now, connection.partitions, ranked, warnings, unread)


def _is_over(deadline: Deadline) -> Callable[[], bool]:
    return lambda: deadline.is_over


def _cause(causes: dict[str, Cause], text: str, state: TransactionState) -> Cause:
    if text not in causes and len(causes) >= _MOST_CAUSES:
        text = f"{state.value}: other causes"
    if text not in causes:
        causes[text] = Cause(text, state)
    return causes[text]
