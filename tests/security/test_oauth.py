"""OAuth (OAUTHBEARER, librdkafka's method oidc) on a real Kafka: client, worker and commands, and a token endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.integration.test_security import Scene, scene  # noqa: F401  (a fixture)
from tests.support.harness import eventually
from tests.support.secure_kafka import SecureKafka, User, secure_kafka
from tests.support.token_endpoint import BROKER, TokenEndpoint
from txbridge import EndTransactionError, LocalTransactionState, Message, PrepareError

#: Lifetime of a token (s): long enough for a start, and some of them pass in a test.
_LIFE_S = 12


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureKafka]:
    with secure_kafka(BROKER) as running:
        yield running


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    made = TokenEndpoint(_LIFE_S)
    yield made
    made.stop()


def new_user(place: Scene, endpoint: TokenEndpoint, *roles: str) -> User:
    """A new client of the endpoint with the rights of roles: Kafka takes its id for the user's name."""
    user = place.user(*roles)
    tls = {"security.protocol": "sasl_ssl", "ssl.ca.location": user.settings["ssl.ca.location"]}
    return replace(user, settings={**tls, **endpoint.settings(user.name)})


@pytest.mark.long
def test_worker_and_client_outlive_their_tokens_and_an_outage_of_the_endpoint(
    scene: Scene,  # noqa: F811
    endpoint: TokenEndpoint,
) -> None:
    bridge, sent = scene.bridge, list[bytes]()
    worker = scene.worker(new_user(scene, endpoint, "worker"), transaction_check_max=100)
    client, _ = scene.producer(new_user(scene, endpoint, "client"), LocalTransactionState.COMMIT_MESSAGE)

    def send() -> None:
        result = producer.send_message_in_transaction(Message(scene.real, b"%d" % len(sent)))
        # It is committed, and delivered whatever becomes of its END.
        sent.append(b"%d" % len(sent))
        result.wait(120)

    with client as producer:
        until = time.monotonic() + 2.5 * _LIFE_S
        while time.monotonic() < until:
            send()
            time.sleep(1)
        bridge.wait_visible(scene.real, sent)
        # Faust's connections have ended with their tokens meanwhile; its membership has not.
        assert len(worker.events("partitions_assigned")) == 1
        # It is due when no token is valid any more: the worker has something to write then.
        producer.send_message_in_transaction(Message(scene.real, b"later", delay=1.5 * _LIFE_S)).wait(120)
        endpoint.stop()
        stopped = time.monotonic()
        # A token serves to its end: at least a fifth of its life is left.
        send()
        with pytest.raises((PrepareError, EndTransactionError)) as failed:  # noqa: PT012 - it is unknown which one fails first
            while time.monotonic() < stopped + 3 * _LIFE_S:
                send()
                time.sleep(0.5)
        text = f"check the token endpoint {endpoint.url}, the client id and secret"
        assert text in str(failed.value)
        eventually(lambda: any(text in one["error"] for one in worker.events("kafka_unavailable")), 20)
        endpoint.start()

        def sends_again() -> bool:
            try:
                send()
            except (PrepareError, EndTransactionError):
                return False
            return True

        eventually(sends_again)
        # One that failed may have been stored all the same: its check is answered with rollback.
        bridge.wait_visible(scene.real, [*sent, b"later"])
    worker.stop()
    for secret in endpoint.secrets.values():
        assert secret not in worker.log + str(failed.value)


def test_the_doctor_asks_each_of_its_questions(scene: Scene, endpoint: TokenEndpoint) -> None:  # noqa: F811
    user = new_user(scene, endpoint, "doctor", "worker")
    done = scene.cli(user, "doctor", "--format", "json", "--real-topic", scene.real)
    assert done.stderr == ""
    found = [one for one in json.loads(done.stdout)["findings"] if one["level"] not in {"ok", "note"}]
    assert [(one["check"], one["text"][:18]) for one in found] == [("workers", "no worker is alive")]


def test_wrong_secret_and_endpoint_away_are_named(scene: Scene, endpoint: TokenEndpoint) -> None:  # noqa: F811
    user = new_user(scene, endpoint, "worker")
    right = user.settings
    away = {**right, "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token?key=hidden"}
    wrong = {**right, "sasl.oauthbearer.client.secret": "a wrong one"}
    for kafka, reason in ((wrong, "invalid_client"), (away, "Could not connect to server")):
        url = kafka["sasl.oauthbearer.token.endpoint.url"].replace("key=hidden", "***")
        user = replace(user, settings=kafka)
        worker, door = scene.worker(user, wait=0), scene.door(user)
        for one in (worker, door):
            one.wait_logged("kafka_unreachable")
        done = scene.cli(user, "pending")
        logged = (one.events("kafka_unreachable")[0]["error"] for one in (worker, door))
        for text in (*logged, done.stderr.replace("\n", " ")):
            assert reason in text
            assert f"check the token endpoint {url}" in text
            assert "hidden" not in text
        worker.stop()
        assert kafka["sasl.oauthbearer.client.secret"] not in worker.log + door.log + done.stderr
        door.__exit__(None, None, None)
