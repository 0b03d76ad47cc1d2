"""The partitions of one worker process: an owner, a thread, for each that the group assigns, and for no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaException

from txbridge.backoff import Backoff
from txbridge.core.end_record import EndEvent
from txbridge.deadline import Deadline
from txbridge.errors import TxBridgeError
from txbridge.kafka.failures import (
    FencedError,
    HangingTransactionError,
    LogGoneError,
    StoppedError,
    TakeOverRefusedError,
)
from txbridge.log import get_logger
from txbridge.worker.commit_loop import CommitLoop
from txbridge.worker.ingest.end_log import EndInbox, EndLog
from txbridge.worker.observe.metrics import PartitionFacts
from txbridge.worker.partition_counts import PartitionCounts
from txbridge.worker.partition_state import PartitionContext, PartitionState
from txbridge.worker.restore import take_over

#: Back-off of a take-over: after being fenced, because two apps on the same topics fence each other and must leave each
#: other time to work; after a failure, because a broker restart takes seconds. Doubled each time, and small again for a
#: partition that was served this long.
_FIRST_RETRY_S = 0.5
_LONGEST_RETRY_S = 10.0
_SERVED_WELL_S = 30.0
#: A refused take-over needs a person; it is tried again so that no restart is needed once the person has acted.
REFUSED_RETRY_S = 30.0
#: All owners end after the Kafka transaction at hand, which its commit time-out bounds (10 s by default).
STOP_TIMEOUT_S = 15.0
#: A healthy coordinator answers in milliseconds; five seconds span its election.
_ANSWER_TIMEOUT_S = 5.0

_log = get_logger("txbridge.worker")


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """What an owner is doing, for health and tests."""

    partition: int
    serving: bool
    error: str | None
    #: That the clocks of this machine and of the brokers differ.
    clock: str | None = None


class PartitionOwner(threading.Thread):
    """Serves one partition. `confirm` tells whether the worker's group still assigns the partition to this worker."""

    def __init__(self, context: PartitionContext, partition: int, confirm: Callable[[int], bool]) -> None:
        super().__init__(name=f"txbridge-partition-{partition}", daemon=True)
        self.partition = partition
        self.inbox = EndInbox(context.outside)
        self._context = context
        self._outside = context.outside
        self._confirm = confirm
        self._stopping = threading.Event()
        self._backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self._must_confirm = False
        self._serving = False
        self._error: str | None = None
        #: What is restored, how far END is known, and what is done with them.
        self._restored: tuple[PartitionState, EndLog, CommitLoop] | None = None
        #: How far END was applied when it was served last.
        self._left_at: int | None = None
        #: When this thread was last seen to do something (monotonic).
        self._seen = context.outside.monotonic()

    @property
    def status(self) -> OwnerStatus:
        restored = self._restored
        clock = None if restored is None else restored[2].clock.problem
        return OwnerStatus(self.partition, self._serving, self._error, clock)

    @property
    def applied(self) -> int | None:
        """END is applied up to this offset; None before the partition was served. For any thread."""
        restored = self._restored
        return self._left_at if restored is None else restored[0].queue.next_end

    @property
    def silent_for(self) -> float:
        """Seconds since this thread was last seen to do something. For any thread."""
        return self._outside.monotonic() - self._seen

    def facts(self) -> PartitionFacts:
        """For the metrics; for any thread."""
        restored = self._restored
        if restored is None:
            return PartitionFacts(self.partition, serving=False)
        queue, end_log, commit_loop = restored[0].queue, restored[1], restored[2]
        # First how far it is applied: the other can only have grown meanwhile.
        applied = queue.next_end
        return PartitionFacts(
            self.partition,
            serving=self._serving,
            open=queue.open_counts(),
            end_lag=max(0, end_log.known_end - applied),
            checks_overdue=commit_loop.checks_overdue,
            clock_ahead=None if (ahead := commit_loop.clock.ahead_ms) is None else ahead / 1000,
        )

    def stop(self) -> None:
        """Finish the Kafka transaction at hand and end; join() waits for it."""
        self._stopping.set()
        self.inbox.wake()

    def run(self) -> None:
        """Take over, serve, and after whatever went wrong do it again, until stopped."""
        while not self._told_to_stop():
            started = self._outside.monotonic()
            try:
                self._wait_for_confirmation()
                self._own()
            except Exception as error:  # noqa: BLE001 - nothing may end the partition silently, a defect of ours included
                if self._outside.monotonic() - started > _SERVED_WELL_S:
                    self._backoff.reset()
                pause = self._explain(error)
                # The state goes before the pause, and with it all that the traceback holds.
                error.__traceback__ = None
                self._outside.wait(self._stopping, pause)

    def _told_to_stop(self) -> bool:
        """Asked in every loop that waits for Kafka, so it also tells that this thread goes on."""
        self._seen = self._outside.monotonic()
        return self._stopping.is_set()

    def _explain(self, error: Exception) -> float:
        """Log what went wrong, once; returns the seconds until the next attempt."""
        pause = self._backoff.next()
        match error:
            case StoppedError():
                return 0.0
            case FencedError():
                self._must_confirm = True
                self._report("fenced", str(error), warn=True)
            case TakeOverRefusedError() | LogGoneError():
                self._report("refused", str(error))
                return REFUSED_RETRY_S
            case HangingTransactionError():
                self._report("hanging_transaction", str(error))
            case KafkaException():
                self._report("kafka_unavailable", error.args[0].str(), warn=True)
            case TimeoutError() | TxBridgeError():
                self._report("kafka_unavailable", str(error) or repr(error), warn=True)
            case _:
                self._error = repr(error)
                self._context.metrics.failed("unexpected_error")
                _log.error("unexpected_error", partition=self.partition, exc_info=error)
        return pause

    def _report(self, event: str, text: str, *, warn: bool = False) -> None:
        self._context.metrics.failed(event)
        if text != self._error:
            (_log.warning if warn else _log.error)(event, partition=self.partition, error=text)
        self._error = text

    def _wait_for_confirmation(self) -> None:
        """After being fenced, own again only what the group says is ours. Raises KafkaException, TimeoutError."""
        while self._must_confirm:
            if self._told_to_stop():
                raise StoppedError("told to stop")
            if self._confirm(self.partition):
                self._must_confirm = False
            else:
                self._outside.wait(self._stopping, _FIRST_RETRY_S)

    def _own(self) -> None:
        started = self._outside.monotonic()
        state = take_over(self._context, self.partition, self._told_to_stop)
        try:
            commit_loop = CommitLoop(self._context, state)
            commit_loop.prove_ownership()
            end_log = EndLog(self._context.names, state, self.inbox, self._outside)
            seconds = self._outside.monotonic() - started
            self._context.metrics.taken_over(seconds)
            _log.info(
                "partition_taken_over",
                partition=self.partition,
                seconds=round(seconds, 3),
                open=sum(state.queue.counts().values()),
                half=state.queue.watermark,
                end=state.queue.next_end,
            )
            self._restored = (state, end_log, commit_loop)
            self._serving, self._error = True, None
            self._serve(end_log, commit_loop)
        finally:
            if self._restored is not None:
                self._left_at = state.queue.next_end
            self._serving, self._restored = False, None
            self.inbox.clear()
            state.close()
            self._context.no_longer_held.tell(None)

    def _serve(self, end_log: EndLog, commit_loop: CommitLoop) -> None:
        while not self._told_to_stop():
            self._context.no_longer_held.tell(self._outside.monotonic())
            if commit_loop.pause:
                self._outside.wait(self._stopping, commit_loop.pause)
                continue
            end_log.fill(commit_loop.idle)
            commit_loop.run(end_log)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the group's coordinator says of this process."""

    #: Whether the group has settled who has what.
    stable: bool
    member: bool
    partitions: frozenset[int]


class Worker:
    """Starts and stops owners as the group's assignment changes. `client_id` is unique to this process in the group."""

    def __init__(self, context: PartitionContext, group: str, client_id: str) -> None:
        self._context = context
        self._group = group
        self._client_id = client_id
        self._lock = threading.Lock()
        self._owners: dict[int, PartitionOwner] = {}
        #: Whether the internal topics still fit together.
        self.partition_counts = PartitionCounts(context.requests, context.names, context.metrics)
        #: Whether the group has assigned anything yet, be it nothing.
        self.was_assigned = False
        self.stopped = False

    def assign(self, partitions: Iterable[int]) -> None:
        """The group assigns exactly these partitions. Owners that stay keep their state: the fence proves ownership.

        Returns at once: take-overs run in the owners' threads.
        """
        wanted = set(partitions)
        with self._lock:
            if self.stopped:
                return
            gone = [self._owners.pop(partition) for partition in self._owners.keys() - wanted]
            for owner in gone:
                owner.stop()
            for partition in wanted - self._owners.keys():
                owner = PartitionOwner(self._context, partition, self.is_assigned)
                self._owners[partition] = owner
                owner.start()
            self.was_assigned = True

    def offer(self, partition: int, event: EndEvent) -> None:
        """An END event of Faust's."""
        owner = self._owners.get(partition)
        if owner is not None:
            owner.inbox.offer(event)

    def applied(self, partition: int) -> int | None:
        """END is applied up to this offset; None when this worker cannot tell."""
        owner = self._owners.get(partition)
        return None if owner is None else owner.applied

    def assignment(self) -> Assignment:
        """What the group's coordinator says. Raises KafkaException, TimeoutError."""
        answer = self._context.membership.ask([self._group])[self._group].result(_ANSWER_TIMEOUT_S)
        end = self._context.names.end
        members = [member for member in answer.members if member.client_id == self._client_id]
        return Assignment(
            stable=answer.state == ConsumerGroupState.STABLE,
            member=bool(members),
            partitions=frozenset(
                tp.partition for member in members for tp in member.assignment.topic_partitions if tp.topic == end
            ),
        )

    def is_assigned(self, partition: int) -> bool:
        """Whether the group's coordinator says that this process has the partition.

        Raises KafkaException, TimeoutError.
        """
        return partition in self.assignment().partitions

    def owners(self) -> list[PartitionOwner]:
        """By partition; none once it was told to stop."""
        with self._lock:
            return [] if self.stopped else [owner for _, owner in sorted(self._owners.items())]

    @property
    def partitions_total(self) -> int:
        """Half partitions of the namespace, whoever has them."""
        return self._context.metrics.partitions_found

    def ask_groups(self, groups: Iterable[str]) -> dict[str, Future[Any]]:
        """Kafka's descriptions of consumer groups, in time; never waits. Raises KafkaException."""
        return self._context.membership.ask(groups)

    @property
    def end_topic(self) -> str:
        return self._context.names.end

    def check_group(self, group: str) -> str:
        """The consumer group that answers the checks of this producer group."""
        return self._context.names.check(group)

    def visible_groups(self) -> list[str]:
        """Producer groups that have a check topic; one request. Raises KafkaException."""
        prefix = self._context.names.check("")
        topics = self._context.admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        return sorted(topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix))

    def status(self) -> list[OwnerStatus]:
        return [owner.status for owner in self.owners()]

    def facts(self) -> list[PartitionFacts]:
        """For the metrics."""
        return [owner.facts() for owner in self.owners()]

    def stop(self) -> None:
        """Stop all owners and wait for the Kafka transactions at hand. `applied` can still be asked."""
        with self._lock:
            self.stopped = True
            owners = list(self._owners.values())
        for owner in owners:
            owner.stop()
        deadline = Deadline(STOP_TIMEOUT_S)
        for owner in owners:
            owner.join(deadline.left)
