"""A lane of a relay on SQLite, with a stand-in for Kafka: what it does when steps fail, and at its end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, text
from txbridge_sqlalchemy import LaneState, Outbox, OutboxRows, create_outbox
from txbridge_sqlalchemy.relay_lane import LaneRelay

from tests.support.harness import eventually
from txbridge import LocalTransactionState, Message
from txbridge.client.message import MessageLimits


class Producer:
    """Runs the local transactions of batches. A test acknowledges their ENDs."""

    limits = MessageLimits(1_000_000, 1_000_000)
    real_topics = SimpleNamespace(look_up_all=lambda _: None, is_closed=lambda _: False, would_refuse=lambda _: False)

    def __init__(self, engine):
        self.engine, self.batches, self.ends, self.again = engine, 0, [], None

    def send_in_lane(self, message, lane, deletion):
        self.batches += 1
        state = LaneState(f"{self.batches:032X}", lane, self.batches)
        with self.engine.connect() as connection:
            is_whole = deletion.rows.delete_batch(connection, lane, deletion.before, state, deletion.ids)
            connection.commit() if is_whole else connection.rollback()
        self.ends.append(Future())
        made = LocalTransactionState.COMMIT_MESSAGE if is_whole else LocalTransactionState.ROLLBACK_MESSAGE
        more = {"local_transaction_state": made, "local_exception": None, "end": self.ends[-1]}
        return SimpleNamespace(**more, **state._asdict())

    def send_commit_again(self, *state):
        self.again = LaneState(*state)
        self.ends.append(Future())
        return self.ends[-1]


@pytest.fixture
def lane(sqlite_url):
    engine = create_engine(sqlite_url)
    create_outbox(engine)
    with engine.begin() as connection:
        Outbox().add(connection, Message("t", b"1"))
    rows, producer = OutboxRows(engine), Producer(engine)
    rows.take_lanes(1)
    watcher = SimpleNamespace(on_batch=lambda *_: None, on_refusal=lambda *_: None)
    relay = LaneRelay(0, rows, threading.Lock(), producer, watcher)
    yield relay, producer, engine
    relay.stop()
    for end in producer.ends:
        end.cancel()
    relay.join()
    rows.close()
    engine.dispose()


def test_rows_that_cannot_be_deleted_are_tried_less_and_less_often_and_named(lane):
    relay, producer, engine = lane
    with engine.begin() as connection:
        connection.execute(text("CREATE TRIGGER t BEFORE DELETE ON txbridge_outbox BEGIN SELECT RAISE(IGNORE); END"))
    relay.start()
    eventually(lambda: relay.problem, 10)
    assert "1 rows cannot be deleted, and no other relay was faster" in relay.problem
    time.sleep(1)
    assert producer.batches < 10
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER t"))
    eventually(lambda: not relay.problem, 10)


def test_a_stopped_lane_still_tries_to_finish_its_batch_and_says_so_if_it_cannot(lane, monkeypatch, caplog):
    monkeypatch.setattr("txbridge_sqlalchemy.relay_lane._FINISH_S", 1.0)
    relay, producer, _ = lane
    relay.start()
    eventually(lambda: producer.ends, 10)
    relay.stop()
    producer.ends[0].set_exception(RuntimeError("given up"))
    relay.join()
    assert producer.again == LaneState(f"{1:032X}", 0, 1)
    assert "relay_end_left" in caplog.text
