"""Brokers that want a client's certificate: client, worker, door and commands, and certificates that change or end."""

from __future__ import annotations

import itertools
import secrets
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.integration.test_security import Scene, scene  # noqa: F401  (a fixture)
from tests.integration.test_unreachable_kafka import refusal
from tests.support.authority import PASSWORD, Authority
from tests.support.harness import eventually
from tests.support.rocketmq_door import RawClient, end_fields, send_fields, topic_of
from tests.support.secure_kafka import SecureKafka, User
from txbridge import LocalTransactionState, Message, PrepareError
from txbridge.embedded import EmbeddedKafka
from txbridge.kafka.acl import Pattern, ResourceKind, Right

_LISTENER = "listener.name.secure"
_STORE = f"{_LISTENER}.ssl.keystore.location"
SEND, END, COMMIT = 310, 37, 8


@dataclass(frozen=True)
class MutualKafka(SecureKafka):
    """Users have certificates of the old authority, and trust the old one and a new one, as the broker does."""

    folder: Path
    old: Authority
    new: Authority

    def user(self, name: str) -> User:
        return self.issue(f"{name}-{secrets.token_hex(3)}")

    def issue(self, name: str, seconds: float = 86_400, authority: Authority | None = None) -> User:
        """A user with new files of a certificate for so many seconds."""
        own = (authority or self.old).client(name, self.folder, seconds)
        return User(self, name, {"security.protocol": "ssl", "ssl.ca.location": str(self.folder / "trust.pem"), **own})

    def present(self, authority: Authority, seconds: float = 86_400) -> None:
        """Let the running broker present a new certificate."""
        before = self.presented()
        authority.key_store(self.folder / "broker.p12", seconds)
        change = ConfigEntry(_STORE, str(self.folder / "broker.p12"), incremental_operation=AlterConfigOpType.SET)
        [done] = self.admin.incremental_alter_configs(
            [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[change])]
        ).values()
        done.result(60)
        eventually(lambda: self.presented() != before)

    def presented(self) -> str:
        host, port = self.secure.split(":")
        return ssl.get_server_certificate((host, int(port)), timeout=10)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutualKafka]:
    folder, old, new = tmp_path_factory.mktemp("tls"), Authority("old"), Authority("new")
    (folder / "trust.pem").write_bytes(old.certificate + new.certificate)
    old.key_store(folder / "broker.p12")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SSL",
        f"{_LISTENER}.ssl.client.auth": "required",
        _STORE: str(folder / "broker.p12"),
        f"{_LISTENER}.ssl.keystore.password": PASSWORD,
        f"{_LISTENER}.ssl.truststore.type": "PEM",
        f"{_LISTENER}.ssl.truststore.location": str(folder / "trust.pem"),
        # `topics acls` writes rights of the certificate's CN.
        f"{_LISTENER}.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
    }
    with EmbeddedKafka(secure_port=0, config=settings) as broker:
        yield MutualKafka(broker, folder, old, new)


@pytest.mark.long
def test_all_go_on_while_certificates_change_and_end(scene: Scene, secure: MutualKafka) -> None:  # noqa: F811
    bridge, topic, numbers = scene.bridge, topic_of(scene.bridge, "raw"), itertools.count()
    sent: dict[str, list[bytes]] = {scene.real: [], topic: []}
    with bridge.member("raw", {"max.message.bytes": "2000000"}):
        pass
    users = [scene.user("worker"), scene.user("client"), replace(scene, group="raw").user("client")]
    for one in (users[0], users[2]):
        one.grant(Right(ResourceKind.TOPIC, topic, Pattern.LITERAL, ("WRITE",)))
    worker = scene.worker(users[0])
    producer, listener = scene.producer(users[1], LocalTransactionState.COMMIT_MESSAGE)

    def send() -> None:
        """Send one message by the client, and one by the door."""
        body = b"%d" % next(numbers)
        producer.send_message_in_transaction(Message(scene.real, body)).wait(60)
        sent[scene.real].append(body)
        with RawClient(door) as raw:
            answer, _ = raw.ask(SEND, send_fields("raw", topic, TRAN_MSG="true", UNIQ_KEY=body.decode()), body)
            assert answer["code"] == 0, str(answer)
            assert raw.ask(END, end_fields("raw", answer, COMMIT))[0]["code"] == 0
        sent[topic].append(body)

    def sends_again() -> bool:
        with suppress(PrepareError, AssertionError):
            send()
            return True
        return False

    def wait_delivered() -> None:
        for one, values in sent.items():
            bridge.wait_visible(one, values)

    with producer, scene.door(users[2]) as door:
        send()
        listener.state = LocalTransactionState.UNKNOWN
        send()
        listener.state = LocalTransactionState.COMMIT_MESSAGE
        wait_delivered()
        assert listener.checked == [b"1"]
        # One of the same authority: connections stay open.
        secure.present(secure.old)
        send()
        # One of another authority, other files of the clients, and every connection is made again.
        secure.present(secure.new)
        for one in users:
            secure.issue(one.name)
        secure.broker.restart()
        send()
        wait_delivered()
        # It ends, and every connection with it.
        secure.present(secure.new, seconds=10)
        time.sleep(10)
        secure.broker.restart()
        worker.wait_logged("certificate has expired", 60)
        with pytest.raises(PrepareError, match="the broker's certificate has expired, is not for this address, or"):
            producer.send_message_in_transaction(Message(scene.real, b"failed"))
        eventually(lambda: "certificate verify failed" in door.log)
        secure.present(secure.new)
        eventually(sends_again, 60)
        wait_delivered()
    assert worker.returncode is None


@pytest.mark.long
def test_a_refused_certificate_is_named_with_its_remedy(scene: Scene, secure: MutualKafka) -> None:  # noqa: F811
    wants = "brokers want a certificate of this client: set ssl.certificate.location and ssl.key.location"
    trusted = scene.user("client").settings
    none = {name: value for name, value in trusted.items() if not name.startswith(("ssl.cert", "ssl.key"))}
    late, foreign = secure.issue("late", -60), secure.issue("foreign", authority=Authority("foreign"))
    ended = f"this client's certificate has expired: renew {late.settings['ssl.certificate.location']}, and restart"
    unknown = "brokers refuse this client's certificate: restart if the file is new; is its authority in"
    for settings, remedy in ((none, wants), (late.settings, ended), (foreign.settings, unknown)):
        assert remedy in refusal({"bootstrap.servers": secure.secure, **settings})
    for settings, remedy in ((none, wants), (late.settings, ended)):
        user = replace(late, settings=settings)
        worker, door = scene.worker(user, wait=0), scene.door(user)
        for one in (worker, door):
            one.wait_logged("kafka_unreachable")
            assert remedy in one.events("kafka_unreachable")[0]["error"]
        worker.stop()
        door.__exit__(None, None, None)
        assert remedy in scene.cli(user, "pending").stderr.replace("\n", " ")
    # One that ends while its client works.
    name = scene.user("client").name
    producer, _ = scene.producer(secure.issue(name, 5), LocalTransactionState.COMMIT_MESSAGE)
    with producer:
        secure.broker.restart()
        with pytest.raises(PrepareError, match="this client's certificate has expired"):
            producer.send_message_in_transaction(Message(scene.real, b"failed"))
