"""Plans and results of `txbridge topics` for a given cluster. Expected values are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.right_topics import ALL, DISCARD, END, HALF, LOG, OFFSET, OP, OUTBOX, RIGHT, facts
from txbridge.core.names import Names
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.kafka.admin import FoundTopic, MissingRight
from txbridge.topics.plan import PlanOptions, RealTopic, TopicAction, compare
from txbridge.topics.spec import Change
from txbridge.topics.verify import apply, plan

NAMES = Names()
DAY = 86_400_000


def seen(**changed):
    return {topic: facts(topic) for topic in ALL} | changed


def by_topic(sights, options=None, brokers=3):
    return {one.topic: one for one in compare(NAMES, options or PlanOptions(), sights, brokers)}


NOTHING = dict.fromkeys(ALL)


def test_fresh_cluster():
    plans = by_topic(NOTHING)
    assert list(plans) == list(ALL)
    assert {one.action for one in plans.values()} == {TopicAction.CREATE}
    assert [one.partitions for one in plans.values()] == [1, 1, 1, 1, 1]
    assert {one.replication_factor for one in plans.values()} == {3}
    for topic in ALL:
        wanted = {change.name: change.new for change in plans[topic].changes}
        assert wanted == {**RIGHT[topic], "min.insync.replicas": "2"}
        assert {change.old for change in plans[topic].changes} == {None}


def test_a_shop_with_a_relay_alone_gets_its_topic_alone():
    options = PlanOptions(relay=True, max_message_size=2_000_000, real_topics=(RealTopic("orders"),))
    plans = by_topic({OUTBOX: None, "orders": None}, options)
    assert list(plans) == [OUTBOX, "orders"]
    assert (plans[OUTBOX].action, plans[OUTBOX].partitions) == (TopicAction.CREATE, 8)
    assert plans[OUTBOX].config == {**RIGHT[OUTBOX], "min.insync.replicas": "2"}
    assert plans["orders"].config["max.message.bytes"] == "2131072"
    # An outbox keeps the partition that it has, and there may be any number.
    there = {OUTBOX: facts(OUTBOX, partitions=3, retention_ms="3600000")}
    plans = by_topic(there, PlanOptions(relay=True, partitions=12))
    assert plans[OUTBOX].changes == (Change("retention.ms", "3600000", "604800000", vital=False),)
    with pytest.raises(UsageError, match="--relay takes no --group"):
        PlanOptions(relay=True, groups=("orders",))


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (9, 3, "2")])
def test_copies_fit_the_cluster(brokers, copies, in_sync):
    one = by_topic(NOTHING, brokers=brokers)[HALF]
    assert one.replication_factor == copies
    assert Change("min.insync.replicas", None, in_sync) in one.changes


def test_chosen_values():
    options = PlanOptions(
        partitions=12, replication_factor=5, min_insync_replicas=4, max_message_size=10_000_000, groups=("orders",)
    )
    plans = by_topic({**NOTHING, "RMQ_SYS_TRANS_CHECK.orders": None}, options)
    assert [one.partitions for one in plans.values()] == [12, 12, 12, 12, 1, 4]
    assert {one.replication_factor for one in plans.values()} == {5}
    assert Change("min.insync.replicas", None, "4") in plans[OFFSET].changes
    assert Change("max.message.bytes", None, "10065536") in plans[HALF].changes
    assert Change("max.message.bytes", None, "10131072") in plans[DISCARD].changes
    assert {change.name: change.new for change in plans["RMQ_SYS_TRANS_CHECK.orders"].changes} == {
        **LOG,
        "retention.ms": "3600000",
        "segment.ms": "600000",
        "max.message.bytes": "10131072",
        "min.insync.replicas": "4",
    }


@pytest.mark.parametrize(
    ("age_days", "delay_days", "retention"),
    [(3, 3, "604800000"), (3, 4, "691200000"), (10, 4, "1209600000"), (3, 30, "2937600000"), (0, 0, "604800000")],
)
def test_the_half_topic_outlives_the_longest_delay_and_the_greatest_age_by_four_days(age_days, delay_days, retention):
    """Without either it is seven days. The longer one counts."""
    options = PlanOptions(longest_wait=max(age_days, delay_days) * DAY)
    fresh = by_topic(NOTHING, options)
    for topic in (HALF, END, OP):
        assert {change.name: change.new for change in fresh[topic].changes}["retention.ms"] == retention


def test_weaker_settings_are_raised():
    sights = seen(
        **{
            HALF: facts(HALF, retention_ms="3600000", message_timestamp_type="CreateTime", in_sync="1"),
            OP: facts(OP, retention_bytes="1000000"),
            OFFSET: facts(OFFSET, segment_bytes="1073741824", min_cleanable_dirty_ratio="0.5"),
            DISCARD: facts(DISCARD, max_message_bytes="1048588"),
        }
    )
    plans = by_topic(sights)
    assert [plans[topic].action.value for topic in ALL] == ["change", "ok", "change", "change", "change"]
    assert plans[HALF].changes == (
        Change("retention.ms", "3600000", "604800000", vital=False),
        Change("message.timestamp.type", "CreateTime", "LogAppendTime"),
        Change("min.insync.replicas", "1", "2", vital=False),
    )
    assert plans[OP].changes == (Change("retention.bytes", "1000000", "-1"),)
    assert plans[OFFSET].changes == (
        Change("segment.bytes", "1073741824", "16777216", vital=False),
        Change("min.cleanable.dirty.ratio", "0.5", "0.1", vital=False),
    )
    assert plans[DISCARD].changes == (Change("max.message.bytes", "1048588", "1131072"),)


def test_larger_values_are_left_alone_and_the_others_follow():
    sights = seen(
        **{
            HALF: facts(HALF, retention_ms="1209600000", max_message_bytes="5000000"),
            END: facts(END, retention_ms="-1"),
            OFFSET: facts(OFFSET, segment_bytes="1048576", min_cleanable_dirty_ratio="0.01"),
            DISCARD: facts(DISCARD, retention_ms="9000000000"),
        }
    )
    plans = by_topic(sights)
    assert {topic: one.changes for topic, one in plans.items() if one.changes} == {
        OP: (Change("retention.ms", "604800000", "1209600000"),),
        DISCARD: (Change("max.message.bytes", "1131072", "5065536"),),
    }


def test_retention_covers_the_oldest_message_and_an_outage_of_four_days():
    plans = by_topic(seen(), PlanOptions(longest_wait=10 * DAY))
    assert {topic: one.changes for topic, one in plans.items() if one.changes} == {
        # Clients and workers start while HALF is longer than the longest wait, and END and OP are as long as HALF.
        topic: (Change("retention.ms", "604800000", "1209600000", vital=topic == HALF),)
        for topic in (HALF, END, OP)
    }
    assert by_topic(seen(), PlanOptions(longest_wait=3 * DAY))[HALF].action is TopicAction.OK


def test_partitions_that_differ_are_refused():
    plans = by_topic(seen(**{OP: facts(OP, partitions=8)}))
    assert plans[OP].action is TopicAction.REFUSED
    assert plans[OP].partitions == 8
    reason = (
        "has 8 partitions, must have 4: HALF, END, OP and OFFSET have the same number, fixed for the life of a names"
    )
    assert plans[OP].reasons[0].startswith(reason)
    assert "use a new namespace" in plans[OP].reasons[0]
    assert [plans[topic].action for topic in (HALF, END, OFFSET)] == [TopicAction.OK] * 3
    plans = by_topic(seen(), PlanOptions(partitions=8))
    assert [plans[topic].action.value for topic in ALL] == ["refused", "refused", "refused", "refused", "ok"]
    assert plans[HALF].reasons[0].startswith("has 4 partitions, must have 8: ")


def test_a_missing_topic_is_made_like_those_that_are_there():
    sights = {**NOTHING, OFFSET: facts(OFFSET, partitions=7)}
    assert [one.partitions for one in by_topic(sights).values()] == [7, 7, 7, 7, 1]


@pytest.mark.parametrize(("topic", "wrong"), [(HALF, "compact"), (END, "compact,delete"), (OFFSET, "delete")])
def test_a_wrong_cleanup_policy_is_refused_not_changed(topic, wrong):
    plans = by_topic(seen(**{topic: facts(topic, cleanup_policy=wrong)}))
    right = "compact" if topic == OFFSET else "delete"
    assert plans[topic].action is TopicAction.REFUSED
    complaint = f"cleanup.policy is {wrong}, must be {right}, or records that are needed are removed: if nothing in "
    assert plans[topic].reasons[0].startswith(complaint)
    assert plans[topic].changes == ()


def test_too_many_in_sync():
    refused = by_topic(NOTHING, PlanOptions(min_insync_replicas=2), brokers=1)[HALF]
    assert refused.action is TopicAction.REFUSED
    assert refused.reasons == ("min.insync.replicas 2 is more than its 1 copy: nothing could be written to it",)
    refused = by_topic(
        {topic: facts(topic, copies=1, in_sync="1") for topic in ALL}, PlanOptions(min_insync_replicas=2)
    )
    assert {one.action for one in refused.values()} == {TopicAction.REFUSED}


def test_missing_copies_are_noted():
    one = by_topic({topic: facts(topic, copies=1, in_sync="1") for topic in ALL})[HALF]
    assert one.action is TopicAction.OK
    assert one.notes == ("has 1 of 3 copies; kafka-reassign-partitions.sh adds the others",)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"partitions": 0}, "--partitions must be between 1 and 10000, not 0"),
        ({"replication_factor": -1}, "--replication-factor must be between 1 and 32767, not -1"),
        ({"min_insync_replicas": 0}, "--min-insync-replicas must be between 1 and 32767, not 0"),
        ({"max_message_size": 0}, "--max-message-size must be between 1 and 999868928, not 0"),
        ({"max_message_size": 1_000_000_000}, "--max-message-size must be between 1 and 999868928, not 1000000000"),
    ],
)
def test_choices_that_can_not_be(choice, message):
    with pytest.raises(UsageError) as caught:
        PlanOptions(**choice)
    assert str(caught.value) == message


class FakeCluster:
    """A cluster of one broker that does as told, except for refused requests."""

    def __init__(self, refuse=None):
        self.topics = {}
        self.refuse = refuse or {}
        self.calls = []

    def broker_count(self):
        return 1

    def topics_with_prefix(self, prefix):
        return [topic for topic in self.topics if topic.startswith(prefix)]

    def read_topics(self, topics):
        return {topic: self.topics.get(topic) for topic in topics}

    def create_topics(self, requests, *, dry_run):
        self.calls.append(("create", dry_run, [request.name for request in requests]))
        for request in requests:
            if not dry_run and request.name not in self.refuse:
                self.topics[request.name] = FoundTopic(
                    request.name, "id", request.partitions, request.replication_factor, 0, dict(request.config)
                )
        return {request.name: self.refuse.get(request.name) for request in requests}

    def alter_topics(self, changes, *, dry_run):
        self.calls.append(("alter", dry_run, sorted(changes)))
        for topic, config in changes.items():
            if not dry_run and topic not in self.refuse:
                self.topics[topic].config.update(config)
        return {topic: self.refuse.get(topic) for topic in changes}


def test_nothing_is_done_when_anything_is_refused():
    cluster = FakeCluster(refuse={OP: "missing right CREATE"})
    plans = {one.topic: one for one in apply(cluster, NAMES, PlanOptions())}
    assert plans[OP].action is TopicAction.REFUSED
    assert plans[OP].reasons == ("missing right CREATE",)
    assert plans[HALF].action is TopicAction.CREATE
    # Nor is it done without the properties that matter less.
    assert cluster.calls == [("create", True, list(ALL)), ("create", True, [OP])]


class ManagedCluster(FakeCluster):
    """A provider's cluster: it refuses a request that sets one of `forbidden`, and gives new topics its own values."""

    def __init__(self, *forbidden, judges=True):
        super().__init__()
        self.forbidden = forbidden
        #: Whether it also refuses requests that only validate.
        self.judges = judges

    def _refusal(self, config, dry_run):
        found = [name for name in self.forbidden if name in config]
        return f"Kafka refused: {found[0]} cannot be set" if found and (self.judges or not dry_run) else None

    def create_topics(self, requests, *, dry_run):
        refusals = {request.name: self._refusal(request.config, dry_run) for request in requests}
        super().create_topics([one for one in requests if refusals[one.name] is None], dry_run=dry_run)
        return refusals

    def alter_topics(self, changes, *, dry_run):
        refusals = {topic: self._refusal(config, dry_run) for topic, config in changes.items()}
        super().alter_topics({topic: changes[topic] for topic, why in refusals.items() if why is None}, dry_run=dry_run)
        return refusals

    def read_topics(self, topics):
        own = {"segment.bytes": "1073741824", "min.cleanable.dirty.ratio": "0.5"}
        return {
            topic: one and replace(one, config={**own, **one.config})
            for topic, one in super().read_topics(topics).items()
        }


@pytest.mark.parametrize("judges", [True, False])
def test_what_a_managed_cluster_does_not_let_be_set_is_left_out_unless_it_is_vital(judges):
    cluster = ManagedCluster("segment.bytes", "min.cleanable.dirty.ratio", judges=judges)
    done = {one.topic: one for one in apply(cluster, NAMES, PlanOptions())}
    assert {one.action for one in done.values()} == {TopicAction.CREATE}
    assert set(cluster.topics) == set(ALL)
    made = cluster.topics[OFFSET].config
    assert made["cleanup.policy"] == "compact"
    assert made["message.timestamp.type"] == "LogAppendTime"
    assert "segment.bytes" not in made
    if judges:  # The accepted properties are set. Without validation the refused one is unknown.
        assert made["delete.retention.ms"] == "86400000"
        assert done[OFFSET].notes == (
            "segment.bytes=16777216 is not set; all start without it: Kafka refused: segment.bytes cannot be set",
            (
                "min.cleanable.dirty.ratio=0.1 is not set; all start without it: "
                "Kafka refused: min.cleanable.dirty.ratio cannot be set"
            ),
        )
    # The second time nothing is left to do, and the message is the same.
    again = {one.topic: one for one in apply(cluster, NAMES, PlanOptions())}
    if judges:
        assert {one.action for one in again.values()} == {TopicAction.OK}
    assert len(again[OFFSET].notes) >= 2


def test_a_vital_setting_that_a_managed_cluster_refuses_still_stops_everything():
    cluster = ManagedCluster("message.timestamp.type", "segment.bytes")
    plans = {one.topic: one for one in apply(cluster, NAMES, PlanOptions())}
    assert {one.action for one in plans.values()} == {TopicAction.REFUSED}
    assert plans[OFFSET].reasons == ("Kafka refused: message.timestamp.type cannot be set",)
    assert cluster.topics == {}


def test_a_setting_that_matters_less_does_not_keep_another_change_away():
    cluster = ManagedCluster("segment.bytes", "min.cleanable.dirty.ratio")
    apply(cluster, NAMES, PlanOptions())
    cluster.topics[OFFSET].config["max.message.bytes"] = "1000"
    done = {one.topic: one for one in apply(cluster, NAMES, PlanOptions())}[OFFSET]
    assert done.action is TopicAction.CHANGE
    assert done.changes == (Change("max.message.bytes", "1000", "1048576"),)
    assert cluster.topics[OFFSET].config["max.message.bytes"] == "1048576"


def test_apply_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("txbridge.kafka.admin.VISIBLE_TIMEOUT_S", 0.1)
    cluster = FakeCluster()
    monkeypatch.setattr(cluster, "read_topics", dict.fromkeys)
    with pytest.raises(EnvironmentProblemError, match="some topics were still not as wanted within 0 s"):
        apply(cluster, NAMES, PlanOptions())


@pytest.mark.parametrize("group", ["", "a b", "a" * 201])
def test_groups_must_be_groups(group):
    with pytest.raises(UsageError, match="cannot be a producer group"):
        plan(FakeCluster(), NAMES, PlanOptions(groups=(group,)))


def test_a_missing_real_topic_is_created_with_room_for_the_largest_message():
    options = PlanOptions(max_message_size=2_000_000, real_topics=(RealTopic("orders"), RealTopic("paid", 6)))
    plans = by_topic({**NOTHING, "orders": None, "paid": None}, options)
    made = plans["orders"]
    assert (made.action, made.partitions, plans["paid"].partitions) == (TopicAction.CREATE, 4, 6)
    changes = {change.name: change.new for change in made.changes}
    assert set(changes) == {"max.message.bytes", "min.insync.replicas"}
    assert changes["max.message.bytes"] == "2131072"


def test_a_real_topic_that_is_there_is_left_as_it_is():
    facts = FoundTopic("orders", "id", 3, 1, 0, {"max.message.bytes": "1000", "cleanup.policy": "compact"})
    there = by_topic({**NOTHING, "orders": facts}, PlanOptions(real_topics=(RealTopic("orders"),)))["orders"]
    assert (there.action, there.partitions, there.changes) == (TopicAction.OK, 3, ())
    assert there.notes == ("takes records of up to 1,000 bytes; a larger message is held when it is committed",)
    other = by_topic({**NOTHING, "orders": facts}, PlanOptions(real_topics=(RealTopic("orders", 6),)))["orders"]
    assert other.action is TopicAction.REFUSED
    assert other.reasons[0].startswith("has 3 partitions, not 6: another number changes where keys go")


def test_a_real_topic_that_is_hidden_is_refused():
    hidden = MissingRight("DESCRIBE", "orders")
    plan = by_topic({**NOTHING, "orders": hidden}, PlanOptions(real_topics=(RealTopic("orders"),)))["orders"]
    assert (plan.action, plan.reasons) == (TopicAction.REFUSED, (str(hidden),))


@pytest.mark.parametrize(("text", "wanted"), [("a.b", RealTopic("a.b")), ("a:12", RealTopic("a", 12))])
def test_a_real_topic_as_it_is_given(text, wanted):
    assert RealTopic.parse(text, Names("ns"), 100) == wanted


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "'' is not the name of a topic"),
        ("a b", "'a b' is not the name of a topic"),
        ("a:0", "must be between 1 and 100"),
        ("a:x", "must be between 1 and 100"),
        ("a:101", "must be between 1 and 100"),
        ("RMQ_SYS_x", "no message is ever delivered to a topic of that name"),
        ("ns.TRANS_CHECK_MAX_TIME_TOPIC", "no message is ever delivered to a topic of that name"),
    ],
)
def test_what_can_not_be_a_real_topic(text, error):
    with pytest.raises(UsageError, match=error):
        RealTopic.parse(text, Names("ns"), 100)
