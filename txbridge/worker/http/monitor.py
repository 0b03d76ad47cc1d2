"""Monitor of a worker process: its metrics, its health, and the port that serves both, with the status page."""

from __future__ import annotations

import os
import socket
import threading
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from hashlib import sha256
from http import HTTPStatus
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from typing import Any

from confluent_kafka import KafkaException
from prometheus_client import disable_created_metrics

from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.open_messages import OTHER, SLOT_MS
from txbridge.core.states import TransactionState
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.broker_clock import due_by
from txbridge.log import get_logger
from txbridge.operations.causes import NOBODY
from txbridge.web.exchange import PageAnswer
from txbridge.web.web_server import Page, WebServer
from txbridge.worker.faust.settings import longest_join_s
from txbridge.worker.http.health import Health
from txbridge.worker.http.open_board import OpenBoard
from txbridge.worker.observe.metrics import PartitionFacts, WorkerMetrics, brokers_now
from txbridge.worker.partitions import Worker

#: Seconds between the points of a plot, and their number: ten minutes, which show what has just changed.
_SAMPLE_S = 5.0
_SAMPLES = 120
#: The list of producer groups is one request for the names of all topics.
_LIST_EVERY_S = 30.0
#: Most groups asked about: each costs a request, and any client that can write to HALF can invent groups.
_MOST_GROUPS = 50
#: Seconds from now for which the preview counts checks.
_SOON = (10, 60, 600)

_log = get_logger("txbridge.worker")


class StatusBoard:
    """The data of the status page, sampled in a thread of its own; `take_snapshot` returns it. Thread-safe.

    No owner is ever asked or waited for: facts are copies, and counters are only read. This thread alone asks Kafka.
    """

    def __init__(
        self, settings: WorkerSettings, metrics: WorkerMetrics, health: Health, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._health = health
        self._clock = clock
        self._started = clock()
        #: Time, counters, and number of pending messages if that was known.
        self._samples: deque[tuple[float, dict[str, float], int | None]] = deque(maxlen=_SAMPLES)
        self._listed: list[str] = []
        self._listed_at = float("-inf")
        #: By consumer group: the open question to `_asked_of`, and the last answer.
        self._asked: dict[str, Future[Any]] = {}
        self._asked_of: Worker | None = None
        self._members: dict[str, list[Any] | str] = {}
        self._open = OpenBoard(lambda: health.worker, settings.check_policy, self._problem_of)
        #: Last unexpected error that was logged.
        self._told = ""

    def start(self) -> None:
        threading.Thread(target=self._sample_for_ever, name="txbridge-status", daemon=True).start()

    def _sample_for_ever(self) -> None:
        while True:
            self.sample()
            time.sleep(_SAMPLE_S)

    def sample(self) -> None:
        """Take one sample, and ask Kafka who is alive; may wait for Kafka. Never raises."""
        try:
            self._take_sample()
        except (KafkaException, EnvironmentProblemError):
            # Data that Kafka does not return is missing from the page.
            pass
        except Exception as error:  # noqa: BLE001 - this thread must go on, a defect of ours included
            if repr(error) != self._told:
                self._told = repr(error)
                _log.error("unexpected_error", exc_info=error)

    def _take_sample(self) -> None:
        worker = self._health.worker
        answer = self._health.partition_facts()
        facts = answer or []
        pending = sum(sum(slots.values()) for one in facts if one.open for slots in one.open.pending.values())
        self._samples.append((self._clock(), self._metrics.totals(), pending if _are_known(answer) else None))
        if worker is not None and not worker.stopped:
            self._ask_members(worker, self._open_groups(facts))

    def _ask_members(self, worker: Worker, open_groups: Iterable[str]) -> None:
        if worker is not self._asked_of:
            # After a crash of Faust there is another worker. Nobody may answer the questions to the former one.
            self._asked, self._asked_of = {}, worker
        now = time.monotonic()
        if now - self._listed_at > _LIST_EVERY_S:
            self._listed, self._listed_at = worker.visible_groups(), now
        groups = list(dict.fromkeys([*open_groups, *self._listed]))[:_MOST_GROUPS]
        wanted = [self._settings.app_id, *(worker.names.check(group) for group in groups)]
        for name, answer in list(self._asked.items()):
            if answer.done():
                del self._asked[name]
                try:
                    self._members[name] = list(answer.result().members)
                except KafkaException as failure:
                    self._members[name] = failure.args[0].str()
        new = [name for name in wanted if name not in self._asked]
        if new:
            self._asked |= worker.ask_groups(new)
        self._members = {name: answer for name, answer in self._members.items() if name in wanted}

    @staticmethod
    def _open_groups(facts: Iterable[PartitionFacts]) -> list[str]:
        found: Counter[str] = Counter()
        for one in facts:
            if one.open is not None:
                for group, slots in one.open.pending.items():
                    found[group] += sum(slots.values())
                for (group, _), number in one.open.others.items():
                    found[group] += number
        return [group for group, _ in found.most_common(_MOST_GROUPS + 1) if group != OTHER]

    def take_snapshot(self) -> dict[str, Any]:
        """The page's data as JSON values. Times in seconds since 1970 UTC, ages in seconds. Asks nobody."""
        worker, settings = self._health.worker, self._settings
        answer = self._health.partition_facts()
        facts = answer or []
        errors = {one.partition: one.error for one in ([] if worker is None else worker.status())}
        now = self._clock()
        own = int(now * 1000)
        theirs = brokers_now(facts, own)
        return {
            "now": now,
            "worker": {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": version("txbridge"),
                "namespace": settings.namespace,
                "group": settings.app_id,
                "started": self._started,
            },
            "ready": self._health.not_ready(),
            # If this is False, sums over several partitions are too small.
            "complete": _are_known(answer),
            "partitions": {
                "total": self._metrics.partitions_found,
                "here": [_partition(one, errors.get(one.partition)) for one in facts],
                "elsewhere": self._partitions_elsewhere(worker, {one.partition for one in facts}),
            },
            "groups": self._group_rows(worker, facts, theirs),
            "schedule": _schedule(settings.check_policy, facts, due_by(own, theirs)),
            "totals": self._metrics.totals(),
            "rates": self._rates_of(),
        }

    def list_open(self, cause: str) -> dict[str, Any]:
        """The open messages of this worker's partitions as JSON values, with the oldest ones of one cause or of all."""
        facts = self._health.partition_facts() or []
        return self._open.take_snapshot(cause, brokers_now(facts, int(self._clock() * 1000)))

    def _problem_of(self, group: str) -> str | None:
        """See ProblemOf: as Kafka has answered last."""
        worker = self._health.worker
        members = None if worker is None else self._members.get(worker.names.check(group))
        return None if not isinstance(members, list) else "" if members else NOBODY

    def _partitions_elsewhere(self, worker: Worker | None, here: set[int]) -> list[dict[str, Any]]:
        """Workers that have the other partitions: their own pages show these."""
        members = self._members.get(self._settings.app_id)
        if worker is None or not isinstance(members, list):
            return []
        found = []
        for member in members:
            partitions = sorted(
                one.partition for one in member.assignment.topic_partitions if one.topic == worker.names.end
            )
            if partitions and not here & set(partitions):
                found.append({"host": member.host.lstrip("/"), "client": member.client_id, "partitions": partitions})
        return found

    def _group_rows(self, worker: Worker | None, facts: Iterable[PartitionFacts], now: int) -> list[dict[str, Any]]:
        """Rows by producer group; `now` (ms) is the brokers' time."""
        rows: dict[str, dict[str, Any]] = {}

        def row(group: str) -> dict[str, Any]:
            counts = {"pending": 0, "held": 0, "scheduled": 0, "discarded": 0}
            return rows.setdefault(group, {"group": group, **counts, "oldest": None, "alive": None})

        for group in self._listed[:_MOST_GROUPS]:
            row(group)
        for one in facts:
            if one.open is None:
                continue
            for group, slots in one.open.pending.items():
                found = row(group)
                found["pending"] += sum(slots.values())
                age = max(0, now - (min(slots) + 1) * SLOT_MS) / 1000
                found["oldest"] = max(found["oldest"] or 0.0, age)
            for (group, state), number in one.open.others.items():
                row(group)[state.value] += number
        if worker is not None:
            for group, found in rows.items():
                members = self._members.get(worker.names.check(group))
                found["alive"] = len(members) if isinstance(members, list) else None
        ranked = sorted(rows.values(), key=lambda one: (-one["pending"] - one["held"], one["group"]))
        return ranked[:_MOST_GROUPS]

    def _rates_of(self) -> dict[str, Any]:
        """The rate per second between each two samples, and the number of pending messages at each sample."""
        samples = list(self._samples)
        series: dict[str, list[float]] = {name: [] for name in self._metrics.totals()}
        for (before, old, _), (after, new, _) in pairwise(samples):
            seconds = max(after - before, 0.001)
            for name, points in series.items():
                points.append(round(max(0.0, new[name] - old[name]) / seconds, 2))
        return {"every": _SAMPLE_S, "series": series, "pending": [pending for _, _, pending in samples]}


def _are_known(facts: list[PartitionFacts] | None) -> bool:
    """Whether the open messages of every partition of this worker are known."""
    return facts is not None and all(one.open is not None for one in facts)


def _partition(one: PartitionFacts, error: str | None) -> dict[str, Any]:
    # None means unknown: a take-over has to read it first, and Kafka may be away.
    states = {} if one.open is None else one.open.by_state()
    return {
        "partition": one.partition,
        "serving": one.serving,
        "error": error,
        "end_lag": one.end_lag,
        **{state.value: states.get(state) for state in TransactionState if state.is_open},
    }


def _schedule(policy: CheckPolicy, facts: Iterable[PartitionFacts], now: int) -> dict[str, Any]:
    """A preview of the checks, from the ages at `now` (ms) alone.

    The owners' schedules are not read, because owners change them meanwhile. So messages' own immunity times, dead
    groups and the limit of the rate play no part.
    """
    soon = dict.fromkeys(_SOON, 0)
    waiting = 0
    for one in facts:
        for slots in () if one.open is None else one.open.pending.values():
            for slot, number in slots.items():
                age = now - slot * SLOT_MS
                if age > policy.last_check:
                    waiting += number
                    continue
                past = age - policy.transaction_timeout
                due = (
                    -past if past < 0 else policy.transaction_check_interval - past % policy.transaction_check_interval
                )
                for seconds in _SOON:
                    soon[seconds] += number * (due <= seconds * 1000)
    return {
        "first": policy.transaction_timeout / 1000,
        "every": policy.transaction_check_interval / 1000,
        "most": policy.transaction_check_max,
        "greatest_age": policy.transaction_max_age / 1000,
        "within": {str(seconds): number for seconds, number in soon.items()},
        "after_last": waiting,
    }


class Monitor:
    """The only one of a process: it stays the same when Faust is started again."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Raises UsageError for a status page that no port serves. Other commands may share the file of options."""
        if settings.status_page != "off" and not settings.metrics_port:
            raise UsageError("status_page needs a metrics_port: that port serves it")
        self._settings = settings
        self.metrics = WorkerMetrics(settings.metrics_max_groups)
        self.health = Health(
            settings.commit_timeout, longest_join_s(settings.session_timeout), settings.session_timeout
        )
        self._is_started = False

    def start(self) -> None:
        """Watch the worker, and listen if a port was given; does nothing the second time.

        Raises EnvironmentProblemError.
        """
        settings = self._settings
        if self._is_started:
            return
        self._is_started = True
        self.health.start()
        if not settings.metrics_port:
            return
        pages: dict[str, Page] = {}
        if settings.status_page != "off":
            board = StatusBoard(settings, self.metrics, self.health)
            board.start()
            pages = status_pages(board)
        web = WebServer(
            settings.metrics_host,
            settings.metrics_port,
            self.metrics.registry,
            {"/livez": self.health.not_live, "/readyz": self.health.not_ready},
            pages,
        )
        # The start time of each counter would be a second series, and of use to nobody here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.metrics.watch_partitions(self.health.partition_facts, lambda: not self.health.not_ready())
        web.start()
        _log.info("metrics_served", host=settings.metrics_host, port=web.port)


def status_pages(board: StatusBoard) -> dict[str, Page]:
    """The status page and the requests that it sends, by path. Everything is read; nothing can be changed.

    All addresses in the page are relative, so that it works behind any path prefix.
    """
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    # By its hash: no other script that came into the page would run.
    script = sha256(html.partition(b"<script>")[2].partition(b"</script>")[0])
    allowed = f"'sha256-{b64encode(script.digest()).decode()}'"
    return {
        "/status": lambda _: PageAnswer(HTTPStatus.OK, "text/html; charset=utf-8", html, allowed),
        "/status.json": lambda _: PageAnswer.json(HTTPStatus.OK, board.take_snapshot()),
        "/open.json": lambda request: PageAnswer.json(HTTPStatus.OK, board.list_open(request.query.get("cause", ""))),
    }
