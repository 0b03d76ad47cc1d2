"""Findings of the doctor that a cluster of one node cannot show: lost brokers, replicas, coordinators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError

from txbridge.cli.doctor import exit_code
from txbridge.config.worker import WorkerSettings
from txbridge.doctor import run, topic_checks
from txbridge.doctor.cluster_view import ClusterView, Questions
from txbridge.doctor.finding import Check, Finding, Level, Report
from txbridge.kafka.admin import FoundTopic, Greeting, MissingRight, Sight
from txbridge.kafka.errors import TIMED_OUT
from txbridge.subject import Subject
from txbridge.topics.plan import PlanOptions, compare

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
THREE = frozenset({1, 2, 3})


def changed(seen: Mapping[str, Sight], topic: str, partitions: int = 4, copies: int = 3, **config: str) -> None:
    """Replace settings of one topic."""
    was = seen[topic]
    assert isinstance(was, FoundTopic)
    config = {**was.config, **{name.replace("_", "."): value for name, value in config.items()}}
    new = replace(was, config=config, partitions=partitions, replication_factor=copies)
    cast("dict[str, Sight]", seen)[topic] = new


def place_of(leader: int, replicas: frozenset[int], in_sync: frozenset[int]) -> SimpleNamespace:
    return SimpleNamespace(id=0, leader=None if leader < 0 else leader, replicas=replicas, isr=in_sync)


def cluster_view(places: Sequence[SimpleNamespace] = (), **settings: int) -> ClusterView:
    """The internal topics are as `topics apply` makes them for these settings of workers. HALF is at these places."""
    view = ClusterView(
        settings=WorkerSettings(bootstrap_servers="127.0.0.1:1", **settings),  # type: ignore[arg-type]
        questions=Questions(),
        cluster=None,  # type: ignore[arg-type]
        cluster_id="cluster",
        controller="1",
        brokers={1: "one:9092", 2: "two:9092", 3: "three:9092"},
        operations=frozenset(),
        groups=(),
        seen={},
        groups_hidden=False,
        real={},
        described={HALF: SimpleNamespace(partitions=places, authorized_operations=())} if places else {},
    )
    options = PlanOptions(4, longest_wait=view.settings.longest_wait)
    plans = compare(view.names, options, dict.fromkeys(view.names.internal), brokers=3)
    view.seen = {one.topic: FoundTopic(one.topic, "id", one.partitions, 3, 0, one.config) for one in plans}
    return view


def lines(findings: object) -> list[tuple[str, str]]:
    return [(one.level.value, one.text) for one in findings]  # type: ignore[attr-defined]


TWO = frozenset({1, 2})


@pytest.mark.parametrize(
    ("place", "config", "level", "text"),
    [
        ((1, THREE, THREE), {}, "ok", "all topics have 3 copies or more, all of them in sync"),
        ((-1, THREE, frozenset({2})), {}, "problem", "partitions 0 have no leader"),
        ((1, THREE, TWO), {}, "warning", "not all copies of partitions 0 are in sync"),
        ((1, TWO, TWO), {"min_insync_replicas": "2"}, "warning", "has 2 of 3 copies"),
        (
            (1, THREE, THREE),
            {"min_insync_replicas": "1"},
            "warning",
            "min.insync.replicas is 1, must be at least 2, or",
        ),
        ((1, THREE, THREE), {"min_insync_replicas": "4"}, "problem", "min.insync.replicas is 4, must be at most 3, or"),
        ((1, THREE, THREE), {"unclean_leader_election_enable": "true"}, "warning", "unclean.leader.election.enable is"),
    ],
)
def test_copies(
    place: tuple[int, frozenset[int], frozenset[int]], config: dict[str, str], level: str, text: str
) -> None:
    view = cluster_view([place_of(*place)])
    changed(view.seen, HALF, copies=len(place[1]), **config)
    [(found, said)] = lines(topic_checks.replication(view))
    assert (found, said.removeprefix(HALF).lstrip(": ").startswith(text)) == (level, True)


def test_one_of_two_copies_in_sync_is_not_mended_by_the_same_setting() -> None:
    two = cluster_view([place_of(1, TWO, TWO)])
    changed(two.seen, HALF, copies=2, min_insync_replicas="1")
    two.brokers = {1: "one:9092", 2: "two:9092"}
    [finding] = topic_checks.replication(two)
    assert "sets 1" not in finding.do
    assert finding.do.startswith("have three copies")


def test_a_half_topic_that_is_hidden_or_gone_accuses_no_other_topic() -> None:
    """The other topics are as they were, and no topic has to be deleted."""
    for half, level in ((MissingRight("DESCRIBE", HALF), Level.UNKNOWN), (None, Level.PROBLEM)):
        one = cluster_view()
        one.seen = {**one.seen, HALF: half}
        [found] = topic_checks.topics(one)
        assert (found.level, HALF in found.text, "delete" in found.do) == (level, True, False)


@pytest.mark.parametrize(("door", "level"), [(False, "problem"), (True, "note")])
def test_the_check_topic_of_a_new_group_is_made_by_a_door(door: bool, level: str) -> None:
    one = cluster_view()
    one.questions = Questions(door=door)
    one.groups = ("shop",)
    one.seen = dict.fromkeys((*one.names.internal, one.names.check("shop")))
    [found] = [found for found in topic_checks.topics(one) if "shop" in found.text]
    assert found.level.value == level


@pytest.mark.parametrize("hours", [1, 72, 240, 2_000])
@pytest.mark.parametrize(("option", "unit"), [("transaction_max_age", 3_600_000), ("timer_max_delay", 3_600)])
def test_topics_that_apply_has_just_made_leave_nothing_to_say(option: str, unit: int, hours: int) -> None:
    """Else a healthy cluster has a finding forever, about which `topics apply` does nothing."""
    one = cluster_view([place_of(1, THREE, THREE)], **{option: hours * unit})
    findings = [*topic_checks.topics(one), *topic_checks.retention(one), *topic_checks.replication(one)]
    assert [(found.level, found.text) for found in findings if found.level is not Level.OK] == []


#: 14 days: ten days of delay, and four of an outage.
ENOUGH = 1_209_600_000


@pytest.mark.parametrize(
    ("age", "delay", "kept", "level", "text"),
    [
        (
            72,
            240,
            863_999_999,
            Level.PROBLEM,
            "(9d 23h), must be at least 864000000 (10d), or messages vanish that wait",
        ),
        (
            72,
            240,
            864_000_000,
            Level.WARNING,
            "(10d), must be at least 1209600000 (14d), or an outage of 4d loses mess",
        ),
        (72, 240, ENOUGH - 1, Level.WARNING, "(13d 23h), must be at least 1209600000 (14d), or an outage of 4d loses"),
        (264, 240, 864_000_000, Level.PROBLEM, "(10d), must be at least 950400000 (11d), or messages vanish that wait"),
        (72, 240, ENOUGH, Level.OK, ""),
        (72, 240, -1, Level.OK, ""),
    ],
)
def test_retention_against_the_longest_delay(age: int, delay: int, kept: int, level: Level, text: str) -> None:
    """Hours of age and delay. The longest wait counts."""
    one = cluster_view(transaction_max_age=age * 3_600_000, timer_max_delay=delay * 3_600)
    for name in (HALF, one.names.end, one.names.op):
        changed(one.seen, name, retention_ms=str(kept))
    found = {each.text: each for each in topic_checks.retention(one) if each.level is not Level.NOTE}
    if level is Level.OK:
        assert [each.level for each in found.values()] == [level]
        return
    [half] = [each for each in found.values() if each.text.startswith(HALF)]
    assert (half.level, half.text.startswith(f"{HALF}: retention.ms is {kept} {text}")) == (level, True)
    assert half.do.startswith("`txbridge topics apply` sets it")


def test_a_quorum_without_a_controller_is_a_problem_and_not_everything_was_examined() -> None:
    greeting = Greeting("C1", {2: "two:9092"})
    assert lines(run._without_controller(greeting, "timed out")) == [
        ("problem", "cluster C1 (2 two:9092) answers, but its controller does not: timed out"),
        ("unknown", "topics, rights, workers and transactions could not be examined without a controller"),
    ]


def test_a_broker_whose_advertised_address_is_wrong() -> None:
    found = lines(run._connection(cluster_view(), {1: {}, 2: KafkaError(TIMED_OUT), 3: {}}))
    assert found == [("problem", "broker 2 at two:9092 does not answer")]


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([Level.OK, Level.NOTE], 0),
        ([Level.OK, Level.WARNING], 1),
        ([Level.PROBLEM], 1),
        ([Level.OK, Level.UNKNOWN], 2),
        ([Level.PROBLEM, Level.UNKNOWN], 2),
    ],
)
def test_exit_codes(levels: list[Level], code: int) -> None:
    assert exit_code(Report(Subject("", "a:1"), [Finding(Check.TOPICS, level, "text") for level in levels])) == code


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        # 6 s + 14 * 30 s
        ({}, []),
        ({"transaction_check_max": 3}, []),
        # 6 s + 1 * 30 s
        ({"transaction_check_max": 2}, ["the last check of a message comes at an age of 36s. A listener for SQL"]),
        ({"transaction_check_interval": 3_000}, ["the last check of a message comes at an age of 48s. A listener"]),
    ],
)
def test_checks_that_end_before_the_patience_of_a_listener(settings: dict[str, int], noted: list[str]) -> None:
    found = topic_checks.retention(cluster_view(**settings))
    said = [text for level, text in lines(found) if level == "note" and text.startswith("the last check")]
    assert [text[: len(begin)] for text, begin in zip(said, noted, strict=True)] == noted


def test_undecided_messages_of_two_databases_are_a_warning() -> None:
    one = cluster_view()
    one.groups = ("billing", "shop")
    backlog = run.Backlog(barriers={"shop": {"bb", "aa"}, "billing": {"cc"}})
    found = [line for line in lines(run.producers(one, {}, backlog, 0)) if "undecided" in line[1]]
    assert [level for level, _ in found] == ["note", "warning"]
    assert found[0][1] == "undecided messages of the producer group billing come from the barrier table cc"
    assert found[1][1].startswith(
        "undecided messages of the producer group shop come from 2 databases (barrier tables aa, bb)"
    )
