"""The remedy for one cause, which librdkafka tells in different words by chance. The texts are its own."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from txbridge.kafka.unreachable import unreachable

NO_TLS = "this port has no TLS, or a proxy has no broker behind it: check the port, and security.protocol"
AUTHORITY = "set ssl.ca.location to the authority of the broker's certificate, and use an address that is in it"
BROKER = "sasl_ssl://127.0.0.1:9092"
UNTRUSTED = "error:0A000086:SSL routines::certificate verify failed"
CLOSED = "Disconnected: SSL connection closed by peer"


@pytest.mark.parametrize(
    ("code", "told", "remedy"),
    [
        (KafkaError._SSL, f"SSL handshake failed: {CLOSED}: connecting to a PLAINTEXT broker listener?", NO_TLS),
        (KafkaError._TRANSPORT, CLOSED, NO_TLS),
        (KafkaError._SSL, f"SSL handshake failed: {UNTRUSTED}: verify that ssl.ca.location is correct", AUTHORITY),
        (KafkaError._SSL, UNTRUSTED, AUTHORITY),
    ],
)
def test_the_remedy_does_not_depend_on_where_librdkafka_saw_the_end(code: int, told: str, remedy: str) -> None:
    cause = KafkaError(code, f"{BROKER}/bootstrap: {told} (after 12ms in state SSL_HANDSHAKE)")
    assert str(unreachable("start", {}, cause)) == f"Kafka cannot be reached (start): {BROKER}: {told}; {remedy}"


def test_a_connection_that_worked_before_does_not_blame_tls() -> None:
    cause = KafkaError(KafkaError._TRANSPORT, f"{BROKER}/1: {CLOSED} (after 12ms in state UP)")
    expected = f"Kafka cannot be reached (start): {BROKER}/1: {CLOSED}; check the address, and whether Kafka runs"
    assert str(unreachable("start", {}, cause)) == expected
