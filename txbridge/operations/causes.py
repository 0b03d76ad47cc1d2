"""Causes of open messages, in words that many messages share, and the next step for each message.

A person can read ten causes, but not ten thousand messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.kafka.admin import ALIKE
from txbridge.kafka.errors import is_missing_topic
from txbridge.kafka.group_membership import GroupMembership
from txbridge.operations.connection import Connection
from txbridge.operations.model import NextStep, OpenMessage, Selection
from txbridge.text import duration

#: The reason why nobody answers checks of a group; empty if somebody can, None if it is not known (`GroupStates`).
ProblemOf = Callable[[str], str | None]
#: Time (ms) after which a due step is overdue. A worker takes each step as soon as it is due.
OVERDUE_MS = 60_000
#: The reason if nobody reads a group's checks.
NOBODY = "no member of the group is connected, to Kafka or a front door"

#: What to do about messages in a state, where a person can do something.
REMEDIES = {
    TransactionState.HELD: "create the topic, grant the right or raise its limit; they are tried again within a minute",
    TransactionState.DISCARDED: "mend the application, then `txbridge resume`",
}
#: What to do about pending messages of a group that nobody answers for.
START_IT = (
    "start the application; a producer at a front door is a member up to 30 s after it has connected. One of Java from "
    "5.1.2 on connects when it sends first: since 5.2, name the topics in its constructor. Or decide by hand: "
    "`txbridge pending`, `txbridge resolve`"
)

#: Time (s) for all groups. Each takes two requests of milliseconds, one after the other. But a client can invent any
#: number of groups, and a coordinator may not answer. Without an answer a cause is only less exact.
_LONGEST_S = 5.0
#: Time-out (s) of a request that begins at the end of it: librdkafka refuses 0.
_LEAST_S = 0.1


def remedy_of(state: TransactionState, problem: str | None) -> str:
    """What a person can do about open messages in this state; `problem` is that of their group (ProblemOf)."""
    return START_IT if state is TransactionState.PENDING and problem else REMEDIES.get(state, "")


def is_overdue(message: OpenMessage, now: int) -> bool:
    """Whether its check, discard or first delivery should have taken place more than a minute ago."""
    waits = message.next_step in {NextStep.CHECK, NextStep.DISCARD, NextStep.DELIVER} and message.stored is None
    return waits and message.next_due is not None and now - message.next_due > OVERDUE_MS


def cause_of(message: OpenMessage, now: int, problem_of: ProblemOf = lambda _: None) -> str:
    """The cause that keeps a message open; the text begins with the state."""
    state, group = message.state.value, message.group
    if message.stored is not None:
        return f"{state}, decided: no worker has applied it yet"
    if message.gone:
        return f"{state}, and the half topic no longer has its body: cannot be delivered"
    match message.state:
        case TransactionState.HELD:
            return f"held for topic {message.real_topic}: {message.error or 'the reason is not known'}"
        case TransactionState.SCHEDULED if is_overdue(message, now):
            return f"scheduled for topic {message.real_topic}, overdue: no worker serves the partition"
        case TransactionState.SCHEDULED:
            return f"scheduled for topic {message.real_topic}: its time has not come"
        case TransactionState.DISCARDED:
            return f"discarded, group {group}: {message.reason or 'the reason is not known'}; can be resumed"
    return f"pending, group {group}{_why_pending(message, now, problem_of(group))}"


def _why_pending(message: OpenMessage, now: int, problem: str | None) -> str:
    if message.parked and message.error is not None:
        return f", cannot be asked: {message.error}"
    if is_overdue(message, now):
        if problem == "":
            return ", overdue: no worker serves the partition"
        return f", overdue: {problem or f'no worker serves the partition, or {NOBODY}'}"
    state = "asked, and not decided yet" if message.checks else "not asked yet"
    return f": {state}; {problem}" if problem else f": {state}"


def cause_if(
    selection: Selection, message: OpenMessage, now: int, problem_of: ProblemOf = lambda _: None
) -> str | None:
    """The cause that keeps a message open; None if the selection does not include the message."""
    if not selection.includes_message(message, now):
        return None
    cause = cause_of(message, now, problem_of)
    return cause if (selection.cause or "").lower() in cause.lower() else None


def next_step_of(message: OpenMessage, now: int) -> str:
    """The next step of the worker and its time, as `check in 12s` or `1 of 3 delivered, deliver in 20s`."""
    if message.stored is not None:
        return f"{message.stored}, not applied yet"
    step = f"{message.progress}, {message.next_step.value}" if message.progress else message.next_step.value
    if message.next_due is None:
        return f"{step} within a minute"
    if message.next_due > now:
        return f"{step} in {duration(message.next_due - now)}"
    return f"{step} due for {duration(now - message.next_due)}"


def trouble_of(message: OpenMessage) -> str:
    """Reason of a discard, loss of the body and last error, as far as they are known."""
    gone = "the half topic no longer has its body" if message.gone else None
    return "; ".join(text for text in (message.reason, gone, message.error) if text)


class GroupStates:
    """Kafka's answers about producer groups. Each group is asked about once, when a cause needs it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._problems: dict[str, str | None] = {}
        self._deadline: Deadline | None = None

    def problem_of(self, group: str) -> str | None:
        """The reason why nobody answers checks of the group; empty if somebody can, None if Kafka does not say."""
        if self._deadline is None:
            self._deadline = Deadline(_LONGEST_S)
        if group not in self._problems and not self._deadline.is_over:
            try:
                self._problems[group] = self._ask_kafka(group, self._deadline)
            except (KafkaException, TimeoutError, TxBridgeError):
                # No answer, or a right is missing.
                self._problems[group] = None
        return self._problems.get(group)

    @cached_property
    def _membership(self) -> GroupMembership:
        return GroupMembership(self._connection.cluster.make_client)

    def _ask_kafka(self, group: str, deadline: Deadline) -> str:
        name = self._connection.names.check(group)
        # Not list_topics: librdkafka would keep the name of every group that has no check topic.
        described = self._connection.cluster.describe_topics([name], max(deadline.left, _LEAST_S))[name].exception()
        if described is not None:
            if is_missing_topic(described):
                for topic in self._connection.cluster.topics_with_prefix(""):
                    if topic.replace(".", "_") == name.replace(".", "_"):
                        return f"no check topic: {ALIKE}, and there is {topic}. Use its group, or another name"
                return "no check topic: no client of the group has joined yet, or the topic was deleted"
            raise described
        found = self._membership.describe_groups([name], deadline.left)[name]
        if isinstance(found, KafkaError):
            if found.code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise KafkaException(found)
            return NOBODY
        is_empty = not found.members and found.state in {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}
        return NOBODY if is_empty else ""
