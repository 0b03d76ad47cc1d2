"""Findings about the cluster itself: connection, versions, limits of the brokers."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version

import confluent_kafka
from confluent_kafka import KafkaException

from txbridge.doctor.admin_requests import Answers
from txbridge.doctor.cluster_view import ClusterView
from txbridge.doctor.finding import Check, Finding, note, ok, problem, unknown, warning
from txbridge.kafka.admin import NO_RIGHT, UNCLEAN, Greeting
from txbridge.kafka.broker_features import REMEDY
from txbridge.kafka.descriptors import needed
from txbridge.text import counted

#: The usual soft limit of file descriptors, and the hard limit where somebody has lowered it.
_USUAL_DESCRIPTORS = 1_024
#: Limits of a broker that can refuse an option of a worker: the limit, the option, and which side the limit bounds.
_LIMITS = (
    ("transaction.max.timeout.ms", "commit_timeout", "most"),
    ("group.min.session.timeout.ms", "session_timeout", "least"),
    ("group.max.session.timeout.ms", "session_timeout", "most"),
)


def connection(view: ClusterView, answers: Answers) -> Iterator[Finding]:
    """Findings about brokers that do not answer at the address that they advertise."""
    brokers = ", ".join(f"{node} {address}" for node, address in sorted(view.brokers.items()))
    for node, address in sorted(answers.unreachable.items()):
        yield problem(
            Check.CONNECTION,
            f"broker {node} at {address} does not answer",
            "start it; if it runs, its advertised.listeners must name an address that is reachable from here",
        )
    if not answers.unreachable:
        count = len(view.brokers)
        yield ok(
            Check.CONNECTION,
            f"cluster {view.cluster_id}, {counted(count, 'broker')} ({brokers}), controller {view.controller}",
        )


def without_controller(greeting: Greeting, error: str) -> Iterator[Finding]:
    """The findings when brokers answer and the controller does not."""
    brokers = ", ".join(f"{node} {address}" for node, address in sorted(greeting.brokers.items()))
    yield problem(
        Check.CONNECTION,
        f"cluster {greeting.cluster_id} ({brokers}) answers, but its controller does not: {error}",
        "start what is down: a majority of the controllers must run, and the broker that Kafka names as controller",
    )
    yield unknown(
        Check.TOPICS,
        "topics, rights, workers and transactions could not be examined without a controller",
        "run the doctor again when there is one",
    )


def versions(answers: Answers) -> Iterator[Finding]:
    """Findings about the versions of the brokers and of this installation."""
    ours = (
        f"txbridge {version('txbridge')}, Python {platform.python_version()}, librdkafka "
        f"{confluent_kafka.libversion()[0]}, aiokafka {version('aiokafka')}"
    )
    for node, what in sorted(answers.lacking.items()):
        yield problem(Check.VERSIONS, f"broker {node} lacks {what}: workers do not start", REMEDY)
    if not answers.lacking:
        yield ok(Check.VERSIONS, f"the brokers have all that workers need; {ours}")


def descriptors(view: ClusterView) -> Iterator[Finding]:
    """The file descriptors of a worker, if they may be too many. Its limit is known on its own machine only."""
    brokers = len(view.brokers)
    if (most := needed(view.partitions, brokers)) > _USUAL_DESCRIPTORS:
        yield note(
            Check.LIMITS,
            f"a worker that takes over all {view.partitions} partitions may have {most} file descriptors open "
            f"(with {counted(brokers, 'broker')})",
            "give it this hard limit at least (ulimit -Hn, LimitNOFILE); it raises its soft limit itself",
        )


def limits(view: ClusterView) -> list[Finding]:
    """Findings about brokers that refuse the worker's time-outs, or elect unclean leaders."""
    found: list[Finding] = []
    for node in sorted(view.brokers):
        try:
            config = view.broker_config(node)
        except KafkaException as failure:
            error = failure.args[0]
            denied = error.code() in NO_RIGHT
            do = "grant DESCRIBE_CONFIGS on the cluster to this user" if denied else f"see whether broker {node} is up"
            text = f"the configuration of broker {node} could not be read: {error.str()}"
            found.append(unknown(Check.LIMITS, text, do))
            continue
        for name, option, which in _LIMITS:
            ours, limit = getattr(view.settings, option), config.get(name)
            if limit is None or (ours >= int(limit) if which == "least" else ours <= int(limit)):
                continue
            text = f"{option} is {ours} ms, and broker {node} accepts {limit} at {which} ({name}): workers cannot start"
            found.append(problem(Check.LIMITS, text, f"set {option} accordingly, or {name} on the brokers"))
        if config.get(UNCLEAN) == "true":
            text = f"broker {node} elects leaders that are not in sync ({UNCLEAN}): delivered messages can be lost"
            found.append(warning(Check.LIMITS, text, "set it to false on the brokers, or on each topic"))
    good = "the brokers accept commit_timeout and session_timeout, and elect no unclean leaders"
    return found or [ok(Check.LIMITS, good)]
