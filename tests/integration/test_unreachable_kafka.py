"""A Kafka that cannot be reached: the error, and silent addresses among others that answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime

import certifi
import pytest
from typer.testing import CliRunner

from tests.support.harness import COMMIT, Bridge, at_this_load
from tests.support.listeners import Commits
from tests.support.secure_kafka import SecureKafka, secure_kafka
from txbridge import AsyncTransactionProducer, KafkaUnreachableError, Message, TransactionProducer
from txbridge.cli.app import app
from txbridge.config.worker import WorkerSettings
from txbridge.kafka import admin
from txbridge.operations import Connection, list_pending

#: One in four answers, so that nearly every connection meets a silent one first.
_SILENT = 3


@pytest.fixture
def servers(bridge: Bridge) -> Iterator[str]:
    """The silent addresses, and Kafka's."""
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(_SILENT)]
        names = [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
        yield ",".join([*names, bridge.bootstrap_servers])


# The test waits for up to a minute and a half, nearly idle.
@pytest.mark.long
def test_p2_a_worker_starts_all_the_same(bridge: Bridge, servers: str) -> None:
    """Faust's unchanged producer would wait for 20 minutes."""
    topic = bridge.create_topic("real")
    bridge.worker(bootstrap_servers=servers)
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    bridge.wait_visible(topic, [b"value"])


def test_p2_a_client_and_an_operator_too(bridge: Bridge, servers: str) -> None:
    topic = bridge.create_topic("real")
    settings = {"bootstrap.servers": servers}
    with (
        bridge.local_owner(0),
        bridge.local_owner(1),
        TransactionProducer("orders", Commits(), settings, namespace=bridge.namespace) as producer,
    ):
        producer.send_message_in_transaction(Message(topic, b"value"))
        bridge.wait_visible(topic, [b"value"])
    pending = list_pending(Connection.open(WorkerSettings(bootstrap_servers=servers, namespace=bridge.namespace)))
    assert list(pending.messages) == []


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureKafka]:
    with secure_kafka() as made:
        yield made


def refusal(settings: dict[str, str]) -> str:
    """The text of the error with which a start ends; `bootstrap_servers` of it must be those of the settings."""
    producer = TransactionProducer("orders", Commits(), settings, start_timeout=8)
    with pytest.raises(KafkaUnreachableError) as raised:
        producer.start()
    producer.close()
    assert raised.value.bootstrap_servers == settings["bootstrap.servers"]
    assert raised.value.cause is not None
    return str(raised.value)


def test_a_mistake_in_the_address_or_the_security_settings_is_named_with_its_remedy(secure: SecureKafka) -> None:
    right = {"bootstrap.servers": secure.secure, **secure.user("client").settings, "log_level": "0"}
    plain = {"bootstrap.servers": secure.plain}
    tls_only = {name: value for name, value in right.items() if not name.startswith("sasl")}
    without_ca = {name: value for name, value in right.items() if name != "ssl.ca.location"}
    other_name = {**right, "bootstrap.servers": secure.secure.replace("127.0.0.1", "localhost")}
    closed = f"{secure.secure} (start of the producer): every connection is closed at once; security.protocol="
    expected = [
        ({"bootstrap.servers": "127.0.0.1:1"}, "Connection refused; nothing listens there: check the port"),
        ({"bootstrap.servers": "no-such-host.invalid:9092"}, "Name or service not known; check the name; if it is not"),
        ({"bootstrap.servers": secure.secure}, f"{closed}plaintext may not fit this port"),
        ({**right, "security.protocol": "SASL_PLAINTEXT"}, f"{closed}sasl_plaintext may not fit this port"),
        ({**tls_only, "security.protocol": "SSL"}, f"{closed}ssl may not fit this port"),
        ({**right, **plain}, "; this port has no TLS, or a proxy has no broker behind it: check the port, and"),
        ({**right, **plain, "security.protocol": "SASL_PLAINTEXT"}, "; sasl.mechanism or security.protocol does not"),
        ({**right, "sasl.mechanism": "PLAIN"}, "supported mechanisms: SCRAM-SHA-512; sasl.mechanism or security."),
        ({**right, "sasl.password": "no"}, "invalid credentials with SASL mechanism SCRAM-SHA-512; check sasl.user"),
        (without_ca, "; the broker's certificate has expired, is not for"),
        (other_name, "; the broker's certificate has expired, is not for"),
    ]
    with ThreadPoolExecutor(len(expected)) as threads:
        found = list(threads.map(refusal, [settings for settings, _ in expected]))
    for text, (settings, part) in zip(found, expected, strict=True):
        assert text.startswith(f"Kafka cannot be reached at {settings['bootstrap.servers']} (start of the producer): ")
        assert part in text
        assert "\n" not in text
        assert right["sasl.password"] not in text


def test_a_worker_names_a_refused_connection_within_seconds(secure: SecureKafka) -> None:
    user, elsewhere = secure.user("worker").settings, secure.secure.replace("127.0.0.1", "localhost")
    expected = [
        (
            secure.secure,
            {**user, "ssl.ca.location": certifi.where()},
            "; the broker's certificate has expired, is not for",
        ),
        (elsewhere, user, "is of an authority not in ssl.ca.location"),
        (secure.secure, {**user, "sasl.password": "no"}, "; check sasl.username and sasl.password"),
    ]
    with Bridge(secure.plain, "refused") as bridge:
        for servers, kafka, remedy in expected:
            environment = {"TXBRIDGE_KAFKA": json.dumps(kafka)}
            worker = bridge.worker(wait=0, bootstrap_servers=servers, environment=environment)
            worker.wait_logged("kafka_unreachable")
            [started], [said] = worker.events("worker_started"), worker.events("kafka_unreachable")
            assert remedy in said["error"]
            waited = datetime.fromisoformat(said["timestamp"]) - datetime.fromisoformat(started["timestamp"])
            # Two seconds.
            assert waited.total_seconds() < at_this_load(8)
            worker.stop()


async def test_asyncio_and_commands_say_it_too(secure: SecureKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = AsyncTransactionProducer("orders", Commits(), {"bootstrap.servers": secure.secure}, start_timeout=2)
    with pytest.raises(KafkaUnreachableError, match=r"closed at once; security\.protocol=plaintext may not fit"):
        await producer.start()
    await producer.close()
    monkeypatch.setattr(admin, "REQUEST_TIMEOUT_S", 2.0)
    done = CliRunner().invoke(app, ["topics", "plan", "--bootstrap-servers", secure.secure])
    # `main` prints it as one line, as for every TxBridgeError.
    assert isinstance(done.exception, KafkaUnreachableError)
    assert str(done.exception).startswith(f"Kafka cannot be reached at {secure.secure} (connect): every connection is")
