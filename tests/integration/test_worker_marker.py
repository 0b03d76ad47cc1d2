"""A topic that loses its room for Kafka's transaction marker: never written to, and named when it has happened."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.test_cancel import producer_of, send
from tests.integration.test_doctor import settings
from tests.support.harness import COMMIT, Bridge, eventually
from tests.support.module_fixtures import module_kafka
from txbridge import CancelOutcome
from txbridge.doctor.run import examine
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka import fenced_producer, topic_lookup
from txbridge.kafka.topic_lookup import TopicRules

DEFAULT = "1048588"
#: A broker that may be restarted.
kafka = module_kafka()


@pytest.fixture
def bridge(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Bridge]:
    with Bridge(kafka.bootstrap_servers, request.node.name, partitions=1) as made:
        yield made


def test_p8_a_topic_that_loses_the_room_for_a_marker_is_written_to_for_a_second_at_most(bridge: Bridge) -> None:
    small, other = bridge.create_topic("small", 1), bridge.create_topic("other", 1)
    with bridge.local_owner() as owner, producer_of(bridge) as producer:
        bridge.deliver(small, b"before")
        scheduled = [send(producer, other, b"later") for _ in range(2)]
        assert producer.cancel(scheduled[0], "known").outcome is CancelOutcome.CANCELLED
        check_topic = bridge.names.check("group")
        for topic in (small, check_topic):
            bridge.alter_topic(topic, max_message_bytes="10")
        time.sleep(1)
        # The reply is left out; the command takes effect.
        with pytest.raises(TimeoutError, match="stands in END"):
            producer.cancel(scheduled[1], "unheard", timeout=3)
        bridge.decide(bridge.prepare(small, b"after", partition=0), COMMIT)
        bridge.deliver(other, b"other")
        eventually(lambda: bridge.parked_states(0) == ["held"])
        assert owner.owner.status.serving
        for topic in (small, check_topic):
            bridge.alter_topic(topic, max_message_bytes=DEFAULT)
        bridge.wait_visible(small, [b"before", b"after"], 90)
        assert producer.cancel(scheduled[1], "heard").outcome is CancelOutcome.CANCELLED


@pytest.mark.parametrize(
    ("fault", "shows_configs"),
    [("message", True), ("message", False), ("reply", True)],
    ids=["message", "message, configuration hidden", "reply to a cancel"],
)
def test_a_topic_that_lost_the_room_in_that_second_is_named_until_its_coordinator_is_restarted(
    kafka: EmbeddedKafka, bridge: Bridge, fault: str, shows_configs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_lookup, "BELIEVED_S", 60.0)
    monkeypatch.setattr(fenced_producer, "_INIT_TIMEOUT_S", 3.0)
    if not shows_configs:
        # As for a worker without the right DESCRIBE_CONFIGS.
        monkeypatch.setattr(topic_lookup, "_rules_in", lambda _: TopicRules())
    real, other = bridge.create_topic("real", 1), bridge.create_topic("other", 1)
    small = real if fault == "message" else bridge.names.check("group")
    first = bridge.local_owner().wait_serving()
    with producer_of(bridge) as producer:
        bridge.deliver(real, b"before")
        scheduled = [send(producer, other, b"later") for _ in range(2)]
        producer.cancel(scheduled[0], "known")
        bridge.alter_topic(small, max_message_bytes="10")
        if fault == "message":
            bridge.decide(bridge.prepare(real, b"after", partition=0), COMMIT)
        else:
            with pytest.raises(TimeoutError, match="stands in END"):
                producer.cancel(scheduled[1], "unheard", timeout=3)
    why = (
        "and Kafka's own transaction marker takes 78 bytes: raise it" if shows_configs else "raise max.message.bytes if"
    )
    first.wait_error(small, why, "; then restart its coordinator")
    first.stop()
    # It knows the topics of the half messages, and may not see what is wrong with them.
    second = bridge.local_owner()
    second.wait_error(small, why, "; then restart its coordinator")
    found = [one for one in examine(settings(bridge)).findings if small in one.text and "marker" in one.text]
    assert [one.level.value for one in found] == ["problem"]
    bridge.alter_topic(small, max_message_bytes=DEFAULT)
    kafka.restart()
    second.wait_serving(90)
    bridge.deliver(other, b"other")
    if fault == "message":
        bridge.wait_visible(real, [b"before", b"after"])
