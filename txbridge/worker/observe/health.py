"""Liveness and readiness of this worker, never from memory alone.

Ready means two things. A recent answer of the group's coordinator says that this process is a member. And every
partition that the process has is restored and served. So a worker that was paused, cut off or overtaken is not ready,
whatever its own state says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from txbridge.log import get_logger
from txbridge.worker.observe.metrics import PartitionFacts
from txbridge.worker.partitions import Assignment, Worker

#: How often the coordinator is asked: one small request. So an answer may be this old.
_ASK_EVERY_S = 2.0
#: An answer counts for the session time-out, after which the group may have given the partitions to others. It counts
#: for at least _LEAST_FRESH_S, because a coordinator's election takes seconds, and for at most _LONGEST_FRESH_S.
_LEAST_FRESH_S = 6.0
_LONGEST_FRESH_S = 30.0
#: Faust's event loop answers within milliseconds. A loop that has been silent for a minute has missed every heartbeat,
#: and its worker is out of the group. Only a restart helps.
_LOOP_HANGS_AFTER_S = 60.0
#: An owner shows progress whenever it waits for Kafka in a loop. Between two such moments it may, at worst, do all of
#: the following. It opens the fence (2 * 5 s + 30 s), asks for topics (2 * 5 s) and log ends (3 * 5 s), and reads HALF
#: without a record (10 s). It rests after a refused take-over (30 s). It writes, flushes, commits and aborts one Kafka
#: transaction (below).
_OWNER_HANGS_AFTER_S = 105.0
#: The steps of a Kafka transaction, each bounded by the commit time-out.
_STEPS = 4

_log = get_logger("txbridge.worker")


class Health:
    """Asks the coordinator in a thread of its own. Thread-safe."""

    def __init__(
        self, session_timeout_ms: int, commit_timeout_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._fresh_for = min(max(session_timeout_ms / 1000, _LEAST_FRESH_S), _LONGEST_FRESH_S)
        self._owner_limit = _OWNER_HANGS_AFTER_S + _STEPS * commit_timeout_ms / 1000
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_answered = 0.0
        #: Monotonic time (s) of the question, and the last answer.
        self._answer: tuple[float, Assignment] | None = None
        self._error = ""

    # --- worker and event loop --------------------------------------------------------------------------------------

    @property
    def worker(self) -> Worker | None:
        return self._worker

    def look_after(self, worker: Worker) -> None:
        """Take the worker to look after. It has reached Kafka, and its topics are right."""
        self._answer = None
        self._worker = worker

    def look_after_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take Faust's running event loop, or None when it has ended."""
        self._loop_answered = self._clock()
        self._loop = loop

    def start(self) -> None:
        threading.Thread(target=self._run, name="txbridge-health", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.ask()
            self.look_at_topics()
            time.sleep(_ASK_EVERY_S)

    def look_at_topics(self) -> None:
        """Check from time to time whether partitions were added."""
        worker = self._worker
        if worker is None or worker.stopped:
            return
        try:
            worker.partition_counts.look()
        except Exception as error:  # noqa: BLE001 - this thread must go on; that Kafka is away others say
            _log.debug("partitions_not_compared", error=repr(error))

    def ask(self) -> None:
        """Ask the coordinator and the event loop; may wait for the coordinator."""
        loop, worker = self._loop, self._worker
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._note_loop)
            except RuntimeError:
                # The loop was closed just now: Faust has ended, and logs that itself.
                self._loop = None
        if worker is None or worker.stopped:
            return
        asked = self._clock()
        try:
            # The age of an answer counts from its question: it may not know of later events.
            self._answer = (asked, worker.assignment())
        except KafkaException as error:
            self._error = error.args[0].str()
        except TimeoutError:
            self._error = "no answer"
        except Exception as error:  # noqa: BLE001 - this thread must go on; what it does not know makes nobody ready
            self._error = repr(error)

    def _note_loop(self) -> None:
        self._loop_answered = self._clock()

    def facts(self) -> list[PartitionFacts] | None:
        """Facts of the owners; None while the partitions are not known."""
        worker = self._worker
        return None if worker is None or worker.stopped or not worker.was_assigned else worker.facts()

    # --- the answers ------------------------------------------------------------------------------------------------

    def not_live(self) -> list[str]:
        """Problems that only a restart of the process can solve; empty when it lives."""
        reasons = []
        silent = self._clock() - self._loop_answered
        if self._loop is not None and silent > _LOOP_HANGS_AFTER_S:
            reasons.append(f"Faust's event loop has not answered for {silent:.0f} s")
        worker = self._worker
        for owner in () if worker is None else worker.owners():
            if not owner.is_alive():
                reasons.append(f"partition {owner.partition}: its thread has ended")
            elif owner.silent_for > self._owner_limit:
                reasons.append(f"partition {owner.partition}: its thread hangs for {owner.silent_for:.0f} s")
        return reasons

    def not_ready(self) -> list[str]:
        """Reasons why this worker is not ready; empty when it is."""
        worker = self._worker
        if worker is None:
            return ["starting: Kafka was not reached yet, or its topics are not as they must be"]
        if worker.stopped:
            return ["stopping"]
        if not worker.was_assigned:
            return ["the group has not assigned partitions yet"]
        answer = self._answer
        if answer is None:
            return [f"the group's coordinator was not heard yet{self._error and ': '}{self._error}"]
        age = self._clock() - answer[0]
        if age > self._fresh_for:
            return [f"the group's coordinator was not heard for {age:.0f} s: {self._error or 'no answer'}"]
        assignment = answer[1]
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
            elif not owner.serving:
                reasons.append(f"partition {partition}: {owner.error or 'being taken over'}")
            elif owner.clock is not None:
                reasons.append(f"partition {partition}: {owner.clock}")
        if worker.partition_counts.problem is not None:
            reasons.append(worker.partition_counts.problem)
        return reasons
