"""Memory of the topics that a worker writes to: existence, rights, rules, refused records; and bodies for them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from txbridge.core import names
from txbridge.core.half_entry import HalfEntry
from txbridge.core.half_message import HalfMessage, half_headers
from txbridge.core.names import CHECK_TOPIC, Names
from txbridge.core.plan.choice import Room
from txbridge.core.plan.draft import Draft
from txbridge.kafka.admin import KafkaCluster
from txbridge.kafka.body_cache import BodyCache
from txbridge.kafka.config import BATCH_BYTES
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import UnansweredError
from txbridge.kafka.topic_lookup import DENIED, TOO_LARGE, LookedUpTopic, TopicMemory, partition_problem
from txbridge.log import get_logger
from txbridge.worker.gates.lanes import TopicLanes

#: Bytes of a batch beyond its records, rounded up.
_BATCH_ROOM = 100
#: Most flushes that topics with a small max.message.bytes may cost one Kafka transaction: 500 take about a second.
_MOST_FLUSHES = 500.0
#: A logged right is forgotten when the topic was not tried for this long (s). Checks are tried again within a minute.
_UNUSED_S = 120.0
#: Old entries are dropped at most this often: a drop looks at every entry.
_DROP_EVERY_S = 1.0


_log = get_logger("txbridge.worker")


#: Half offset, key, timestamp (ms) and size (bytes) of a record.
RecordFacts = tuple[int, bytes | None, int, int]


class TopicHealth:
    """Answers from memory whether a message can be delivered; `look_up` asks Kafka beforehand. Not thread-safe.

    `batch_bytes` is the producer's batch.size: a topic that takes fewer bytes gets smaller batches.
    """

    def __init__(
        self, cluster: KafkaCluster, memory: TopicMemory, outside: Outside = OUTSIDE, batch_bytes: int = BATCH_BYTES
    ) -> None:
        self._outside = outside
        self._cluster = cluster
        self._memory = memory
        self._batch_bytes = batch_bytes
        self.lanes = TopicLanes()
        self._topics: dict[str, LookedUpTopic] = {}
        #: Monotonic time (s) of the next drop of old entries.
        self._next_drop = 0.0
        #: Check topics whose missing right was logged, with the monotonic time (s) at which that is forgotten.
        self._denied: dict[str, float] = {}
        #: Bytes of records that may go together, by topic, for topics that take fewer than a batch has.
        self.limits: Mapping[str, int] = {}
        self._flushes_left = _MOST_FLUSHES

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask Kafka about topics whose answer is old. Never creates a topic. Raises UnansweredError.

        What Kafka has answered by then is remembered, so that the next call asks about the rest.
        """
        now = self._outside.monotonic()
        # Also when nothing is asked for: a topic that was blocked is tried again once its entry is gone.
        if now >= self._next_drop:
            self._drop_old(now)
        unknown = {topic for topic in topics if topic not in self._topics or self._topics[topic].until <= now}
        if not unknown:
            return
        found = self._memory.look_up(self._cluster, unknown, now)
        for topic, answer in found.items():
            self._log_denied(topic, answer.problem, now)
        self._topics |= found
        self._find_limits()

    def why_endless(self, topics: Collection[str]) -> str | None:
        """Reason why a Kafka transaction that writes to these topics would not end, or None. Raises as `look_up`."""
        for topic, answer in self._memory.look_up(self._cluster, topics, self._outside.monotonic()).items():
            if (why := answer.rules.problem) is not None:
                self._topics[topic] = answer
                return f"topic {topic}: {why}"
        return None

    def _drop_old(self, now: float) -> None:
        """Drop entries that say nothing any more: clients can name any number of topics, and topics come and go."""
        self._next_drop = now + _DROP_EVERY_S
        self._topics = {topic: answer for topic, answer in self._topics.items() if answer.until > now}
        self._denied = {topic: until for topic, until in self._denied.items() if until > now}
        self._find_limits()
        self.lanes.drop_unused(now)

    def _find_limits(self) -> None:
        self.limits = {
            topic: max(1, most - _BATCH_ROOM)
            for topic, answer in self._topics.items()
            if (most := answer.rules.largest_batch) is not None and most < self._batch_bytes
        }

    def _log_denied(self, topic: str, problem: str | None, now: float) -> None:
        """Log a missing right on a check topic. A held message shows its reason; a group without checks does not."""
        if CHECK_TOPIC not in topic or problem is None or not problem.startswith(DENIED):
            self._denied.pop(topic, None)
            return
        if topic not in self._denied:
            _log.warning("check_refused", topic=topic, error=problem)
        self._denied[topic] = now + _UNUSED_S

    def problem_of(self, topic: str) -> str | None:
        """Reason why nothing can be written to this topic as of the last look-up, or None."""
        known = self._topics.get(topic)
        return None if known is None else known.problem

    def is_open(self, topic: str) -> bool:
        """Whether Kafka was asked about this topic, and it takes records now."""
        return topic in self._topics and self.why_closed(topic) is None

    def why_closed(self, topic: str) -> str | None:
        """Reason why this topic takes nothing among the records of others, or None."""
        return self.problem_of(topic) or self.lanes.reason_to_hold([topic], self._outside.monotonic())

    def problem_of_partition(self, topic: str, partition: int) -> str | None:
        """Reason why nothing can be written to this partition of an existing topic as of the last look-up, or None."""
        known = self._topics.get(topic)
        if known is None or known.partitions is None:
            return None
        return partition_problem(topic, known.partitions, partition)

    def begin_draft(self) -> None:
        self._flushes_left = _MOST_FLUSHES

    @property
    def room(self) -> Room | None:
        """Function to call for each message before it is drafted; None when there is room for all."""
        return self._has_room if self.limits or self.lanes else None

    def _has_room(self, entry: HalfEntry) -> bool | None:
        """Whether this draft may hold one more message of its topics; None if one takes nothing. Uses up the room."""
        topics, now = entry.topics, self._outside.monotonic()
        for topic in topics:
            known = self._topics.get(topic)
            if known is not None and known.problem is not None and known.until > now:
                return None
        if self.lanes.reason_to_hold(topics, now) is not None:
            return None
        limits = [self.limits[topic] for topic in topics if topic in self.limits]
        if limits:
            if self._flushes_left <= 0:
                return False
            # The share of each topic in several messages is not known, so this is an upper bound.
            self._flushes_left -= min(entry.messages, entry.size / min(limits))
        return True

    def are_clear(self, topics: AbstractSet[str]) -> bool:
        """Whether every fresh message can be delivered to these topics now, as far as is known.

        A message that its topic has refused is not fresh any more.
        """
        return not any(
            topic in self.limits or topic in self.lanes or self.problem_of(topic) is not None for topic in topics
        )

    def obstacle_of_new(self, entry: HalfEntry) -> str | None:
        """Reason why a newly committed message cannot be delivered now, or None."""
        if not self.lanes:
            return self.problem_of_any(entry) or self._size_problem(entry)
        topics, now = entry.topics, self._outside.monotonic()
        why = self.lanes.refusal_of(entry.offset, topics) or self.problem_of_any(entry) or self._size_problem(entry)
        return why or self.lanes.reason_to_hold(topics, now)

    def obstacle_of_held(self, entry: HalfEntry) -> str | None:
        """Reason why a held message cannot be delivered now, or None. It may wait for a probe then."""
        why, now = self.problem_of_any(entry), self._outside.monotonic()
        if why is None and (why := self._size_problem(entry)) is not None:
            # Compressed, it may be small enough, and the limit may be raised.
            self.lanes.lane_of(entry.real_topic, why, now).set_apart(entry.offset, why)
        waits = self.lanes.let_wait(entry.offset, entry.topics, now)
        return why or waits

    def problem_of_any(self, entry: HalfEntry) -> str | None:
        """Problem of any topic of the entry: one message that has to wait holds its whole transaction."""
        if entry.messages == 1:
            return self.problem_of(entry.real_topic)
        return next(filter(None, map(self.problem_of, entry.topics)), None)

    def _size_problem(self, entry: HalfEntry) -> str | None:
        """Reason why a topic with small batches, or one that has refused something, may not take so many bytes.

        None for several messages: their sum says nothing about each.
        """
        topic = entry.real_topic
        if entry.messages > 1 or not (topic in self.limits or topic in self.lanes):
            return None
        if (known := self._topics.get(topic)) is None:
            return None
        limits = (known.rules.largest_batch, self.lanes.too_large_for(topic) - 1)
        is_too_large = entry.size > min(limit for limit in limits if limit is not None)
        return f"topic {topic}: {TOO_LARGE}" if is_too_large else None

    def refusal_of(self, topic: str, key: bytes | None, timestamp: int, now: int) -> str | None:
        """Reason why this topic, which has refused records, refuses this one by its rules, too. None if it may not."""
        known = self._topics.get(topic) if topic in self.lanes else None
        why = None if known is None else known.rules.refusal_of(key, timestamp, now)
        if why is None:
            return None
        why = f"topic {topic}: {why}"
        self.lanes.lane_of(topic, why, self._outside.monotonic())
        return why

    def explain_refusal(self, topic: str, reason: str, records: Iterable[RecordFacts], now: int) -> bool:
        """Compare the messages of a topic that has refused one with its rules from now on.

        Returns whether they refuse one of these records, or have changed.
        """
        known = self._topics.pop(topic, None)
        self.lanes.lane_of(topic, reason, self._outside.monotonic())
        self._memory.forget()
        try:
            self.look_up([topic])
        except UnansweredError:
            return False
        rules = self._topics[topic].rules
        if known is not None and known.rules != rules:
            return True
        most = sys.maxsize if rules.largest_batch is None else rules.largest_batch
        return any(size > most or rules.refusal_of(key, time, now) is not None for _, key, time, size in records)

    def note_refusal(self, topic: str, offset: int, reason: str) -> None:
        """Note that the topic would refuse this message. It is held, or not checked, so that the others can pass."""
        now = self._outside.monotonic()
        lane = self.lanes.lane_of(topic, reason, now)
        if offset in lane.again and now >= lane.retry_at:
            # Its probe has ended before Kafka. Without a pause the next one would follow at once, and so on.
            lane.pause_retries(now)
        self.lanes.leave_waiting({offset})
        lane.set_apart(offset, reason)

    def on_committed(self, draft: Draft, names: Names, *, has_discards: bool) -> None:
        """Note what a committed draft shows: messages that are held now, others that are finished, topics that work."""
        if not self.lanes:
            return
        now = self._outside.monotonic()
        for entry in draft.held:
            due = draft.part_of(entry)
            if self.lanes.refusal_of(entry.offset, due.topics) is None and self._size_problem(due) is None:
                self.lanes.let_wait(entry.offset, due.topics, now)
        for entry in draft.checks:
            self.lanes.note_checked(entry, names.check(entry.group))
        finished = [offset for _, offsets in draft.ops() for offset in offsets]
        self.lanes.leave_waiting({*finished, *(entry.offset for entry in draft.deliver)})
        working = {names.check(entry.group) for entry in draft.checks} | ({names.discard} if has_discards else set())
        for topic in working:
            self.lanes.note_taken(topic, (), now)

    def block_topic(self, topic: str, reason: str) -> float:
        """Offer nothing to this topic for a while. Returns for how long (s).

        So an unwritable topic delays the others once per back-off, by the produce time-out, and not once per message.
        """
        now = self._outside.monotonic()
        until = self.lanes.block_topic(topic, reason, now, self._outside.uniform(0.5, 1.5))
        self._topics[topic] = LookedUpTopic(until, reason)
        return until - now

    def forget_answers(self) -> None:
        """Forget all answers, after a write failed for a reason that names no record."""
        self._topics.clear()
        self._memory.forget()


#: Reasons to hold a commit without a body.
_GONE = "retention has deleted its half message from HALF"
_ANOTHER = "another message stands at its offset in HALF: the log has lost its tail and has grown again"


def load_bodies(draft: Draft, cache: BodyCache, topics: TopicHealth) -> dict[int, HalfMessage] | None:
    """Bodies of all messages that the draft copies, by half offset. None when a delivery has to be held.

    `draft.now` is taken for the clock of the brokers that check timestamps.
    """
    entries = [*draft.deliver, *draft.checks, *draft.discards, *(one.entry for one in draft.abandoned)]
    if not entries:
        return {}
    bodies = cache.load([entry.offset for entry in entries])
    gone = [entry for entry in entries if entry.offset not in bodies]
    others = [entry for entry in entries if entry.offset in bodies and not _is_of(entry, bodies[entry.offset])]
    for entry in others:
        # The log has lost its tail and grown again: another transaction's message stands there.
        del bodies[entry.offset]
    undeliverable = False
    for entry in draft.deliver:
        half = bodies.get(entry.offset)
        if half is None:
            why: str | None = _GONE if entry in gone else _ANOTHER
        else:
            why = _why_not(half, topics, draft)
        if why is not None:
            topics.note_refusal(entry.topics[0], entry.offset, why)
            undeliverable = True
    if undeliverable:
        return None
    bodies.update((entry.offset, _without_body(entry)) for entry in (*gone, *others))
    return bodies


def _why_not(half: HalfMessage, topics: TopicHealth, draft: Draft) -> str | None:
    """Reason why a topic of what the draft delivers does not take it, as far as that is known beforehand, or None."""
    now = draft.now
    if half.messages is None:
        why = None if half.real_partition is None else topics.problem_of_partition(half.real_topic, half.real_partition)
        return why or topics.refusal_of(half.real_topic, half.key, half.delivered_timestamp, now)
    if not (half.names_partitions or any(topic in topics.lanes for topic in names.topics_of(half.real_topic))):
        return None
    messages, part = half.framed, draft.due_parts.get(half.offset)
    for one in messages if part is None else [messages[index] for index in sorted(part.indices_in(messages))]:
        why = None if one.partition is None else topics.problem_of_partition(one.topic, one.partition)
        why = why or topics.refusal_of(one.topic, one.key, half.born if one.timestamp is None else one.timestamp, now)
        if why is not None:
            return why
    return None


def _is_of(entry: HalfEntry, half: HalfMessage) -> bool:
    """Whether the half message belongs to the transaction of the entry."""
    if (half.transaction_id, half.group) != (entry.transaction_id, entry.group):
        return False
    # Of messages with different times, an entry to be delivered has the topics of those that are due.
    return half.real_topic == entry.real_topic or (
        entry.is_timed and {*entry.topics} <= {*names.topics_of(half.real_topic)}
    )


def _without_body(entry: HalfEntry) -> HalfMessage:
    """A substitute for a half message that is gone from HALF, so that its discard record can still be written."""
    same: dict[str, Any] = {
        "transaction_id": entry.transaction_id,
        "group": entry.group,
        "real_topic": entry.real_topic,
    }
    headers = half_headers((), **same)
    return HalfMessage.of(
        **same,
        offset=entry.offset,
        born=entry.born,
        headers=[*headers, (names.ERROR, b"HALF no longer has the half message")],
    )
