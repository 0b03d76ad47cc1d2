"""Findings of the doctor that a cluster of one node cannot show: lost brokers, replicas, coordinators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txbridge.cli.doctor import exit_code
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.doctor import broker_checks, runtime_checks, topic_checks
from txbridge.doctor.admin_requests import Answers
from txbridge.doctor.cluster_view import ClusterView, Described, PartitionReplicas, Questions
from txbridge.doctor.finding import Check, Finding, Level, Report
from txbridge.kafka.admin import FoundTopic, Greeting, MissingRight
from txbridge.subject import Subject
from txbridge.topics.plan import Sight, compare

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
THREE = frozenset({1, 2, 3})


def cluster_view(places: list[PartitionReplicas], min_in_sync: str = "2", unclean: str = "false") -> ClusterView:
    config = {"min.insync.replicas": min_in_sync, "unclean.leader.election.enable": unclean}
    facts = FoundTopic(HALF, "id", len(places), 3, 0, config)
    return ClusterView(
        settings=WorkerSettings(bootstrap_servers="127.0.0.1:1"),
        questions=Questions(),
        cluster=None,  # type: ignore[arg-type]
        cluster_id="cluster",
        controller="1",
        brokers={1: "one:9092", 2: "two:9092", 3: "three:9092"},
        operations=frozenset(),
        groups=(),
        seen={HALF: facts},
        groups_hidden=False,
        real={},
        described={HALF: Described(places, frozenset())},
    )


def answers(**changed: object) -> Answers:
    given = {
        "lacking": {},
        "unreachable": {},
        "id_rights": {},
    }
    return Answers(**{**given, **changed})  # type: ignore[arg-type]


def lines(findings: object) -> list[tuple[str, str]]:
    return [(one.level.value, one.text) for one in findings]  # type: ignore[attr-defined]


TWO = frozenset({1, 2})


@pytest.mark.parametrize(
    ("place", "min_in_sync", "level", "text"),
    [
        ((1, THREE, THREE), "2", "ok", "all topics have 3 copies or more, all of them in sync"),
        ((-1, THREE, frozenset({2})), "2", "problem", f"{HALF}: partitions 0 have no leader"),
        ((1, THREE, TWO), "2", "warning", f"{HALF}: not all copies of partitions 0 are in sync"),
        ((1, TWO, TWO), "2", "warning", f"{HALF} has 2 of 3 copies"),
        (
            (1, THREE, THREE),
            "1",
            "warning",
            f"{HALF}: min.insync.replicas is 1 with 3 copies: what one broker has can be lost with it",
        ),
        (
            (1, THREE, THREE),
            "4",
            "problem",
            f"{HALF}: min.insync.replicas is 4, and it has 3 copies: nothing can be written to it",
        ),
    ],
)
def test_copies(place: tuple[int, frozenset[int], frozenset[int]], min_in_sync: str, level: str, text: str) -> None:
    found = topic_checks.replication(cluster_view([PartitionReplicas(*place)], min_in_sync))
    assert lines(found) == [(level, text)]


def test_a_topic_that_may_elect_a_leader_that_is_not_in_sync() -> None:
    risky = cluster_view([PartitionReplicas(1, THREE, THREE)], unclean="true")
    [(level, text)] = lines(topic_checks.replication(risky))
    assert level == "warning"
    assert text.startswith(f"unclean.leader.election.enable is true for {HALF}: a copy that is not in sync may become")


def test_one_of_two_copies_in_sync_is_not_mended_by_the_same_setting() -> None:
    two = cluster_view([PartitionReplicas(1, TWO, TWO)], "1")
    two.brokers = {1: "one:9092", 2: "two:9092"}
    [finding] = topic_checks.replication(two)
    assert "sets 1" not in finding.do
    assert finding.do.startswith("have three copies")


def test_a_half_topic_that_is_hidden_or_gone_accuses_no_other_topic() -> None:
    """The other topics cannot be compared with its number of partitions, and no topic has to be deleted."""
    names = Names()
    there = [names.end, names.op, names.offset, names.discard]
    for half in (MissingRight("DESCRIBE", HALF), None):
        one = cluster_view([])
        one.seen = {HALF: half, **{name: FoundTopic(name, "id", 4, 3, 0, {}) for name in there}}
        findings = list(topic_checks.topics(one))
        assert not [found for found in findings if "partitions" in found.text]
        assert not [found for found in findings if "delete" in found.do and "cleanup.policy" not in found.text]
    assert [found.text for found in findings if found.text.startswith(HALF)] == [f"{HALF} does not exist"]


@pytest.mark.parametrize(("door", "level"), [(False, "problem"), (True, "note")])
def test_the_check_topic_of_a_new_group_is_made_by_a_door(door: bool, level: str) -> None:
    one = cluster_view([])
    one.questions = Questions(door=door)
    one.groups, names = ("shop",), one.names
    one.seen = dict.fromkeys((HALF, names.end, names.op, names.offset, names.discard, names.check("shop")))
    [found] = [found for found in topic_checks.topics(one) if "shop" in found.text]
    assert found.level.value == level


@pytest.mark.parametrize("hours", [1, 72, 240, 2_000])
@pytest.mark.parametrize("option", ["transaction_max_age", "timer_max_delay"])
def test_topics_that_apply_has_just_made_leave_nothing_to_say(option: str, hours: int) -> None:
    """Else a healthy cluster has a finding forever, about which `topics apply` does nothing."""
    one = cluster_view([])
    one.settings = WorkerSettings(bootstrap_servers="127.0.0.1:1", **{option: hours * 3_600_000})  # type: ignore[arg-type]
    names = one.names
    missing: dict[str, Sight] = dict.fromkeys([HALF, names.end, names.op, names.offset, names.discard])
    made = compare(names, one.options, missing, brokers=3)
    one.seen = {
        plan.topic: FoundTopic(plan.topic, "id", plan.partitions, plan.replication_factor, 0, plan.config)
        for plan in made
    }
    findings = [*topic_checks.topics(one), *topic_checks.retention(one)]
    assert [(found.level, found.text) for found in findings if found.level is not Level.OK] == []


#: 14 days: ten days of delay, and four of an outage.
ENOUGH = 1_209_600_000


@pytest.mark.parametrize(
    ("age", "delay", "kept", "option", "text"),
    [
        (72, 240, 864_000_000, "timer_max_delay", "10d, and they may wait for 10d"),
        (72, 240, 864_000_001, None, "10d, and they may wait for 10d: an outage of more than 0s"),
        (72, 240, ENOUGH - 1, None, "13d 23h, and they may wait for 10d: an outage of more than 3d 23h"),
        (264, 240, 864_000_000, "transaction_max_age", "10d, and they may wait for 11d"),
    ],
)
def test_retention_against_the_longest_delay(age: int, delay: int, kept: int, option: str | None, text: str) -> None:
    """Hours of age and delay. The longest wait counts, and is named if messages would vanish."""
    one = with_retention(str(kept), transaction_max_age=age * 3_600_000, timer_max_delay=delay * 3_600_000)
    [found] = [each for each in topic_checks.retention(one) if each.level is not Level.NOTE]
    if option:
        expected = Level.PROBLEM, f" ({option}): those that still wait would vanish", f"; or lower {option}"
    else:
        expected = Level.WARNING, " loses messages", " so that 4 days are survived"
    assert (found.level, found.text) == (expected[0], f"{HALF} keeps messages for {text}{expected[1]}")
    assert found.do == f"`txbridge topics apply` raises retention.ms{expected[2]}"


@pytest.mark.parametrize("kept", [str(ENOUGH), "-1"])
def test_retention_that_is_enough_for_the_longest_delay(kept: str) -> None:
    one = with_retention(kept, timer_max_delay=240 * 3_600_000)
    assert Level.OK in {each.level for each in topic_checks.retention(one)}
    assert {each.level for each in topic_checks.retention(one)} <= {Level.OK, Level.NOTE}


def test_other_topics_that_keep_their_records_for_too_short_a_time() -> None:
    one = with_retention(str(ENOUGH // 2))
    for name, kept in ((HALF, ENOUGH), (one.names.discard, ENOUGH // 14)):
        was = one.seen[name]
        assert isinstance(was, FoundTopic)
        one.seen = {**one.seen, name: replace(was, config={**was.config, "retention.ms": str(kept)})}
    shorter = f"keeps its records for 7d, shorter than {HALF}: finished messages would be asked about, and could be"
    found = [line for line in lines(topic_checks.retention(one)) if line[0] != "note"]
    assert found == [
        ("problem", f"{one.names.end} {shorter} delivered, again"),
        ("problem", f"{one.names.op} {shorter} delivered, again"),
        ("warning", f"{one.names.discard} keeps its records for 1d instead of 30d"),
    ]


def test_partitions_that_do_not_match() -> None:
    one = with_retention("-1")
    one.seen = {**one.seen, one.names.op: FoundTopic(one.names.op, "id", 3, 3, 0, {})}
    assert ("problem", f"{one.names.op} has 3 partitions, {HALF} has 4: workers refuse to start") in lines(
        topic_checks.topics(one)
    )


def with_retention(kept: str, **settings: int) -> ClusterView:
    """HALF, END and OP with this retention."""
    names, one = Names(), cluster_view([])
    one.settings = WorkerSettings(bootstrap_servers="127.0.0.1:1", **settings)  # type: ignore[arg-type]
    log = {"retention.ms": kept, "max.message.bytes": "1065536"}
    one.seen = {
        **{name: FoundTopic(name, "id", 4, 3, 0, log) for name in (HALF, names.end, names.op)},
        names.offset: FoundTopic(names.offset, "id", 4, 3, 0, {}),
        names.discard: FoundTopic(names.discard, "id", 1, 3, 0, {**log, "retention.ms": "2592000000"}),
    }
    return one


def test_a_quorum_without_a_controller_is_a_problem_and_not_everything_was_examined() -> None:
    greeting = Greeting("C1", {2: "two:9092"})
    assert lines(broker_checks.without_controller(greeting, "timed out")) == [
        ("problem", "cluster C1 (2 two:9092) answers, but its controller does not: timed out"),
        ("unknown", "topics, rights, workers and transactions could not be examined without a controller"),
    ]


def test_a_broker_whose_advertised_address_is_wrong() -> None:
    found = lines(broker_checks.connection(cluster_view([]), answers(unreachable={2: "two:9092"})))
    assert found == [("problem", "broker 2 at two:9092 does not answer")]


def test_a_broker_that_lacks_a_request_is_a_problem_with_its_name() -> None:
    found = list(broker_checks.versions(answers(lacking={2: "EndTxn 0 of Kafka 0.11 (found none)"})))
    assert lines(found)[0] == (
        "problem",
        "broker 2 lacks EndTxn 0 of Kafka 0.11 (found none): workers do not start",
    )
    assert found[0].do.startswith("use brokers of Apache Kafka 3.9 or later")


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
    found = topic_checks.retention(with_retention("604800000", **settings))
    said = [text for level, text in lines(found) if level == "note" and text.startswith("the last check")]
    assert [text[: len(begin)] for text, begin in zip(said, noted, strict=True)] == noted


def test_undecided_messages_of_two_databases_are_a_warning() -> None:
    one = cluster_view([])
    one.groups = ("billing", "shop")
    backlog = runtime_checks.Backlog(barriers={"shop": {"bb", "aa"}, "billing": {"cc"}})
    found = [line for line in lines(runtime_checks.producers(one, {}, backlog, 0)) if "undecided" in line[1]]
    assert [level for level, _ in found] == ["note", "warning"]
    assert found[0][1] == "undecided messages of the producer group billing come from the barrier table cc"
    assert found[1][1].startswith(
        "undecided messages of the producer group shop come from 2 databases (barrier tables aa, bb)"
    )
