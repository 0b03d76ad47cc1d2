"""The order of a relay's messages while transactions overlap in every way."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from txbridge_sqlalchemy import Outbox

from tests.support.relays import end_gently, relaying, require_exact, rows_left, wait_relayed
from txbridge import Message

_WRITERS, _KEYS, _EACH = 8, 3, 60
#: Each row shows its id as its value.
_SHOW_ID = """
    CREATE FUNCTION show_id() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN NEW.value := convert_to(NEW.id::text, ''UTF8''); RETURN NEW; END';
    CREATE TRIGGER show_id BEFORE INSERT ON txbridge_outbox FOR EACH ROW EXECUTE FUNCTION show_id();
    CREATE TABLE elsewhere (number int)
"""


def test_p14_ids_of_a_key_are_delivered_in_their_order_whoever_began_first(bridge, topic, url, engine):
    """Each transaction writes elsewhere before or after it adds, and one of ten is rolled back."""
    box = Outbox()

    def write_elsewhere(connection, _key):
        connection.exec_driver_sql("INSERT INTO elsewhere VALUES (1)")

    def add(connection, key):
        box.add(connection, Message(topic, b"", key))

    def write(writer):
        chance, committed = random.Random(writer), 0
        for _ in range(_EACH):
            steps, key = [write_elsewhere, add], b"%d" % chance.randrange(_KEYS)
            chance.shuffle(steps)
            with engine.connect() as connection:
                for step in steps:
                    step(connection, key)
                    time.sleep(chance.uniform(0, 0.03))
                if chance.random() > 0.1:
                    connection.commit()
                    committed += 1
        return committed

    with engine.begin() as connection:
        connection.exec_driver_sql(_SHOW_ID)
    with relaying(bridge, url) as relay, ThreadPoolExecutor(_WRITERS) as pool, engine.connect() as open_one:
        with engine.begin() as connection:
            add(connection, b"0")
        wait_relayed(bridge, topic, 1, relay)
        # It stays open and adds no row, so none waits for it.
        write_elsewhere(open_one, b"")
        committed = 1 + sum(pool.map(write, range(_WRITERS)))
        wait_relayed(bridge, topic, committed, relay)
    by_key = defaultdict(list)
    for record in bridge.read(topic):
        by_key[record.key()].append(int(record.value()))
    assert [sum(map(len, by_key.values())), rows_left(engine)] == [committed, 0]
    assert len(by_key) == _KEYS
    for ids in by_key.values():
        assert ids == sorted(set(ids))


def test_a_lower_id_that_becomes_visible_after_a_higher_one_was_sent(bridge, topic, url, engine):
    """Sessions draw ids in blocks. Each has a key of its own: rows of one key have no order then."""
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER SEQUENCE txbridge_outbox_id_seq CACHE 50")
    box = Outbox()
    with relaying(bridge, url) as relay, engine.connect() as one, engine.connect() as other:
        for number in range(20):
            session = other if number % 2 else one
            box.add(session, Message(topic, b"%d" % number, b"odd" if number % 2 else b"even"))
            session.commit()
            wait_relayed(bridge, topic, number + 1, relay)
        end_gently(relay)
    require_exact(bridge, topic, 20)
    assert rows_left(engine) == 0
