"""Another cluster at the same address, and internal topics that were made again: nobody takes them for those of before.

A program that does says that it is ready and delivers nothing, or writes to a stranger's topics.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.support.harness import Bridge, eventually, quiet
from tests.support.listeners import Answers, AsyncCommits, Commits
from tests.support.programs import all_programs, program_on
from txbridge import AsyncTransactionProducer, Message, PrepareError, TransactionProducer
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port


def why_not_sent(producer: TransactionProducer, topic: str, value: bytes) -> str:
    """Send a message. Returns why it was not sent; empty if it was."""
    try:
        producer.send_message_in_transaction(Message(topic, value))
    except PrepareError as error:
        return str(error)
    return ""


def test_topics_that_were_made_again_are_served_within_seconds(bridge: Bridge, tmp_path: Path) -> None:
    topic, settings = bridge.create_topic("real"), {"bootstrap.servers": bridge.bootstrap_servers}
    with (
        all_programs(bridge, tmp_path) as programs,
        TransactionProducer("orders", Commits(), settings, namespace=bridge.namespace) as producer,
    ):
        [worker] = bridge.workers
        eventually(lambda: not any(one.why_not_ready() for one in programs.values()))
        assert why_not_sent(producer, topic, b"before") == ""
        bridge.wait_visible(topic, [b"before"])
        for answer in bridge.admin.delete_topics([*bridge.names.identified.values(), bridge.names.discard]).values():
            answer.result(120)
        eventually(lambda: "do not exist any more: `txbridge topics apply`" in programs["worker"].why_not_ready())
        bridge.make_topics()
        made = time.monotonic()
        assert worker.wait_dead(10) == 1
        assert "were deleted and created again: this process ends" in worker.events("topics_changed")[-1]["error"]
        bridge.worker()
        eventually(lambda: why_not_sent(producer, topic, b"after") == "")
        bridge.wait_visible(topic, [b"after"])
        print(f"delivered {time.monotonic() - made:.1f} s after the topics were there")
        assert {name for name, one in programs.items() if one.why_not_ready()} == {"worker"}


def joined_groups(bridge: Bridge) -> set[str]:
    """The groups of the cluster that answers now, as far as they have members."""
    admin = AdminClient(quiet(bridge.bootstrap_servers))
    found = admin.list_consumer_groups().result(120).valid
    return {one.group_id for one in found if one.state is not ConsumerGroupState.EMPTY}


def test_every_program_refuses_another_cluster_at_its_address_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it has the same topics, and until the first one is back. No local transaction counts on the other one."""
    port, stopping, listener = free_port(), threading.Event(), Answers()
    first, second = (EmbeddedKafka(port, tmp_path / name) for name in ("first", "second"))
    bridge = Bridge(f"127.0.0.1:{port}", "elsewhere")
    given = {"bootstrap.servers": bridge.bootstrap_servers}, bridge.namespace

    def ends() -> list[tuple[int, int]]:
        return [bridge.bounds(bridge.names.half, one) for one in range(bridge.partitions)]

    with second:
        bridge.make_topics()
        other = str(bridge.admin.list_topics(timeout=120).cluster_id)
    with (
        first,
        bridge,
        all_programs(bridge, tmp_path) as programs,
        TransactionProducer("orders", listener, given[0], namespace=given[1]) as producer,
        asyncio.Runner() as runner,
    ):
        topic = bridge.create_topic("real")
        named = f"another Kafka cluster answers at the same address: {other}, not "
        client = AsyncTransactionProducer("async", AsyncCommits(), given[0], namespace=given[1])
        runner.run(client.start())
        standby = bridge.worker(wait=0, transaction_check_max=100, metrics_port=(standby_port := free_port()))
        programs["standby"] = program_on(standby_port, standby.pid)

        def send_on() -> None:
            for number in range(100_000):
                why_not_sent(producer, topic, b"%d" % number)
                if stopping.wait(0.02):
                    return

        sending = threading.Thread(target=send_on, daemon=True)
        sending.start()
        eventually(lambda: len(listener.executed) > 20 and not any(one.why_not_ready() for one in programs.values()))
        first.kill()
        with second:
            for name in ("worker", "standby", "door"):
                eventually(lambda name=name: named in programs[name].why_not_ready())  # type: ignore[misc]
            # Those of this process: of the test, and of the programs.
            eventually(lambda: caplog.text.count("cluster_changed") == 3)
            time.sleep(4)  # what was on its way may come for message.timeout.ms (3 s), though its send has failed
            before = ends()
            assert named in why_not_sent(producer, topic, b"stranger")
            with pytest.raises(PrepareError, match=named):
                runner.run(client.send_message_in_transaction(Message(topic, b"stranger")))
            assert (producer.is_connected, client.is_connected) == (False, False)
            assert ends() == before
            assert [one for one in bridge.admin.list_topics(timeout=120).topics if bridge.names.check("") in one] == []
            eventually(lambda: bridge.names.worker_group not in joined_groups(bridge))
        first.start()
        ports = dict(zip(bridge.workers, (programs["worker"].port, standby_port), strict=True))

        def are_ready() -> bool:
            # Faust may hang when it has to leave a group whose coordinator is gone. Then the process ends, and the test
            # is its supervisor.
            for worker, port in list(ports.items()):
                if worker.returncode is not None:
                    assert (worker.returncode, len(worker.events("worker_hangs"))) == (1, 1)
                    ports[bridge.worker(wait=0, transaction_check_max=100, metrics_port=port)] = ports.pop(worker)
            return not any(one.why_not_ready() for one in programs.values())

        eventually(are_ready)
        eventually(lambda: why_not_sent(producer, topic, b"back") == "")
        stopping.set()
        sending.join()
        runner.run(client.send_message_in_transaction(Message(topic, b"async")))
        runner.run(client.close())
        bridge.wait_visible(topic, [b"async", *(message.value or b"" for message, _ in listener.executed)], 60)
        assert {one.returncode for one in ports} == {None}
