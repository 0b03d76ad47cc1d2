"""Comparison of HALF, END, OP and OFFSET with those of the start, while the worker runs.

Kafka lets any user with ALTER add partitions to a topic at any time. A record in a partition that the other topics do
not have is never delivered, and no owner reads it. A topic that was deleted and created again is another one: the state
in memory does not fit it, and Faust's consumer may not learn of it. So each worker compares numbers and ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from txbridge.core.names import Names
from txbridge.kafka.controller_requests import ControllerRequests
from txbridge.kafka.errors import is_missing_topic, other_cluster
from txbridge.log import get_logger
from txbridge.topics.verify import Layout
from txbridge.worker.observe.metrics import WorkerMetrics

_REQUEST_TIMEOUT_S = 5.0
#: Stands for the cluster among the names of the topics.
_CLUSTER = ""

_log = get_logger("txbridge.worker")


class InternalTopics:
    """Compares cluster and topics with those of the start, in the caller's thread. The results are for any thread."""

    def __init__(self, requests: ControllerRequests, names: Names, metrics: WorkerMetrics, start: Layout) -> None:
        self._requests = requests
        #: HALF is the first.
        self._names = list(names.identified.values())
        self._metrics = metrics
        self._start = start
        #: The problem in a sentence; empty if there is none.
        self.problem = ""
        #: Whether another cluster has answered. Nothing may be served there.
        self.is_elsewhere = False
        #: Whether all topics are there, and some are not those of the start. Only a new process fits them.
        self.were_made_again = False

    def look_again(self) -> None:
        """Ask Kafka. Raises KafkaException, TimeoutError; then what is known stays."""
        answers = self._requests.ask(self._describe, _REQUEST_TIMEOUT_S)
        problem = other_cluster(self._start.cluster_id, str(answers.pop(_CLUSTER).result().cluster_id))
        self.is_elsewhere = bool(problem)
        if not problem:
            found = {name: one for name, one in answers.items() if not is_missing_topic(one.exception())}
            problem = self._problem_of({name: one.result() for name, one in found.items()})
            if problem and problem != self.problem:
                self._report(problem)
        self.problem = problem

    def _describe(self, admin: AdminClient, seconds: float) -> Mapping[str, Future[Any]]:
        topics = admin.describe_topics(TopicCollection(self._names), request_timeout=seconds)
        return {**topics, _CLUSTER: admin.describe_cluster(request_timeout=seconds)}

    def _report(self, text: str) -> None:
        self._metrics.count_failure("topics_changed")
        _log.error("topics_changed", error=text)

    def _problem_of(self, found: Mapping[str, Any]) -> str:
        if missing := [name for name in self._names if name not in found]:
            return f"{' and '.join(missing)} do not exist any more: `txbridge topics apply` creates them"
        others = [name for name, one in found.items() if str(one.topic_id) != self._start.topic_ids[name]]
        self.were_made_again = bool(others)
        if others:
            return f"{' and '.join(others)} were deleted and created again: this process ends, to be started anew"
        (half, count), *rest = ((name, len(found[name].partitions)) for name in self._names)
        if different := [f"{name} {number}" for name, number in rest if number != count]:
            return (
                f"{half} has {count} partitions, {' and '.join(different)}: their number was changed. What is sent to "
                "a partition that not all of them have is never delivered, and nobody is asked about it. Partitions "
                "cannot be removed: stop the clients, let what is pending come to its end, and use a new namespace"
            )
        if count != (before := self._metrics.partitions_found):
            # All numbers are equal, so each partition gets an owner. But keys go to other partitions now.
            self._report(
                f"HALF, END, OP and OFFSET have {count} partitions, {before} before: messages of one key that were "
                "prepared before and after may overtake each other"
            )
            self._metrics.found_partitions(count)
        return ""
