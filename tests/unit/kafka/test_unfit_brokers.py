"""Brokers that cannot be reached, or lack a feature: what is wrong, and the remedy."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from txbridge.errors import EnvironmentProblemError
from txbridge.kafka.each_broker import lacking, require_features
from txbridge.kafka.errors import unreachable

NO_TLS = "this port has no TLS, or a proxy has no broker behind it: check the port, and security.protocol"
AUTHORITY = (
    "the broker's certificate has expired, is not for this address, or is of an authority not in ssl.ca.location"
)
OWN = "brokers want a certificate of this client: set ssl.certificate.location and ssl.key.location"
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
        (
            KafkaError._TRANSPORT,
            "Receive failed: SSL routines::ssl/tls alert bad certificate: SSL alert number 42",
            OWN,
        ),
    ],
)
def test_the_remedy_does_not_depend_on_where_librdkafka_saw_the_end(code: int, told: str, remedy: str) -> None:
    cause = KafkaError(code, f"{BROKER}/bootstrap: {told} (after 12ms in state SSL_HANDSHAKE)")
    assert str(unreachable("start", {}, cause)) == f"Kafka cannot be reached (start): {BROKER}: {told}; {remedy}"


def test_a_connection_that_worked_before_does_not_blame_tls() -> None:
    cause = KafkaError(KafkaError._TRANSPORT, f"{BROKER}/1: {CLOSED} (after 12ms in state UP)")
    expected = f"Kafka cannot be reached (start): {BROKER}/1: {CLOSED}; check the address, and whether Kafka runs"
    assert str(unreachable("start", {}, cause)) == expected


#: Kafka 4.3.1 and 3.9.2, as they answered: Produce, Fetch, Metadata, InitProducerId, OffsetForLeaderEpoch,
#: AddPartitionsToTxn, EndTxn, DescribeTransactions.
OF_4_3 = {0: (0, 13), 1: (4, 18), 3: (0, 13), 22: (0, 5), 23: (2, 4), 24: (0, 5), 26: (0, 5), 65: (0, 0)}
OF_3_9 = {0: (0, 11), 1: (0, 17), 3: (0, 12), 22: (0, 5), 23: (0, 4), 24: (0, 5), 26: (0, 4), 65: (0, 0)}


def test_releases_that_were_run_lack_nothing() -> None:
    assert (lacking(OF_4_3), lacking(OF_3_9)) == ("", "")


def test_kafka_2_5_lacks_what_came_later() -> None:
    of_2_5 = {0: (0, 8), 1: (0, 11), 3: (0, 9), 22: (0, 3), 23: (0, 3), 24: (0, 1), 26: (0, 1)}
    assert lacking(of_2_5) == (
        "Metadata 10 of Kafka 2.8 (ids of topics: one that was recreated is noticed; found 0 to 9), "
        "DescribeTransactions 0 of Kafka 3.0 (kafka-transactions.sh, which ends a hanging one; found none)"
    )


def test_a_service_without_transactions_lacks_three_requests() -> None:
    without = {key: known for key, known in OF_4_3.items() if key not in {22, 24, 26}}
    assert lacking(without) == (
        "InitProducerId 0 of Kafka 0.11 (the fence of a partition; found none), "
        "AddPartitionsToTxn 0 of Kafka 0.11 (Kafka transactions; found none), "
        "EndTxn 0 of Kafka 0.11 (Kafka transactions; found none)"
    )


def test_a_worker_refuses_brokers_that_lack_something_and_says_what_to_do() -> None:
    with pytest.raises(EnvironmentProblemError) as refused:
        require_features({1: OF_3_9, 2: {key: known for key, known in OF_3_9.items() if key != 26}})
    assert str(refused.value) == (
        "a worker cannot work with these brokers:\n"
        "- broker 2 lacks EndTxn 0 of Kafka 0.11 (Kafka transactions; found none)\n"
        "What to do: use brokers of Apache Kafka 3.9 or later, or a service that speaks all of its transactions"
    )
