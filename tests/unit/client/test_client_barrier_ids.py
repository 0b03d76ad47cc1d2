"""The barrier table that half messages name, in all APIs of the client."""

from __future__ import annotations

import pytest

from tests.support.apis import APIS, AsyncioPlain
from tests.support.client_fakes import working_kafka
from tests.support.listeners import Commits
from txbridge import Message, UsageError

SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
MESSAGE = Message("orders", b"v", b"k", [("trace", b"1")])


class Listener(Commits):
    def __init__(self, barrier_id):
        self.name = barrier_id

    def barrier_id(self):
        if isinstance(self.name, Exception):
            raise self.name
        return self.name


@pytest.fixture
def kafka(monkeypatch):
    return working_kafka(monkeypatch)


@pytest.fixture(params=[*APIS, AsyncioPlain], ids=lambda api: api.__name__)
def producer(request, kafka):
    """Make a started producer."""
    made = []

    def make(listener):
        made.append(request.param("orders", listener, SETTINGS).start())
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.end_loop()


def named(kafka):
    """The barrier table in each half message."""
    return [dict(record[3]).get("TXB_BARRIER") for wire in kafka.half_wires() for record in wire.records]


def test_each_half_message_names_the_table_that_the_listener_has_then(kafka, producer):
    listener = Listener("00000000000000aa")
    sends = producer(listener)
    sends.send(MESSAGE)
    listener.name = "00000000000000bb"
    sends.send(MESSAGE)
    assert sorted(named(kafka)) == [b"00000000000000aa", b"00000000000000bb"]


def test_a_listener_without_a_table_names_none(kafka, producer):
    producer(Commits()).send(MESSAGE)
    assert named(kafka) == [None]


def test_nothing_is_sent_while_the_table_can_not_be_asked(kafka, producer):
    listener = Listener(ConnectionError("the database is away"))
    sends = producer(listener)
    with pytest.raises(ConnectionError, match="the database is away"):
        sends.send(MESSAGE)
    assert named(kafka) == []
    listener.name = "00000000000000aa"
    sends.send(MESSAGE)
    assert named(kafka) == [b"00000000000000aa"]
    assert sends.flush(60) == 0


@pytest.mark.parametrize(
    ("barrier_id", "complaint"),
    [
        ("two words", "it takes None, or 1 to 64 characters"),
        (7, "barrier_id\\(\\) returned 7"),
        (UsageError("READ UNCOMMITTED"), "READ UNCOMMITTED"),
    ],
)
def test_a_mistake_of_the_listener_is_one_of_usage(kafka, producer, barrier_id, complaint):
    with pytest.raises(UsageError, match=complaint):
        producer(Listener(barrier_id)).send(MESSAGE)
    assert named(kafka) == []
