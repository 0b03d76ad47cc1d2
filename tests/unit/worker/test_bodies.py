"""Bodies for a draft: HALF's current record at an offset is compared with the one that was read there before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.partition_builder import COMMIT, Partition, end, entry, half, id_of
from txbridge.core.half_message import HalfMessage
from txbridge.core.names import Names
from txbridge.kafka.body_cache import BodyCache
from txbridge.worker.gates.topic_health import TopicHealth, load_bodies

LOST_ITS_TAIL = "another message stands at its offset in HALF: the log has lost its tail and has grown again"
OTHERS = {"transaction_id": id_of(99), "group": "payments", "real_topic": "orders.paid"}


def noting(told: list[tuple[int, str]]) -> TopicHealth:
    """Topics that take everything. Messages that may not be delivered are noted with their reasons."""
    note = lambda _, offset, why: told.append((offset, why))  # noqa: E731
    return cast(TopicHealth, SimpleNamespace(note_refusal=note, refusal_of=lambda *_: None))


def half_holds(*messages: HalfMessage) -> BodyCache:
    reader: Any = SimpleNamespace()
    bodies = BodyCache(1_000_000, Names(), reader)
    for message in messages:
        bodies.put(message)
    return bodies


@pytest.mark.parametrize("field", OTHERS)
def test_p1_p2_no_body_is_delivered_for_another_message(field):
    partition = Partition().prepare(0, 1)
    draft = partition.draft(2_000, end(0, entry(0, COMMIT), entry(1, COMMIT)))
    assert [one.offset for one in draft.deliver] == [0, 1]
    told: list[tuple[int, str]] = []
    bodies = half_holds(half(0)._replace(**{field: OTHERS[field]}), half(1))
    assert load_bodies(draft, bodies, noting(told)) is None
    assert told == [(0, LOST_ITS_TAIL)]


def test_a_check_and_a_discard_tell_of_their_own_transaction_without_a_strangers_body():
    partition = Partition().prepare(0)
    for now in (7_000, 37_000):
        partition.step(now)
    another = half(0)._replace(transaction_id=id_of(99), value=b"of another", key=b"of another")
    for now, effect in ((67_000, "checks"), (97_000, "discards")):
        draft = partition.draft(now)
        assert [one.offset for one in getattr(draft, effect)] == [0]
        bodies = load_bodies(draft, half_holds(another), noting([]))
        assert bodies is not None
        assert (bodies[0].transaction_id, bodies[0].key, bodies[0].value) == (id_of(0), None, None)
        partition.commit(draft)


def test_what_is_the_same_message_goes_out_with_its_body():
    draft = Partition().prepare(0).draft(2_000, end(0, entry(0, COMMIT)))
    bodies = load_bodies(draft, half_holds(half(0)), noting([]))
    assert bodies == {0: half(0)}
