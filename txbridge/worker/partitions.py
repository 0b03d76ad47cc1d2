"""The partitions of one worker process: one owner, a thread, for each partition that the group assigns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from txbridge.backoff import Backoff
from txbridge.core.decision_record import DecisionEvent
from txbridge.core.half_queue import HalfQueue
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.kafka.admin import Bounds
from txbridge.kafka.errors import (
    FencedError,
    HangingTransactionError,
    LogGoneError,
    ReadStoppedError,
    TakeOverRefusedError,
    UnansweredError,
    UnendedTransactionError,
)
from txbridge.log import get_logger
from txbridge.topics.verify import Layout
from txbridge.worker.ingest.decision_log import DecisionInbox, DecisionLog
from txbridge.worker.observe.metrics import PartitionFacts
from txbridge.worker.partition_context import NoRoomError, PartitionContext, PartitionState
from txbridge.worker.startup import InternalTopics
from txbridge.worker.takeover.restore import take_over, why_unended
from txbridge.worker.turn.commit_loop import CommitLoop

#: Back-off of a take-over. After a fence: two apps on the same topics fence each other, and must leave each other time
#: to work. After a failure: a broker restart takes seconds. Each pause is twice as long as the one before. The back-off
#: starts again after the partition was served for longer than _SERVED_WELL_S.
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 10.0
_SERVED_WELL_S = 30.0
#: A refused take-over needs a person; it is tried again so that no restart is needed once the person has acted.
REFUSED_RETRY_S = 30.0
#: Each owner ends after its current Kafka transaction, which the commit time-out bounds (10 s by default).
STOP_TIMEOUT_S = 15.0
#: A healthy coordinator answers in milliseconds; five seconds span its election.
_ANSWER_TIMEOUT_S = 5.0
#: Pause before a worker without an assignment asks again who is in the group. A dead member is in it until its session
#: ends. The request is small, and the pause is part of the time for which nobody serves.
_ASK_AGAIN_S = 0.25

_Answer = TypeVar("_Answer")

_log = get_logger("txbridge.worker")


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """State of an owner, for health and tests."""

    partition: int
    serving: bool
    error: str | None
    #: Description of a difference between this machine's clock and the brokers'; None while they agree.
    clock: str | None = None


class _Serving(NamedTuple):
    """What an owner has of the partition that it serves. Another thread takes all of it or nothing."""

    state: PartitionState
    decision_log: DecisionLog
    commit_loop: CommitLoop


class PartitionOwner(threading.Thread):
    """Serves one partition. `confirm` tells whether the worker's group still assigns the partition to this worker."""

    def __init__(self, context: PartitionContext, partition: int, confirm: Callable[[int], bool]) -> None:
        super().__init__(name=f"txbridge-partition-{partition}", daemon=True)
        self.partition = partition
        self.inbox = DecisionInbox(context.outside, next_event=partial(context.next_event, partition))
        self._context = context
        self._outside = context.outside
        self._confirm = confirm
        self._stopping = threading.Event()
        self._backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self._must_confirm = False
        self._error: str | None = None
        #: None while the partition is not served.
        self._service: _Serving | None = None
        #: END offset up to which decisions were applied when the partition was last served.
        self._left_at: int | None = None
        #: Questions that this thread answers between two turns.
        self._questions: deque[tuple[Callable[[HalfQueue], Any], Future[Any]]] = deque()
        #: Monotonic time (s) of this thread's last sign of progress.
        self._seen = context.outside.monotonic()

    @property
    def status(self) -> OwnerStatus:
        serving = self._service
        clock = None if serving is None else serving.commit_loop.clock.problem
        return OwnerStatus(self.partition, serving is not None, self._error, clock)

    @property
    def applied(self) -> int | None:
        """The END offset up to which decisions are applied; None until the partition is served. For any thread."""
        serving = self._service
        return self._left_at if serving is None else serving.state.queue.next_end

    @property
    def silent_for(self) -> float:
        """Seconds since this thread's last sign of progress. For any thread."""
        return self._outside.monotonic() - self._seen

    def partition_facts(self) -> PartitionFacts:
        """Facts for the metrics. For any thread."""
        serving = self._service
        if serving is None:
            return PartitionFacts(self.partition, serving=False)
        queue, commit_loop = serving.state.queue, serving.commit_loop
        # Read `next_end` first: the known end can only have grown meanwhile.
        applied = queue.next_end
        return PartitionFacts(
            self.partition,
            serving=True,
            open=queue.open_counts(),
            end_lag=max(0, serving.decision_log.known_end - applied),
            checks_overdue=commit_loop.round.watch.overdue,
            clock_ahead=None if (ahead := commit_loop.clock.ahead_ms) is None else ahead / 1000,
        )

    def ask(self, question: Callable[[HalfQueue], _Answer]) -> Future[_Answer]:
        """Have the owner's thread answer from the state of the partition. Cancelled while it is not served."""
        answer: Future[_Answer] = Future()
        self._questions.append((question, answer))
        if self._service is None:
            self._dismiss_questions()
        else:
            self.inbox.wake()
        return answer

    def _dismiss_questions(self) -> None:
        while self._questions:
            self._questions.popleft()[1].cancel()

    def stop(self) -> None:
        """Tell the owner to finish its current Kafka transaction and to end; join() waits for it."""
        self._stopping.set()
        self.inbox.wake()

    def run(self) -> None:
        """Take over and serve the partition. After a failure do it again, until told to stop."""
        while not self._told_to_stop():
            try:
                self._wait_for_confirmation()
                with self._context.slots.one_slot():
                    self._own_partition()
            except Exception as error:  # noqa: BLE001 - nothing may end the partition silently, a defect of ours included
                pause = self._explain_failure(error)
                # Free the state before the pause: the traceback still refers to it.
                error.__traceback__ = None
                self._outside.wait(self._stopping, pause)

    def _told_to_stop(self) -> bool:
        """Whether the owner has to stop. Every loop that waits for Kafka calls this, so it also records progress."""
        self._seen = self._outside.monotonic()
        return self._stopping.is_set()

    def _explain_failure(self, error: Exception) -> float:
        """Log the failure, and return the seconds until the next attempt. A known one is not logged twice in a row."""
        pause = self._backoff.next()
        match error:
            case ReadStoppedError():
                return 0.0
            case FencedError():
                self._must_confirm = True
                self._report_failure("fenced", str(error), warn=True)
            case TakeOverRefusedError() | LogGoneError():
                self._report_failure("refused", str(error))
                return REFUSED_RETRY_S
            case NoRoomError():
                # Another partition may be on its way out: this one is asked for again soon.
                self._report_failure("no_slot", str(error), warn=True)
            case UnendedTransactionError():
                why = why_unended(self._context, self.partition, self._told_to_stop)
                self._report_failure("hanging_transaction", why)
            case HangingTransactionError():
                self._report_failure("hanging_transaction", str(error))
            case KafkaException():
                self._report_failure("kafka_unavailable", error.args[0].str(), warn=True)
            case TimeoutError() | TxBridgeError():
                self._report_failure("kafka_unavailable", str(error) or repr(error), warn=True)
            case _:
                self._error = repr(error)
                self._context.metrics.count_failure("unexpected_error")
                _log.error("unexpected_error", partition=self.partition, exc_info=error)
        return pause

    def _report_failure(self, event: str, text: str, *, warn: bool = False) -> None:
        self._context.metrics.count_failure(event)
        if text != self._error:
            (_log.warning if warn else _log.error)(event, partition=self.partition, error=text)
        self._error = text

    def _wait_for_confirmation(self) -> None:
        """After a fence, wait until the group assigns the partition to this process.

        Raises ReadStoppedError, KafkaException, TimeoutError.
        """
        while self._must_confirm:
            if self._told_to_stop():
                raise ReadStoppedError("asked to stop")
            if self._confirm(self.partition):
                self._must_confirm = False
            else:
                self._outside.wait(self._stopping, _FIRST_RETRY_S)

    def _own_partition(self) -> None:
        started = self._outside.monotonic()
        state = take_over(self._context, self.partition, self._told_to_stop)
        try:
            decision_log = DecisionLog(self._context.names, state, self.inbox, self._outside)
            commit_loop = CommitLoop(self._context, state, decision_log)
            commit_loop.prove_ownership()
            seconds = self._outside.monotonic() - started
            self._context.metrics.taken_over(seconds)
            _log.info(
                "partition_taken_over",
                partition=self.partition,
                seconds=round(seconds, 3),
                open=sum(state.queue.open_counts().by_state().values()),
                half=state.queue.watermark,
                end=state.queue.next_end,
            )
            self._error = None
            self._service = _Serving(state, decision_log, commit_loop)
            with self._context.no_longer_held.service():
                self._serve_partition(state.queue, decision_log, commit_loop)
        finally:
            if self._service is not None:
                self._left_at = state.queue.next_end
            self._service = None
            self._dismiss_questions()
            self.inbox.clear_events()
            state.close()

    def _serve_partition(self, queue: HalfQueue, decision_log: DecisionLog, commit_loop: CommitLoop) -> None:
        began = self._outside.monotonic()
        try:
            while not self._told_to_stop():
                self._context.no_longer_held.log_due(self._outside.monotonic())
                while self._questions:
                    question, answer = self._questions.popleft()
                    answer.set_result(question(queue))
                if commit_loop.pause:
                    self._outside.wait(self._stopping, commit_loop.pause)
                    continue
                self.inbox.gather_events(commit_loop.rest)
                try:
                    decision_log.take_in_events(commit_loop.idle)
                    commit_loop.run()
                except UnansweredError as error:
                    # The state is as before. A take-over would have to ask more, with new clients.
                    self._outside.wait(self._stopping, self._explain_failure(error))
                else:
                    if self._error is not None:
                        self._error = None
                        self._backoff.reset()
        finally:
            if self._outside.monotonic() - began > _SERVED_WELL_S:
                self._backoff.reset()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The coordinator's answer about this process."""

    #: Whether the group is stable, so that no rebalance is under way.
    stable: bool
    member: bool
    partitions: frozenset[int]
    #: Partitions of END that no member of the group has.
    uncovered: frozenset[int] = frozenset()


class Worker:
    """Starts and stops owners as the group's assignment changes. `client_id` is unique to this process in the group."""

    def __init__(self, context: PartitionContext, group: str, client_id: str, start: Layout) -> None:
        self._context, self.names = context, context.names
        self._group = group
        self._client_id = client_id
        self._lock = threading.Lock()
        self._owners: dict[int, PartitionOwner] = {}
        #: Check that the internal topics are still those of the start.
        self.internal_topics = InternalTopics(context.cluster, context.names, context.metrics, start)
        #: Whether the group has made an assignment yet, possibly an empty one.
        self.was_assigned = False
        self.stopped = False

    def assume_partitions(self) -> None:
        """Until the first assignment: serve all partitions as soon as the group has no other member. Waits for that.

        Kafka lets the first member of an empty group wait for others (group.initial.rebalance.delay.ms, 3 s by
        default). Nothing needs that wait, because the fence proves ownership and not the group. When several workers
        start together, each fences those before it, and a fenced owner waits until the group confirms it.
        """
        while not self._is_alone():
            self._context.outside.wait(threading.Event(), _ASK_AGAIN_S)
            if self.was_assigned or self.stopped:
                return
        with self._lock:
            if not (self.was_assigned or self.stopped):
                partitions = range(self._context.metrics.partitions_found)
                _log.info("partitions_assumed", partitions=list(partitions))
                self._start_owners(partitions)

    def assign_partitions(self, partitions: Iterable[int]) -> None:
        """Take the group's assignment: exactly these partitions.

        Owners that stay keep their state: the fence proves ownership. Returns at once: take-overs run in the owners'
        threads.
        """
        wanted = set(partitions)
        with self._lock:
            if self.stopped:
                return
            gone = [self._owners.pop(partition) for partition in self._owners.keys() - wanted]
            for owner in gone:
                owner.stop()
            self._start_owners(wanted - self._owners.keys())
            self.was_assigned = True

    def _start_owners(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            owner = PartitionOwner(self._context, partition, self.is_assigned)
            self._owners[partition] = owner
            owner.start()

    def offer_event(self, partition: int, event: DecisionEvent) -> None:
        """Pass an END event from Faust to the owner of its partition."""
        owner = self._owners.get(partition)
        if owner is not None:
            owner.inbox.offer_event(event)

    def miss_events(self) -> None:
        """Let all owners read END themselves, because Faust has skipped records. They hardly notice a needless call."""
        for owner in self.owners():
            owner.inbox.unlevel()

    def applied_to(self, partition: int) -> int | None:
        """The END offset up to which decisions are applied; None when this worker cannot tell."""
        owner = self._owners.get(partition)
        return None if owner is None else owner.applied

    def assignment(self) -> Assignment:
        """Ask the group's coordinator for the assignment. Raises KafkaException, TimeoutError."""
        answer = self._describe_group()
        end = self._context.names.end
        own, covered = set[int](), set[int]()
        for member in answer.members:
            has = {tp.partition for tp in member.assignment.topic_partitions if tp.topic == end}
            covered |= has
            if member.client_id == self._client_id:
                own |= has
        return Assignment(
            stable=answer.state == ConsumerGroupState.STABLE,
            member=any(member.client_id == self._client_id for member in answer.members),
            partitions=frozenset(own),
            uncovered=frozenset(range(self._context.metrics.partitions_found)) - covered,
        )

    def _is_alone(self) -> bool:
        """Whether the group has no other member. False without an answer."""
        try:
            return all(member.client_id == self._client_id for member in self._describe_group().members)
        except KafkaException as error:
            is_new: bool = error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
            return is_new
        except TimeoutError:
            return False

    def _describe_group(self) -> Any:
        return self._context.membership.ask([self._group])[self._group].result(_ANSWER_TIMEOUT_S)

    def is_assigned(self, partition: int) -> bool:
        """Whether the group's coordinator says that this process has the partition.

        Raises KafkaException, TimeoutError.
        """
        return partition in self.assignment().partitions

    def owners(self) -> list[PartitionOwner]:
        """Owners in the order of their partitions; empty once the worker was told to stop."""
        with self._lock:
            return [] if self.stopped else [owner for _, owner in sorted(self._owners.items())]

    def ask_groups(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """Ask Kafka to describe consumer groups, and return futures; never waits. Raises KafkaException."""
        return self._context.membership.ask(groups)

    def visible_groups(self) -> list[str]:
        """Producer groups that have a check topic; one request. Raises KafkaUnreachableError."""
        prefix = self._context.names.check("")
        cluster = self._context.cluster.within(Bounds(Deadline(_ANSWER_TIMEOUT_S)))
        return [topic.removeprefix(prefix) for topic in cluster.topics_with_prefix(prefix)]

    def status(self) -> list[OwnerStatus]:
        return [owner.status for owner in self.owners()]

    def partition_facts(self) -> list[PartitionFacts]:
        """Facts of all owners, for the metrics."""
        return [owner.partition_facts() for owner in self.owners()]

    def stop(self) -> None:
        """Stop all owners and wait for their current Kafka transactions. `applied_to` still answers afterwards."""
        with self._lock:
            self.stopped = True
            owners = list(self._owners.values())
        for owner in owners:
            owner.stop()
        deadline = Deadline(STOP_TIMEOUT_S)
        for owner in owners:
            owner.join(deadline.left)
        self._context.brokers.close()
