"""Rows that cannot be sent wait alone: later ones of their key or topic wait with them, all others pass."""

from __future__ import annotations

import json
import random
import time

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from sqlalchemy import delete, insert
from txbridge_sqlalchemy import Outbox
from txbridge_sqlalchemy.outbox_table import outbox

from tests.support.harness import Bridge, eventually
from tests.support.relays import (
    add_rows,
    end_gently,
    page,
    relaying,
    require_exact,
    rows_left,
    wait_metric,
    wait_relayed,
    wait_unready,
)
from txbridge import Message
from txbridge.embedded.ports import free_port


def blocked(capfd):
    """What a relay has logged of rows that cannot be sent: topic and reason."""
    lines = [json.loads(line) for line in "".join(capfd.readouterr()).splitlines() if line.startswith("{")]
    return sorted((line["topic"], line["reason"]) for line in lines if line["event"] == "outbox_row_blocked")


def values(bridge, topic, key):
    return [record.value() for record in bridge.read(topic) if record.key() == key]


def test_rows_that_cannot_be_sent_stop_nobody_else(bridge, topic, url, engine, capfd):
    small, one = bridge.create_topic("small", max_message_bytes="1000"), bridge.create_topic("one", 1)
    missing, box, port = f"{bridge.namespace}.missing", Outbox(), free_port()
    in_a_week = round((time.time() + 7 * 86_400) * 1_000)
    with engine.begin() as connection:
        box.add(connection, Message(topic, b"late", b"late", timestamp=in_a_week))
        for number in range(10):
            value = b"%d" % number
            box.add(
                connection,
                Message(missing, value, b"k"),
                Message(small, random.randbytes(2_000) if number == 3 else value, b"k"),
                Message(small, value, b"other"),
                Message(one, value, b"k", partition=99 if number == 4 else 0),
                Message(one, value, b"other"),
                Message(topic, value, b"k"),
            )
        box.add(connection, Message(topic, random.randbytes(2_000_000), b"large"), Message(topic, b"behind", b"large"))
        connection.execute(insert(outbox).values(topic="no topic", value=b"", created_at=1))
    expected = [b"%d" % number for number in range(10)]
    with relaying(bridge, url, "--metrics-port", str(port)) as relay:
        eventually(lambda: values(bridge, topic, b"k") == expected, 30)
        eventually(lambda: values(bridge, small, b"other") == values(bridge, one, b"other") == expected, 30)
        # Those before it are not held up.
        assert values(bridge, small, b"k") == expected[:3]
        assert values(bridge, one, b"k") == expected[:4]
        assert values(bridge, topic, b"large") == []
        wait_metric(port, "rows_blocked 6.0")
        text = page(port, "/metrics").text
        assert f'txbridge_relay_blocked_row{{row="2",topic="{missing}"}} 1.0' in text
        assert page(port, "/readyz").status == 200
        bridge.create_topic("missing")
        config = ConfigResource(ResourceType.TOPIC, small)
        config.add_incremental_config(
            ConfigEntry("max.message.bytes", "5000", None, 0, incremental_operation=AlterConfigOpType.SET)
        )
        bridge.admin.incremental_alter_configs([config])[config].result(120)
        with engine.begin() as connection:
            connection.execute(delete(outbox).where(outbox.c.partition == 99))
        eventually(lambda: values(bridge, missing, b"k") == expected, 60)
        eventually(lambda: len(values(bridge, small, b"k")) == 10, 60)
        eventually(lambda: values(bridge, one, b"k") == expected[:4] + expected[5:], 60)
        wait_metric(port, "rows_blocked 3.0")
        end_gently(relay)
    # The one of a week from now, the large one and who follows it, and that without a topic's name.
    assert rows_left(engine) == 4
    told = blocked(capfd)
    assert [name for name, _ in told] == sorted([missing, small, one, topic, topic, "no topic"])
    assert (missing, f"topic {missing} does not exist") in told
    require_exact(bridge, missing, 10)


def test_a_topic_that_is_deleted_holds_up_no_other(bridge, topic, url, engine, capfd):
    gone = bridge.create_topic("gone")
    with relaying(bridge, url) as relay:
        add_rows(engine, gone, range(10))
        add_rows(engine, topic, range(10))
        wait_relayed(bridge, topic, 10, relay)
        wait_relayed(bridge, gone, 10, relay)
        bridge.admin.delete_topics([gone])[gone].result(120)
        slowest = 0.0
        for number in range(10, 40):
            add_rows(engine, gone, range(number - 10, number - 9))
            began = time.monotonic()
            add_rows(engine, topic, range(number, number + 1))
            wait_relayed(bridge, topic, number + 1, relay, 60)
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.2)
        with capfd.disabled():
            print(f"rows of the other topic were visible after {slowest:.1f} s at most")
        assert slowest < 10
        bridge.create_topic("gone")
        wait_relayed(bridge, gone, 30, relay, 60)
        end_gently(relay)
    require_exact(bridge, topic, 40)
    require_exact(bridge, gone, 30)
    assert len(blocked(capfd)) == 1


def test_p3_an_outage_of_kafka_blocks_no_row(own_kafka, request, url, engine, capfd):
    """Longer than a record is tried for; the broker stands still first, and then it is killed."""
    with Bridge(own_kafka.bootstrap_servers, request.node.name) as bridge:
        topic, port = bridge.create_topic("orders"), free_port()
        with relaying(bridge, url, "--metrics-port", str(port)) as relay:
            add_rows(engine, topic, range(100))
            wait_relayed(bridge, topic, 100, relay)
            own_kafka.pause()
            add_rows(engine, topic, range(100, 300))
            wait_unready(port, "")
            assert rows_left(engine) == 200
            own_kafka.resume()
            wait_relayed(bridge, topic, 300, relay, timeout=60)
            own_kafka.kill()
            add_rows(engine, topic, range(300, 400))
            time.sleep(5)
            own_kafka.restart()
            wait_relayed(bridge, topic, 400, relay, timeout=60)
            eventually(lambda: page(port, "/readyz").status == 200, 30)
            end_gently(relay)
        require_exact(bridge, topic, 400)
    assert blocked(capfd) == []
    assert rows_left(engine) == 0
