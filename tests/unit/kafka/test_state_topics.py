"""OFFSET and OP as an owner and as a mere reader see them: the same, with foreign records left out."""

from __future__ import annotations

import json

import pytest

from tests.support.client_fakes import FakeRecord
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.checkpoint import Checkpoint, Cut
from txbridge.core.names import Names
from txbridge.core.offset_topic import OffsetTopic
from txbridge.core.states import Outcome
from txbridge.kafka.state_topics import NewerOpError, fold_offset_topic, read_ops

NAMES = Names("ns")
OURS = [("TXB_V", b"1")]


class Reader:
    """A partition that is read to its end."""

    def __init__(self, *records):
        self.records, self.position = records, 0

    def read_to(self, end, stopping):
        assert not stopping()
        yield from self.records[:end]
        self.position = end


def op(offset, value, headers=(("TXB_V", b"1"), ("TAGS", b"d"), ("OUTCOME", b"commit"))):
    return FakeRecord(offset=offset, value=value, headers=headers)


def read(reader, checkpoint=None):
    passed_over = []
    found = list(
        read_ops(reader, checkpoint, 9, lambda: False, lambda offset, error: passed_over.append((offset, str(error))))
    )
    return found, passed_over


def test_a_strangers_op_record_is_passed_over_and_reported():
    found, passed_over = read(Reader(op(3, b"7,8"), op(4, b"seven"), op(6, b"9")))
    assert found == [(3, Outcome.COMMIT, [7, 8]), (6, Outcome.COMMIT, [9])]
    assert [offset for offset, _ in passed_over] == [4]


def test_an_op_record_of_a_later_release_is_an_error_that_names_it():
    reader = Reader(op(3, b"7"), op(5, b"8", [("TXB_V", b"2"), ("TAGS", b"d"), ("OUTCOME", b"commit")]))
    with pytest.raises(NewerOpError) as caught:
        read(reader)
    assert caught.value.offset == 5


def test_what_op_says_of_messages_that_were_lost_says_nothing_of_those_in_their_place():
    checkpoint = Checkpoint(half=5, end=0, op=0, topics={}, cut=Cut(half=6, op=4, at=0, by="eve", reason="restored"))
    found, _ = read(Reader(op(3, b"5,6,7"), op(4, b"6")), checkpoint)
    assert found == [(3, Outcome.COMMIT, [5]), (4, Outcome.COMMIT, [6])]


def test_the_next_check_is_due_an_interval_after_the_last_one_was_appended():
    """A reader computes the same time as the owner."""
    value = {"state": "pending", "id": "A" * 32, "group": "g", "topic": "t", "born": 1_000, "size": 1, "checks": 1}
    parked = json.dumps(value | {"next": 31_000, "end": 0}).encode()
    offset_topic = OffsetTopic(NAMES, 0, CheckPolicy(transaction_check_interval=30_000))
    record = FakeRecord(offset=2, timestamp=1_400, key=NAMES.parked_key(0, 7), value=parked, headers=OURS)
    strange = FakeRecord(offset=3, timestamp=1_500, key=b"ours?", value=b"", headers=OURS)
    passed_over = []
    reader = Reader(record, strange)
    fold_offset_topic(reader, offset_topic, 4, lambda: False, lambda offset, _: passed_over.append(offset))
    assert offset_topic.parked[7].next_due == 31_400
    assert passed_over == [3]
    assert offset_topic.position == 4
