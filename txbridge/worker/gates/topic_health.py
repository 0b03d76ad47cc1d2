"""Health of the topics that a worker writes to: existence, rights, and refused records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

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

#: A topic that was fine is believed for a minute. If it is deleted meanwhile, the write fails and Kafka is asked again.
_GOOD_FOR_S = 60.0
#: Kafka is asked about any other topic at every attempt of its held messages, which have a back-off of their own.
_BAD_FOR_S = 0.9
_REQUEST_TIMEOUT_S = 5.0
#: Back-off of a topic that takes nothing.
_FIRST_BLOCK_S = 2.0
_LONGEST_BLOCK_S = 60.0
#: Messages that go together to a topic that was blocked: first one, then _PROBE_GROWS times as many after each success.
#: From _PROBES_END on there is no limit. With many at once, a slow link would block the topic again and again.
_PROBE_GROWS = 4
_PROBES_END = 1_000
#: Bytes that go together to a topic that has refused a batch, below librdkafka's batch.size at first. The limit shrinks
#: until the records at fault are known, or until the topic's max.message.bytes turns out to be that small.
_FIRST_LIMIT = 256 * 1024
LEAST_LIMIT = 1024
#: The limit is forgotten this long after the topic's last refusal. To learn it again costs seven aborted Kafka
#: transactions of about 20 ms each, less than 1 % of this time. Until then the fast path for fresh messages is off.
_LIMIT_S = 20.0
#: After more refused batches of one topic in a row, all its messages of the draft are held: the others must not wait.
_MOST_REFUSALS = 10
#: Most flushes that such topics may cost one Kafka transaction: 500 take about a second.
_MOST_FLUSHES = 500.0
#: After a held message was refused again, the held messages of its topic wait this long, to leave time for the others.
_REST_S = 0.5
#: Time after a refusal for size in which new commits of that size or more are held at once.
_WALL_S = 60.0
#: A block, a size limit or a logged right is forgotten when the topic was not tried for this long. Held messages and
#: checks are tried again within a minute, so none needs it any more.
_UNUSED_S = 120.0
#: Old entries are dropped at most this often: a drop looks at every entry.
_DROP_EVERY_S = 1.0


#: Begin of the reason why this user may not write. The right and the topic follow.
_DENIED = "no right to"

_log = get_logger("txbridge.worker")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known of a topic."""

    #: Monotonic time (s) until which it is believed.
    until: float
    problem: str | None
    #: Number of partitions, if Kafka has described the topic.
    partitions: int | None = None


@dataclass(slots=True)
class _Limit:
    """The limit of a topic that has refused a batch."""

    #: Bytes that may go together.
    size: int = _FIRST_LIMIT
    #: Refused batches in a row.
    refusals: int = 0
    #: Monotonic time (s) at which it is forgotten.
    until: float = 0.0


@dataclass(slots=True)
class _Block:
    """A topic that took nothing, and has not taken many messages at once since."""

    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_BLOCK_S, _LONGEST_BLOCK_S))
    #: Number of messages that may go together.
    together: int = 1
    #: Monotonic time (s) at which it is forgotten.
    until: float = 0.0


@dataclass(slots=True)
class _Wall:
    """The smallest size at which a topic refused a record."""

    size: int
    reason: str
    until: float
    #: Monotonic time (s) at which one held message of this size or more is tried again: the limit may have been raised.
    next_probe: float
    backoff: Backoff


class TopicHealth:
    """Answers from memory whether a message can be delivered; `look_up` asks Kafka beforehand. Not thread-safe."""

    def __init__(self, requests: ControllerRequests, outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._requests = requests
        self._topics: dict[str, _Answer] = {}
        #: Monotonic time (s) of the next drop of old entries.
        self._next_drop = 0.0
        #: Check topics whose missing right was logged, with the monotonic time (s) at which that is forgotten.
        self._denied: dict[str, float] = {}
        self._blocks: dict[str, _Block] = {}
        #: Reasons by half offset, for messages that their topic refused and that are not held yet.
        self._refused: dict[int, str] = {}
        self._resting: dict[str, tuple[float, str]] = {}
        self._walls: dict[str, _Wall] = {}
        #: Half offsets of held messages that were refused when they went alone.
        self._proven: set[int] = set()
        self._limits: dict[str, _Limit] = {}
        self._flushes_left = _MOST_FLUSHES
        #: By topic that was blocked: the number of messages that this draft may still take.
        self._probes_left: dict[str, int] = {}

    # --- asking Kafka -----------------------------------------------------------------------------------------------

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask Kafka about topics whose answer is old. Never creates a topic. Raises KafkaException, TimeoutError."""
        now = self._outside.monotonic()
        if now >= self._next_drop:
            self._drop_old(now)
        unknown = {topic for topic in topics if topic not in self._topics or self._topics[topic].until <= now}
        if not unknown:
            return
        answers = self._requests.describe_topics(sorted(unknown), _REQUEST_TIMEOUT_S, authorized_operations=True)
        for topic, answer in answers.items():
            problem, partitions = None, None
            try:
                description = answer.result()
                partitions = len(description.partitions)
                allowed = description.authorized_operations
                if allowed is not None and not {AclOperation.WRITE, AclOperation.ALL} & set(allowed):
                    problem = f"{_DENIED} WRITE to topic {topic}"
            except KafkaException as error:
                problem = _problem(topic, error.args[0])
                if problem is None:
                    raise
            self._tell(topic, problem, now)
            good_for = _GOOD_FOR_S if problem is None else _BAD_FOR_S
            self._topics[topic] = _Answer(now + good_for, problem, partitions)

    def _drop_old(self, now: float) -> None:
        """Drop entries that say nothing any more: clients can name any number of topics, and topics come and go."""
        self._next_drop = now + _DROP_EVERY_S
        self._topics = {topic: answer for topic, answer in self._topics.items() if answer.until > now}
        self._limits = {topic: limit for topic, limit in self._limits.items() if limit.until > now}
        self._blocks = {topic: block for topic, block in self._blocks.items() if block.until > now}
        self._resting = {topic: rest for topic, rest in self._resting.items() if rest[0] > now}
        self._denied = {topic: until for topic, until in self._denied.items() if until > now}
        self._walls = {
            topic: wall for topic, wall in self._walls.items() if max(wall.until, wall.next_probe + _UNUSED_S) > now
        }

    def _tell(self, topic: str, problem: str | None, now: float) -> None:
        """Log a missing right on a check topic. A held message shows its reason; a group without checks does not."""
        if CHECK_TOPIC not in topic or problem is None or not problem.startswith(_DENIED):
            self._denied.pop(topic, None)
            return
        if topic not in self._denied:
            _log.warning("check_refused", topic=topic, error=problem)
        self._denied[topic] = now + _UNUSED_S

    def problem_of(self, topic: str) -> str | None:
        """Reason why nothing can be written to this topic as of the last look-up, or None."""
        known = self._topics.get(topic)
        return None if known is None else known.problem

    def problem_of_partition(self, topic: str, partition: int) -> str | None:
        """Reason why nothing can be written to this partition of an existing topic as of the last look-up, or None."""
        known = self._topics.get(topic)
        if known is None or known.partitions is None or partition < known.partitions:
            return None
        # A person may add the partition, so the topic is looked up again.
        self._topics[topic] = replace(known, until=0.0)
        return f"topic {topic} has {counted(known.partitions, 'partition')}, so no partition {partition}"

    # --- for a draft ------------------------------------------------------------------------------------------------

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes that may go together, by topic, for topics that have refused a batch."""
        return {topic: limit.size for topic, limit in self._limits.items()}

    def begin_draft(self) -> None:
        self._flushes_left = _MOST_FLUSHES
        self._probes_left = {topic: block.together for topic, block in self._blocks.items()}

    @property
    def room(self) -> Room | None:
        """Function to call for each message before it is drafted; None when there is room for all."""
        return self._room if self._limits or self._blocks else None

    def are_limited(self, topics: AbstractSet[str]) -> bool:
        """Whether one of these topics has room for only some messages."""
        return not (topics.isdisjoint(self._limits) and topics.isdisjoint(self._blocks))

    def _room(self, entry: HalfEntry) -> bool | None:
        """Whether this draft may hold one more message of its topics; None if one takes nothing. Uses up the room."""
        topics, now = entry.topics, self._outside.monotonic()
        for topic in topics:
            known = self._topics.get(topic)
            if known is not None and known.problem is not None and known.until > now:
                return None
        probes = {topic: self._probes_left[topic] for topic in topics if topic in self._probes_left}
        limits = [self._limits[topic].size for topic in topics if topic in self._limits]
        if 0 in probes.values() or (limits and self._flushes_left <= 0):
            return False
        for topic, left in probes.items():
            self._probes_left[topic] = left - 1
        if limits:
            # The share of each topic in several messages is not known, so this is an upper bound.
            self._flushes_left -= entry.messages if entry.attempts else min(entry.messages, entry.size / min(limits))
        return True

    def is_clear(self, topic: str) -> bool:
        """Whether every fresh message can be delivered to this topic now, as far as is known.

        A message that its topic has refused is not fresh any more.
        """
        if topic in self._limits or topic in self._blocks or self.problem_of(topic) is not None:
            return False
        wall = self._walls.get(topic)
        return wall is None or wall.until <= self._outside.monotonic()

    def obstacle(self, entry: HalfEntry) -> str | None:
        """Reason why a newly committed message cannot be delivered now, or None."""
        if not (self._refused or self._walls):
            # Nearly always.
            return self._problem_of_any(entry)
        why = self._refused.get(entry.offset) or self._problem_of_any(entry)
        wall = self._wall_of(entry)
        if why is None and wall is not None and entry.size >= wall.size and self._outside.monotonic() < wall.until:
            why = wall.reason
        return why

    def obstacle_of_held(self, entry: HalfEntry) -> str | None:
        """Reason why a held message cannot be delivered now, or None."""
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
        """Problem of any topic of the entry: one message that has to wait holds its whole transaction."""
        if entry.messages == 1:
            return self.problem_of(entry.real_topic)
        return next(filter(None, map(self.problem_of, entry.topics)), None)

    def _wall_of(self, entry: HalfEntry) -> _Wall | None:
        """The known size limit of the entry's topic. None for several messages: their sum says nothing about each."""
        return self._walls.get(entry.real_topic) if entry.messages == 1 else None

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def guilty(self, topic: str, failures: Sequence[RecordFailure]) -> Sequence[RecordFailure] | None:
        """The refused records of a topic that are to be held. None stands for all of its messages in the draft.

        Kafka refuses a whole batch for one bad record. Smaller batches are tried until the record is found.
        """
        is_first = topic not in self._limits
        limit = self._limits.setdefault(topic, _Limit())
        limit.refusals += 1
        limit.until = self._outside.monotonic() + _LIMIT_S
        if alone := [failure for failure in failures if failure.alone]:
            return alone
        if limit.refusals > _MOST_REFUSALS:
            return None
        if limit.size <= LEAST_LIMIT:
            return failures
        if not is_first:
            limit.size //= 4
        return ()

    def refuse(self, entry: HalfEntry, reason: str, *, topic: str, too_large: bool = False) -> None:
        """Note that a topic refused this message. It will be held, so that the others can pass."""
        now = self._outside.monotonic()
        self._refused[entry.offset] = reason
        if entry.state is TransactionState.HELD:
            self._resting[topic] = (now + _REST_S, reason)
            if entry.attempts:
                self._proven.add(entry.offset)
        if too_large and entry.messages == 1:
            wall = self._walls.get(topic)
            if wall is None or entry.size < wall.size or wall.until < now:
                backoff = Backoff(_FIRST_BLOCK_S, _LONGEST_BLOCK_S) if wall is None else wall.backoff
                self._walls[topic] = _Wall(entry.size, reason, now + _WALL_S, now + backoff.pause, backoff)

    def held(self, entry: HalfEntry) -> None:
        """Note that the message is held now, in OFFSET too."""
        self._refused.pop(entry.offset, None)

    def delivered(self, entries: Collection[HalfEntry]) -> None:
        """Note that these messages were delivered."""
        self.worked({topic for entry in entries for topic in entry.topics})
        if self._walls or self._proven:
            for entry in entries:
                self._proven.discard(entry.offset)
                wall = self._wall_of(entry)
                if wall is not None and entry.size >= wall.size:
                    del self._walls[entry.real_topic]

    def abandoned(self, entries: Iterable[HalfEntry]) -> None:
        """Forget messages that will never be offered again."""
        for entry in entries:
            self._refused.pop(entry.offset, None)
            self._proven.discard(entry.offset)

    def block_topic(self, topic: str, reason: str) -> None:
        """Offer nothing to this topic for a while.

        So an unwritable topic delays the others once per back-off, by the produce time-out, and not once per message.
        """
        block = self._blocks.setdefault(topic, _Block())
        # A random factor: if several topics were blocked because one of them is at fault, they must not return
        # together.
        until = self._outside.monotonic() + block.backoff.next() * self._outside.uniform(0.5, 1.5)
        block.together, block.until = 1, until + _UNUSED_S
        self._topics[topic] = _Answer(until, reason)

    def worked(self, topics: Iterable[str]) -> None:
        """Note that records for these topics were committed."""
        for topic in topics:
            if (limit := self._limits.get(topic)) is not None:
                limit.refusals = 0
            if (block := self._blocks.get(topic)) is not None:
                block.backoff.reset()
                block.together *= _PROBE_GROWS
                if block.together >= _PROBES_END:
                    del self._blocks[topic]

    def forget(self) -> None:
        """Forget all answers, after a write failed for a reason that names no record."""
        self._topics.clear()


def _problem(topic: str, error: KafkaError) -> str | None:
    """The error as a reason to wait, or None when Kafka did not answer, which says nothing about the topic."""
    if error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC}:
        return f"topic {topic} does not exist"
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"{_DENIED} DESCRIBE topic {topic}"
    if error.code() == KafkaError.TOPIC_EXCEPTION:
        return f"topic {topic} is not a legal name"
    # librdkafka's own errors are negative. A broker's error is about this topic only, and must not stop the others.
    return f"topic {topic}: {error.str()}" if error.code() > 0 else None
