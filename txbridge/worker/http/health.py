"""Liveness and readiness of this worker, never from memory alone, and the end of one that serves no more.

Ready means three things. A recent answer of the group's coordinator says that this process is a member, and that its
members together have all partitions. Every partition that the process has is restored and served. And cluster and
internal topics are those of its start. So a worker that was paused, cut off or overtaken is not ready, whatever its own
state says. A partition that another member has and cannot serve is not its matter: that would stop the roll-out of the
repair.

Faust and aiokafka have many tasks, and each may end or wait forever while the process lives. Whatever it was, in the
end the group has lost this member. So the coordinator's answers are the watchdog: when they say so for longer than
joining takes, Faust is started again. If that does not help, or only a restart can, the process ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from txbridge.errors import KafkaUnreachableError
from txbridge.kafka.errors import other_cluster
from txbridge.kafka.log_ends import Agreement
from txbridge.log import get_logger
from txbridge.proof import ProofOfLife, rest_after
from txbridge.worker.observe.metrics import PartitionFacts
from txbridge.worker.partitions import Assignment, Worker

#: Faust's event loop answers within milliseconds. A loop that has been silent for a minute has missed every heartbeat,
#: and its worker is out of the group. Only a restart helps.
_LOOP_HANGS_AFTER_S = 60.0
#: An owner shows progress whenever it waits for Kafka in a loop. Between two such moments it may, at worst, do all of
#: the following. It opens the fence (2 * 5 s + 30 s), asks for topics (2 * 5 s) and log ends (3 * 5 s), and reads HALF
#: without a record (10 s). It rests after a refused take-over (30 s). It writes, flushes, commits and aborts one Kafka
#: transaction (below).
_OWNER_HANGS_AFTER_S = 105.0
#: Faust needs at most 20 s to end: 15 s for the owners' Kafka transactions, and one request to leave the group.
_ENDS_WITHIN_S = 30.0
#: Faust joins the group within seconds of its start; a busy machine may need ten times as long.
_FIRST_JOIN_S = 60.0
#: Least number of the coordinator's answers that say that the group has lost this member, and the longest time
#: between two of them: the interval, and one answer that came late.
_LEAST_ANSWERS = 5
_MOST_APART_S = 8.0
#: A process that needs a restart ends after this long. Before that Faust may end by itself, which takes 20 s at most,
#: and after a pause (SIGSTOP) the threads and the event loop have shown progress again.
_END_AFTER_S = 25.0
#: The exit code then: not 0, which is for an end on request, and not 2, which is for a worker that cannot work.
_EXIT_NEEDS_RESTART = 1
#: The group may leave partitions without a member for the session of a dead one, and as long (s) for the rebalance.
_UNCOVERED_AFTER_SESSION_S = 10.0
#: The steps of a Kafka transaction, each bounded by the commit time-out.
_STEPS = 4

_log = get_logger("txbridge.worker")


class Health:
    """Asks the coordinator in a thread of its own. Thread-safe."""

    def __init__(
        self,
        commit_timeout_ms: int,
        longest_join_s: float,
        session_timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._clock = clock
        self._end = end
        self._owner_limit = _OWNER_HANGS_AFTER_S + _STEPS * commit_timeout_ms / 1000
        #: The worker to look after; None until it has reached Kafka.
        self.worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_proof = ProofOfLife(clock)
        #: The coordinator's last answer, and its age.
        self._assignment: Assignment | None = None
        self._coordinator = ProofOfLife(clock)
        self._error = ""
        #: Kafka's id of the cluster of this process, and why another one is refused.
        self._cluster_id = self._refused_cluster = ""
        #: Answers that say that nobody has some partitions; their text once there are enough of them.
        self._gaps = Agreement(session_timeout_ms / 1000 + _UNCOVERED_AFTER_SESSION_S, _LEAST_ANSWERS, _MOST_APART_S)
        self._uncovered = ""
        #: Answers that say that the group has lost this member; their text once there are enough of them.
        self._absences = Agreement(longest_join_s, _LEAST_ANSWERS, _MOST_APART_S)
        self._lost = ""
        self._rejoin: Callable[[str], object] | None = None
        self._looked_after_at = 0.0
        self._needs_restart = Agreement(_END_AFTER_S, _LEAST_ANSWERS, _MOST_APART_S)

    def look_after(self, worker: Worker | None) -> None:
        """Take the worker to look after, which has reached Kafka, or None when Faust has ended."""
        self._assignment = None
        self._lost = self._uncovered = ""
        self._absences.note_contradiction()
        self._gaps.note_contradiction()
        self._looked_after_at = self._clock()
        self.worker = worker

    def require_cluster(self, found: str) -> None:
        """Refuse any cluster but the first that this process has found. Raises KafkaUnreachableError."""
        self._cluster_id = self._cluster_id or found
        self._refused_cluster = other_cluster(self._cluster_id, found)
        if self._refused_cluster:
            raise KafkaUnreachableError(self._refused_cluster)

    def look_after_loop(
        self, loop: asyncio.AbstractEventLoop | None, rejoin: Callable[[str], object] | None = None
    ) -> None:
        """Take Faust's running event loop, or None when it has ended.

        `rejoin` is called in the loop, with the reason, when the group has lost this process.
        """
        self._loop_proof.renew()
        self._loop, self._rejoin = loop, rejoin

    def start(self) -> None:
        # One slow answer must not hold up the question for another one.
        for name, steps in (
            ("txbridge-health", (self.ask, self.end_if_hanging)),
            ("txbridge-internal-topics", (self.look_at_topics,)),
        ):
            threading.Thread(target=self._repeat, args=steps, name=name, daemon=True).start()

    def _repeat(self, *steps: Callable[[], None]) -> None:
        while True:
            began = self._clock()
            for step in steps:
                step()
            time.sleep(rest_after(self._clock() - began))

    def look_at_topics(self) -> None:
        """Check whether cluster and internal topics are those of the start."""
        worker = self.worker
        if worker is None or worker.stopped:
            return
        try:
            worker.internal_topics.look_again()
        except Exception as error:  # noqa: BLE001 - this thread must go on; that Kafka is away others say
            _log.debug("topics_not_compared", error=repr(error))
            return
        if worker.internal_topics.is_elsewhere and not self._refused_cluster:
            # Faust's end takes its time there. That is no reason to end the process, which would forget its cluster.
            self._refused_cluster = worker.internal_topics.problem
            self._restart_faust(self._refused_cluster)
        elif worker.internal_topics.were_made_again:
            self._end(_EXIT_NEEDS_RESTART)

    def ask(self) -> None:
        """Ask the coordinator and the event loop; may wait for the coordinator."""
        loop, worker = self._loop, self.worker
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._loop_proof.renew)
            except RuntimeError:
                # The loop was closed just now: Faust has ended, and logs that itself.
                self._loop = None
        if worker is None or worker.stopped:
            return
        asked = self._clock()
        try:
            self._assignment = assignment = worker.assignment()
            self._coordinator.renew(self._clock() - asked)
            self._compare_with_group(asked, worker, assignment)
        except KafkaException as error:
            self._error = error.args[0].str()
        except TimeoutError:
            self._error = "no answer"
        except Exception as error:  # noqa: BLE001 - this thread must go on; what it does not know makes nobody ready
            self._error = repr(error)

    def _compare_with_group(self, asked: float, worker: Worker, assignment: Assignment) -> None:
        if assignment.stable and not assignment.uncovered:
            self._gaps.note_contradiction()
            self._uncovered = ""
        elif assignment.stable and self._gaps.note(asked):
            self._uncovered = f"no member of the group has partitions {sorted(assignment.uncovered)}"
        if not worker.was_assigned and asked - self._looked_after_at < _FIRST_JOIN_S:
            return
        # A worker that was alone in its group may serve them without Faust.
        owned = {owner.partition for owner in worker.owners()} if worker.was_assigned else set[int]()
        if not assignment.member:
            problem = "the group does not have this process as a member"
        elif assignment.stable and assignment.partitions != owned:
            problem = f"Faust has passed on partitions {sorted(owned)}, not {sorted(assignment.partitions)} as assigned"
        else:
            self._absences.note_contradiction()
            self._lost = ""
            return
        if self._absences.note(asked) and not self._lost:
            self._lost = problem
            self._restart_faust(problem)

    def _restart_faust(self, problem: str) -> None:
        if self._loop is not None and self._rejoin is not None:
            self._loop.call_soon_threadsafe(self._rejoin, problem)

    def end_if_hanging(self) -> None:
        """End the process if it has needed a restart for _END_AFTER_S: not every worker has a supervisor that asks."""
        reasons = self.not_live()
        if not reasons:
            self._needs_restart.note_contradiction()
        elif self._needs_restart.note(self._clock()):
            _log.error("worker_hangs", reasons=reasons, note="the process ends; Kafka aborts its open transactions")
            self._end(_EXIT_NEEDS_RESTART)

    def partition_facts(self) -> list[PartitionFacts] | None:
        """Facts of the owners; None while the partitions are not known."""
        worker = self.worker
        if worker is None or worker.stopped:
            return None
        facts = worker.partition_facts()
        return facts if facts or worker.was_assigned else None

    def not_live(self) -> list[str]:
        """Problems that only a restart of the process can solve; empty when it lives."""
        reasons = []
        silent = self._loop_proof.age
        if self._loop is not None and silent > _LOOP_HANGS_AFTER_S:
            reasons.append(f"Faust's event loop has not answered for {silent:.0f} s")
        if self._lost:
            reasons.append(self._lost)
        worker = self.worker
        if worker is not None and worker.stopped and silent > _ENDS_WITHIN_S:
            reasons.append(f"Faust has not ended for {silent:.0f} s")
        for owner in () if worker is None else worker.owners():
            if not owner.is_alive():
                reasons.append(f"partition {owner.partition}: its thread has ended")
            elif owner.silent_for > self._owner_limit:
                reasons.append(f"partition {owner.partition}: its thread hangs for {owner.silent_for:.0f} s")
        return reasons

    def not_ready(self) -> list[str]:
        """Reasons why this worker is not ready; empty when it is."""
        worker = self.worker
        if worker is None:
            return [
                self._refused_cluster or "starting: Kafka was not reached yet, or its topics are not as they must be"
            ]
        problems = (worker.internal_topics.problem, self._uncovered)
        return [*filter(None, problems), *self._not_served(worker)]

    def _not_served(self, worker: Worker) -> list[str]:
        if worker.stopped:
            return ["stopping"]
        if not worker.was_assigned:
            return ["the group has not assigned partitions yet"]
        assignment = self._assignment
        if assignment is None:
            return [f"the group's coordinator was not heard yet{self._error and ': '}{self._error}"]
        if not self._coordinator.is_fresh:
            age = self._coordinator.age
            return [f"the group's coordinator was not heard for {age:.0f} s: {self._error or 'no answer'}"]
        if not assignment.member:
            return ["not a member of the group"]
        if not assignment.stable:
            return ["the group is rebalancing"]
        status = {owner.partition: owner for owner in worker.status()}
        reasons = []
        for partition in sorted(assignment.partitions | status.keys()):
            owner = status.get(partition)
            if owner is None:
                reasons.append(f"partition {partition}: assigned, not begun yet")
            elif not owner.serving or owner.error is not None:
                reasons.append(f"partition {partition}: {owner.error or 'being taken over'}")
            elif owner.clock is not None:
                reasons.append(f"partition {partition}: {owner.clock}")
        return reasons
