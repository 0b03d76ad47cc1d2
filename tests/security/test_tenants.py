"""Rights of a client towards others of its namespace, and towards another one, with real users (docs/security.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, Producer

from tests.integration.test_security import Scene, scene, secure  # noqa: F401  (fixtures)
from tests.support.harness import UNKNOWN, Bridge, Prepared, eventually
from txbridge import LocalTransactionState, Message
from txbridge.kafka.acl import Pattern, ResourceKind, Right


@pytest.mark.long
def test_what_a_client_can_do_to_others(scene: Scene) -> None:  # noqa: F811
    bridge, names, group = scene.bridge, scene.bridge.names, scene.group
    worker = scene.worker(scene.user("worker"), transaction_timeout=500, transaction_check_interval=600_000)
    client, listener = scene.producer(scene.user("client"), LocalTransactionState.COMMIT_MESSAGE)
    mallory = replace(scene, group="mallory").user("client")
    mallory.grant(Right(ResourceKind.TOPIC, scene.real, Pattern.LITERAL, ("READ",)))
    settings = {**mallory.settings, "bootstrap.servers": scene.secure.secure, "compression.type": "zstd"}
    producer, codes = Producer({**settings, "message.max.bytes": 10**9}), list[int]()

    def write(topic: str, value: bytes, *headers: tuple[str, bytes], partition: int = 0) -> int:
        """The code of Kafka's answer to a record of Mallory's."""
        producer.produce(
            *(topic, value, None, partition, lambda error, _: codes.append(error.code() if error else 0)),
            headers=[*headers],
        )
        assert producer.flush(60) == 0
        return codes.pop()

    with client, Bridge(scene.secure.plain, "another tenant") as other:
        # It can have another group asked about its own messages.
        assert write(names.half, b"of mallory", *bridge.half_headers(scene.real, group)) == 0
        bridge.wait_visible(scene.real, [b"of mallory"])
        assert listener.checked == [b"of mallory"]
        # It cannot stop a partition, nor write to an internal topic, neither by itself nor through the worker.
        for topic in (names.half, names.end):
            assert write(topic, bytes(9 * 10**7)) == KafkaError.MSG_SIZE_TOO_LARGE
            assert write(topic, b"garbage") == 0
        for topic in (names.op, names.offset, names.discard, names.check(group), other.names.half, other.names.end):
            assert write(topic, b"forged") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert write(names.half, b"0", *bridge.half_headers(names.op, "mallory")) == 0
        eventually(lambda: len(bridge.discarded()) == 3)
        # It cannot give up what is left of a transaction by a message that it may read.
        sent = client.send_message_in_transaction([Message(scene.real, b"now"), Message(scene.real, b"later", delay=5)])
        bridge.wait_visible(scene.real, [b"of mallory", b"now"])
        seen = next(dict(one.headers() or ())["UNIQ_KEY"] for one in bridge.read(scene.real) if one.value() == b"now")
        forged = Prepared(sent.half_partition, sent.half_offset, (seen or b"").decode())
        write(
            names.end, forged.entry(UNKNOWN).encode(), *bridge.end_headers(group, "abandon"), partition=forged.partition
        )
        bridge.wait_visible(scene.real, [b"of mallory", b"now", b"later"])
    assert [one["reason"] for one in worker.events("end_refused")] == ["wrong_transaction_id"]
