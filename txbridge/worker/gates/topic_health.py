"""What is known about the topics that a worker writes to: there or not, allowed or not, and what they refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from txbridge.backoff import Backoff
from txbridge.core.batch import Room
from txbridge.core.effects import InTurn
from txbridge.core.half_entry import HalfEntry
from txbridge.core.names import CHECK_TOPIC
from txbridge.core.states import TransactionState
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import UNKNOWN_TOPIC
from txbridge.kafka.failures import RecordFailure
from txbridge.log import get_logger
from txbridge.text import counted

#: A topic that was fine is believed for a minute: if it is deleted meanwhile, the write fails and it is asked again.
_GOOD_FOR_S = 60.0
#: One that was not is asked again at every attempt of its held messages, which back off by themselves.
_BAD_FOR_S = 0.9
_REQUEST_TIMEOUT_S = 5.0
#: Back-off of a topic that takes nothing.
_FIRST_BLOCK_S = 2.0
_LONGEST_BLOCK_S = 60.0
#: Messages that go together to a topic that was blocked: one, then as many times more after each that it took, and as
#: many as there are from so many on. Were it many at once, a slow link would block it again and again.
_PROBE_GROWS = 4
_PROBES_END = 1_000
#: Bytes that go together to a topic that has refused a batch: below librdkafka's batch.size at first, and then less
#: until it is known which records are at fault, or that the topic's max.message.bytes is that small.
_FIRST_LIMIT = 256 * 1024
LEAST_LIMIT = 1024
#: Refused batches of one topic in a row, after which all its messages at hand are held: the others must not wait.
_MOST_REFUSALS = 10
#: Flushes that such topics may cost one Kafka transaction: 500 take about a second.
_MOST_FLUSHES = 500.0
#: After a held message was refused again, the held ones of its topic leave the others this time.
_REST_S = 0.5
#: How long a size that was refused keeps larger messages from being offered as soon as they are committed.
_WALL_S = 60.0


#: Why this user may not write; the right and the topic follow.
_DENIED = "no right to"

_log = get_logger("txbridge.worker")


@dataclass(slots=True)
class _Wall:
    """A topic refused a record for its size."""

    size: int
    reason: str
    until: float
    #: Of the held messages that are as large one is tried again then: the limit may have been raised.
    next_probe: float
    backoff: Backoff


class TopicHealth:
    """Answers from memory whether a message can be delivered; `look_up` asks Kafka beforehand. Not thread-safe."""

    def __init__(self, requests: ControllerRequests, outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._requests = requests
        #: Until when it is believed, and the problem.
        self._topics: dict[str, tuple[float, str | None]] = {}
        #: Last problem of a check topic that was logged.
        self._told = ""
        self._blocks: dict[str, Backoff] = {}
        #: Messages that their topic refused, until they are held.
        self._refused: dict[int, str] = {}
        self._refusals: Counter[str] = Counter()
        self._resting: dict[str, tuple[float, str]] = {}
        self._walls: dict[str, _Wall] = {}
        #: Held messages that were refused when they went alone.
        self._proven: set[int] = set()
        self._limits: dict[str, int] = {}
        self._flushes_left = _MOST_FLUSHES
        #: Of topics that were blocked: messages that may go together, and how many of them this draft has left.
        self._probes: dict[str, int] = {}
        self._probes_left: dict[str, int] = {}
        self._partitions: dict[str, int] = {}

    # --- asking Kafka -----------------------------------------------------------------------------------------------

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask Kafka about the topics whose answer is old. Never creates one. Raises KafkaException, TimeoutError."""
        now = self._outside.monotonic()
        unknown = {topic for topic in topics if topic not in self._topics or self._topics[topic][0] <= now}
        if not unknown:
            return
        answers = self._requests.describe_topics(sorted(unknown), _REQUEST_TIMEOUT_S, authorized_operations=True)
        for topic, answer in answers.items():
            problem = None
            try:
                description = answer.result()
                self._partitions[topic] = len(description.partitions)
                allowed = description.authorized_operations
                if allowed is not None and not {AclOperation.WRITE, AclOperation.ALL} & set(allowed):
                    problem = f"{_DENIED} WRITE to topic {topic}"
            except KafkaException as error:
                problem = _problem(topic, error.args[0])
                if problem is None:
                    raise
            self._tell(topic, problem)
            self._topics[topic] = (now + (_GOOD_FOR_S if problem is None else _BAD_FOR_S), problem)

    def _tell(self, topic: str, problem: str | None) -> None:
        """A held message says why it is held; that a group cannot be asked would show nowhere."""
        if CHECK_TOPIC in topic and problem is not None and problem.startswith(_DENIED) and problem != self._told:
            self._told = problem
            _log.warning("check_refused", topic=topic, error=problem)

    def problem_of(self, topic: str) -> str | None:
        """Why nothing can be written to this topic, as of the last look-up."""
        known = self._topics.get(topic)
        return None if known is None else known[1]

    def problem_of_partition(self, topic: str, partition: int) -> str | None:
        """Why nothing can be written to this partition of an existing topic, as of the last look-up."""
        partitions = self._partitions.get(topic)
        if partitions is None or partition < partitions:
            return None
        # Somebody may add it: to be looked up again.
        self._topics.pop(topic, None)
        return f"topic {topic} has {counted(partitions, 'partition')}, so no partition {partition}"

    # --- for a draft ------------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes that may go together, of topics that have refused a batch."""
        return self._limits

    def begin_draft(self) -> None:
        self._flushes_left = _MOST_FLUSHES
        self._probes_left = dict(self._probes)

    @property
    def room(self) -> Room | None:
        """To ask of each message before it is drafted; None when there is room for all."""
        return self._room if self._limits or self._probes else None

    def _room(self, entry: HalfEntry) -> bool | None:
        """Whether this draft may hold one more message of its topic. Uses up the room."""
        topics, now = entry.topics, self._outside.monotonic()
        for topic in topics:
            until, problem = self._topics.get(topic, (0.0, None))
            if problem is not None and until > now:
                return None
        probes = {topic: self._probes_left[topic] for topic in topics if topic in self._probes_left}
        limits = [self._limits[topic] for topic in topics if topic in self._limits]
        if 0 in probes.values() or (limits and self._flushes_left <= 0):
            return False
        for topic, left in probes.items():
            self._probes_left[topic] = left - 1
        if limits:
            # Of several messages nobody knows which topic gets how much of them: so much at most.
            self._flushes_left -= entry.messages if entry.attempts else min(entry.messages, entry.size / min(limits))
        return True

    def is_clear(self, topic: str) -> bool:
        """Whether any message whose commit has just come can be delivered there now, as far as is known."""
        return not (self._refused or self._walls or self._limits) and self.problem_of(topic) is None

    def obstacle(self, entry: HalfEntry) -> str | None:
        """Why a message whose commit has just come cannot be delivered now."""
        if not (self._refused or self._walls):
            # Nearly always.
            return self._problem_of_any(entry)
        why = self._refused.get(entry.offset) or self._problem_of_any(entry)
        wall = self._wall_of(entry)
        if why is None and wall is not None and entry.size >= wall.size and self._outside.monotonic() < wall.until:
            why = wall.reason
        return why

    def obstacle_of_held(self, entry: HalfEntry) -> str | None:
        """Why a held message cannot be delivered now."""
        now = self._outside.monotonic()
        why = self._refused.pop(entry.offset, None) or self._problem_of_any(entry)
        for topic in entry.topics:
            if why is None and topic in self._resting:
                until, why = self._resting[topic]
                if until <= now:
                    del self._resting[topic]
                    why = None
                elif entry.offset not in self._proven:
                    why = InTurn(why)
        if why is None and (wall := self._wall_of(entry)) is not None and entry.size >= wall.size:
            if now < wall.next_probe:
                why = wall.reason
            else:
                wall.next_probe = now + wall.backoff.next()
        return why

    def _problem_of_any(self, entry: HalfEntry) -> str | None:
        """Why it cannot be delivered: one message that has to wait holds all of its transaction."""
        if entry.messages == 1:
            return self.problem_of(entry.real_topic)
        return next(filter(None, map(self.problem_of, entry.topics)), None)

    def _wall_of(self, entry: HalfEntry) -> _Wall | None:
        """What is known of the largest record that its topic takes. The size of several says nothing of each."""
        return self._walls.get(entry.real_topic) if entry.messages == 1 else None

    # --- what became of it ------------------------------------------------------------------------------------------

    def guilty(self, topic: str, failures: Sequence[RecordFailure]) -> Sequence[RecordFailure] | None:
        """Which of the refused records of a topic are to be held. None: all that are at hand for this topic.

        A batch is refused as a whole for one bad record: smaller ones are tried until it is found.
        """
        self._refusals[topic] += 1
        limit = self._limits.get(topic)
        if alone := [failure for failure in failures if failure.alone]:
            self._limits.setdefault(topic, _FIRST_LIMIT)
            return alone
        if self._refusals[topic] > _MOST_REFUSALS:
            return None
        if limit is not None and limit <= LEAST_LIMIT:
            return failures
        self._limits[topic] = _FIRST_LIMIT if limit is None else limit // 4
        return ()

    def refuse(self, entry: HalfEntry, reason: str, *, topic: str, too_large: bool = False) -> None:
        """Let the others pass: this one will be held, because of this topic."""
        now = self._outside.monotonic()
        self._refused[entry.offset] = reason
        if entry.state is TransactionState.HELD:
            self._resting[topic] = (now + _REST_S, reason)
            if entry.attempts:
                self._proven.add(entry.offset)
        if too_large and entry.messages == 1:
            wall = self._walls.get(topic)
            if wall is None or entry.size < wall.size or wall.until < now:
                backoff = _backoff() if wall is None else wall.backoff
                self._walls[topic] = _Wall(entry.size, reason, now + _WALL_S, now + backoff.pause, backoff)

    def held(self, entry: HalfEntry) -> None:
        """It is held now, in Kafka too."""
        self._refused.pop(entry.offset, None)

    def delivered(self, entries: Collection[HalfEntry]) -> None:
        """These were committed."""
        self.worked({topic for entry in entries for topic in entry.topics})
        if self._walls or self._proven:
            for entry in entries:
                self._proven.discard(entry.offset)
                wall = self._wall_of(entry)
                if wall is not None and entry.size >= wall.size:
                    del self._walls[entry.real_topic]

    def abandoned(self, entries: Iterable[HalfEntry]) -> None:
        """These will never be offered again."""
        for entry in entries:
            self._refused.pop(entry.offset, None)
            self._proven.discard(entry.offset)

    def block_topic(self, topic: str, reason: str) -> None:
        """Nothing is offered to this topic for a while.

        So an unwritable topic delays the others once per back-off, by the produce time-out, and not once per message.
        """
        # Not all at the same time again, if several were blocked because one of them is at fault.
        pause = self._blocks.setdefault(topic, _backoff()).next() * self._outside.uniform(0.5, 1.5)
        self._probes[topic] = 1
        self._topics[topic] = (self._outside.monotonic() + pause, reason)

    def worked(self, topics: Iterable[str]) -> None:
        """Records for these topics were committed."""
        for topic in topics:
            self._blocks.pop(topic, None)
            self._refusals.pop(topic, None)
            if topic in self._probes:
                self._probes[topic] *= _PROBE_GROWS
                if self._probes[topic] >= _PROBES_END:
                    del self._probes[topic]

    def forget(self) -> None:
        """A write was refused for a reason that names no record: believe nothing."""
        self._topics.clear()


def _backoff() -> Backoff:
    return Backoff(_FIRST_BLOCK_S, _LONGEST_BLOCK_S)


def _problem(topic: str, error: KafkaError) -> str | None:
    """The error as a reason to wait, or None when Kafka did not answer, which says nothing about the topic."""
    if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC}:
        return f"topic {topic} does not exist"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{_DENIED} DESCRIBE topic {topic}"
    if error.code() == KafkaError.TOPIC_EXCEPTION:
        return f"topic {topic} is not a legal name"
    # librdkafka's own errors are negative; a broker's tell about this topic only and must not stop the others.
    return f"topic {topic}: {error.str()}" if error.code() > 0 else None
