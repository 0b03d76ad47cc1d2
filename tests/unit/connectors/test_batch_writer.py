"""Rows that Kafka would refuse, as a relay knows before it sends them, and why."""

from __future__ import annotations

import pytest
from txbridge_sqlalchemy.batch_writer import RowRefusal, _refusal_of

from txbridge import Message
from txbridge.kafka.topic_lookup import TOO_LARGE, LookedUpTopic, TopicRules


@pytest.mark.parametrize(
    ("message", "topic", "refusal"),
    [
        (Message("t", b""), {"problem": "gone"}, RowRefusal("gone", whole_topic=True)),
        (
            Message("t", b""),
            {"lacks_leader": True},
            RowRefusal("a partition of topic t has no leader", whole_topic=True),
        ),
        (Message("t", b"x" * 744), {"rules": TopicRules(largest_batch=1_000)}, None),
        (Message("t", b"x" * 745), {"rules": TopicRules(largest_batch=1_000)}, RowRefusal(TOO_LARGE)),
        (Message("t", b"x", b"key"), {"rules": TopicRules(wants_keys=True)}, None),
        (Message("t", b"x"), {"rules": TopicRules(wants_keys=True)}, "key"),
        (Message("t", b"", timestamp=1), {"rules": TopicRules(behind_ms=1_000)}, "timestamp"),
        (Message("t", b"", partition=2), {"partitions": 3}, None),
        (Message("t", b"", partition=3), {"partitions": 3}, "partition"),
    ],
)
def test_a_topic_may_refuse_all_or_one_message_and_take_another(message, topic, refusal):
    found = _refusal_of(message, LookedUpTopic(1.0, **({"problem": None} | topic)))
    if isinstance(refusal, str):
        assert refusal in found.reason
        assert not found.whole_topic
    else:
        assert found == refusal
