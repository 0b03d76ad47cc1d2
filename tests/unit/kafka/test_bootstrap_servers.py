"""One parser of bootstrap servers for every program: what is clear is accepted, and what is not is refused."""

from __future__ import annotations

import pytest
from aiokafka.conn import collect_hosts
from hypothesis import given
from hypothesis import strategies as st
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.errors import CouldNotAuditError

from txbridge.client.options import ClientOptions
from txbridge.config.sources import load_settings
from txbridge.errors import UsageError
from txbridge.kafka.config import canonical_servers


@pytest.mark.parametrize(
    ("servers", "canonical"),
    [
        ("kafka:9092", "kafka:9092"),
        ("a:1,b:2", "a:1,b:2"),
        (" a:1 ,\tb:2\n", "a:1,b:2"),
        ("a:1,", "a:1"),
        (",a:1,,b:2", "a:1,b:2"),
        ("kafka", "kafka:9092"),
        ("PLAINTEXT://kafka:9093", "kafka:9093"),
        ("plaintext://kafka", "kafka:9092"),
        ("[::1]:9092", "[::1]:9092"),
        ("[fe80::1%eth0]", "[fe80::1%eth0]:9092"),
        ("PLAINTEXT://[::1]:1,my_host.svc-2:65535", "[::1]:1,my_host.svc-2:65535"),
    ],
)
def test_what_is_clear_is_the_same_for_every_program(servers: str, canonical: str) -> None:
    assert canonical_servers(servers) == canonical
    assert canonical_servers(canonical) == canonical
    assert load_settings({"bootstrap_servers": servers}, environ={}).librdkafka["bootstrap.servers"] == canonical
    assert ClientOptions("group", {"bootstrap.servers": servers}, "", 1.0, 1).bootstrap_servers == canonical
    audit = kafka_settings(servers)
    assert audit.librdkafka["bootstrap.servers"] == audit.spark["kafka.bootstrap.servers"] == canonical


@pytest.mark.parametrize(
    "servers", ["a:1;b:2", "a:1 b:2", "::1", "::1:9092", "a:b", "a:0", "a:65536", "http://a:1", "a:1/path", "a:", ":1"]
)
def test_what_is_not_clear_is_refused_by_every_program(servers: str) -> None:
    for read in (
        canonical_servers,
        lambda text: load_settings({"bootstrap_servers": text}, environ={}),
        lambda text: ClientOptions("group", {"bootstrap.servers": text}, "", 1.0, 1),
    ):
        with pytest.raises(UsageError, match="is not host:port") as caught:
            read(servers)
        assert "\n" not in str(caught.value)
    with pytest.raises(CouldNotAuditError, match="is not host:port"):
        kafka_settings(servers)


@pytest.mark.parametrize("servers", [",", " , ", " "])
def test_servers_without_one_are_refused(servers: str) -> None:
    with pytest.raises(UsageError, match="names no server"):
        load_settings({"bootstrap_servers": servers}, environ={})


def test_a_protocol_in_front_must_be_the_given_one() -> None:
    assert canonical_servers("SASL_SSL://a:1,b:2", "sasl_ssl") == "a:1,b:2"
    for servers, protocol in (("SSL://a:1", None), ("PLAINTEXT://a:1", "ssl"), ("a:1,SSL://b:2", "SASL_SSL")):
        with pytest.raises(UsageError, match="names another protocol than security"):
            canonical_servers(servers, protocol)


@given(st.text("ab1:.,;/[] PLAINTEXT", max_size=20))
def test_aiokafka_finds_as_many_servers_as_were_accepted(text: str) -> None:
    try:
        servers = canonical_servers(text)
    except UsageError:
        return
    assert len(collect_hosts(servers, randomize=False)) == servers.count(",") + 1
