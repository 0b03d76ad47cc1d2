"""Clients of the front door that give different messages the same id, and clients that send one message again."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Self

import pytest

from tests.support.harness import Bridge, eventually
from tests.support.module_fixtures import module_bridge
from tests.support.rocketmq_door import (
    Client,
    Door,
    GoClient,
    GrpcClient,
    JavaClient,
    RawClient,
    answer_fields,
    end_fields,
    heartbeat,
    send_fields,
    topic_of,
)
from txbridge.embedded.ports import free_port

COMMIT, ROLLBACK = 8, 12
SEND, HEARTBEAT, END = 310, 34, 37
bridge = module_bridge("ids", transaction_check_max=100)


@pytest.fixture(scope="module")
def doors(bridge: Bridge) -> Iterator[tuple[Door, Door]]:
    with Door(bridge, metrics_port=free_port()) as one, Door(bridge) as other:
        yield one, other


#: Orders in which two clients send and end: each sends before it ends.
ORDERS = [
    order
    for order in itertools.permutations(("A send", "A end", "B send", "B end"))
    if order.index("A send") < order.index("A end") and order.index("B send") < order.index("B end")
]
#: What a client does at its end; a check is answered with the decision.
ENDS = [("end", COMMIT), ("end", ROLLBACK), ("check", COMMIT), ("check", ROLLBACK)]


def test_two_messages_with_one_id_have_each_its_own_decision(bridge: Bridge, doors: tuple[Door, Door]) -> None:
    """In every order, each through one door and decided through the other."""
    topic, group = topic_of(bridge, "two"), "two"
    decisions: dict[str, int] = {}
    asked = set()
    with RawClient(doors[0]) as one, RawClient(doors[1], source="127.0.0.2") as other:
        for number, (order, *ends) in enumerate(itertools.product(ORDERS, ENDS, ENDS)):
            sent = {}
            for name, step in map(str.split, order):
                here, there = (one, other) if name == "A" else (other, one)
                how, decision = ends[name == "B"]
                body = f"pair-{number}-{name}"
                if step == "send":
                    fields = send_fields(group, topic, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=f"{number}")
                    sent[name], _ = here.ask(SEND, fields, body.encode())
                    decisions[body] = decision
                    if how == "check":
                        asked.add(body)
                elif how == "end":
                    told, _ = there.ask(END, end_fields(group, sent[name], decision))
                    assert told["code"] == 0
        # From now on the worker's checks go to this client.
        one.ask(HEARTBEAT, {}, heartbeat(group))
        while asked:
            check, content = one.next_check()
            found = re.search(rb"pair-\d+-[AB]", content)
            assert found is not None
            body = found[0].decode()
            assert one.ask(END, answer_fields(group, check, decisions[body]))[0]["code"] == 0
            asked.discard(body)
        committed = [body.encode() for body, decision in decisions.items() if decision == COMMIT]
        bridge.wait_visible(topic, committed)
        eventually(lambda: all(len(one) == 1 for one in bridge.outcomes().values()), 30)
    assert len(decisions) == 2 * 6 * 16
    assert bridge.visible(topic) == Counter(committed)


def test_all_attempts_to_send_a_message_are_one_transaction(bridge: Bridge, doors: tuple[Door, Door]) -> None:
    """Through another door, to another queue, at another time, compressed, with another span of the trace."""
    topic, group = topic_of(bridge, "attempts"), "attempts"
    names = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": "one", "KEYS": "k"}
    attempts = [
        (send_fields(group, topic, **names, traceparent="00-1-1-01"), b"once"),
        (send_fields(group, topic, 3, traceparent="00-1-2-01", **dict(reversed(names.items()))), b"once"),
        (send_fields(group, topic, 1, **names) | {"f": "1", "g": "1700000003000"}, zlib.compress(b"once")),
    ]
    with RawClient(doors[0]) as here, RawClient(doors[1]) as there, RawClient(doors[0], source="127.0.0.2") as else_:
        told = [client.ask(SEND, *one)[0] for client, one in zip((here, there, there), attempts, strict=True)]
        # Each answer ends the same transaction.
        for one in reversed(told):
            assert here.ask(END, end_fields(group, one, COMMIT))[0]["code"] == 0
        bridge.wait_visible(topic, [b"once"])
        # The same bytes from another host are another message.
        again, _ = else_.ask(SEND, *attempts[0])
        else_.ask(END, end_fields(group, again, COMMIT))
        eventually(lambda: bridge.visible(topic)[b"once"] == 2)
        # A delayed message without a transaction.
        for client, body in ((here, b"late"), (there, b"late"), (there, b"later")):
            client.ask(SEND, send_fields(group, topic, DELAY="1", UNIQ_KEY="delayed"), body)
        bridge.wait_visible(topic, [b"late", b"later"])
    assert len({one["extFields"]["queueOffset"] for one in told}) == 1
    ids = [dict(one.headers() or ())["UNIQ_KEY"] for one in bridge.read(topic)]
    assert len(set(ids)) == 4


def test_equal_ids_are_counted_and_named(bridge: Bridge) -> None:
    topic, group = topic_of(bridge, "named"), "named"
    with Door(bridge, metrics_port=free_port()) as door:
        with RawClient(door) as one, RawClient(door, source="127.0.0.2") as other:
            for key in ("K1", "K2"):
                for client in (one, other, one):
                    client.ask(SEND, send_fields(group, topic, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=key), b"x")
            # Not known by an id: Kafka keeps each message.
            for client in (one, other):
                client.ask(SEND, send_fields(group, topic, UNIQ_KEY="K3"), b"x")
            peers = ["{}:{}".format(*client.socket.getsockname()) for client in (one, other)]
        [event] = door.events("equal_message_ids")
        assert (event["group"], event["id"], event["peers"]) == (group, "K1", peers)
        assert "MAC address" in event["next"]
        assert door.metrics()["equal_ids_total"] == 2


class AnswerThief:
    """A proxy before a door. It swallows all that comes after `text` on the same connection, and closes it, once."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.has_stolen = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.grpc_address = self.address

    def connect_to(self, port: int) -> Self:
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()
        return self

    def _accept(self, port: int) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                door = socket.create_connection(("127.0.0.1", port))
                state = SimpleNamespace(steals=False)
                for source, target in ((client, door), (door, client)):
                    threading.Thread(target=self._carry, args=(source, target, state), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, state: SimpleNamespace) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                if self._text in data and not self.has_stolen:
                    self.has_stolen = state.steals = True
                    target.sendall(data)
                    # The door stores the message in this time.
                    time.sleep(1)
                    target.shutdown(socket.SHUT_RDWR)
                    source.shutdown(socket.SHUT_RDWR)
                elif not state.steals:
                    target.sendall(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["5.3.2", "go", "python", "java"])
def test_what_a_real_client_sends_again_is_one_transaction(bridge: Bridge, kind: str) -> None:
    """Its first answer got lost on the way. (The clients of Java 4.9.8 and Node report an error instead.)"""
    group = f"again-{kind.replace('.', '')}"
    topic = topic_of(bridge, group)
    with AnswerThief(b"twice") as proxy:
        is_grpc = kind in {"python", "java"}
        given = ["--grpc-listen=127.0.0.1:0", f"--advertised={proxy.address}"]
        with Door(bridge, *given) as door:
            proxy.connect_to(door.grpc_port if is_grpc else door.port)
            made: Client
            if is_grpc:
                made = GrpcClient(kind, [proxy], [topic])
            else:
                made = GoClient([proxy], group) if kind == "go" else JavaClient(kind, [proxy], group)
            with made as client:
                client.transaction(topic, "twice", "commit", "commit")
                client.transaction(topic, "marker", "commit", "commit")
                bridge.wait_visible(topic, [b"twice", b"marker"])
    assert proxy.has_stolen
    assert bridge.visible(topic) == Counter({b"twice": 1, b"marker": 1})
    halves = [one for one in bridge.read(bridge.names.half) if dict(one.headers())["REAL_TOPIC"] == topic.encode()]
    assert [one.value() for one in halves].count(b"twice") == 2
    assert len({dict(one.headers())["UNIQ_KEY"] for one in halves}) == 2
