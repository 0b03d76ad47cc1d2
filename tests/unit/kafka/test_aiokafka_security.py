"""librdkafka's security properties on Faust's connection, the worker's second one: honoured, or refused by name."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.support.authority import Authority
from tests.support.token_endpoint import TokenEndpoint
from txbridge.errors import UsageError
from txbridge.kafka.aiokafka_security import HONOURED, REFUSED, aiokafka_auth
from txbridge.kafka.token_provider import OidcTokens

#: An authority whose own certificate and key are those of client and server.
AUTHORITY = Authority("txbridge test")
CERTIFICATE, KEY, ENCRYPTED_KEY = AUTHORITY.certificate.decode(), AUTHORITY.own_key(), AUTHORITY.own_key("secret")
FILES = {"certificate.pem": CERTIFICATE, "key.pem": KEY, "encrypted.pem": ENCRYPTED_KEY}


def name_seen(kafka: dict[str, object]) -> str | None:
    """The name in the certificate that a server sees which demands a client's certificate."""
    found = aiokafka_auth({"security.protocol": "ssl", "ssl.ca.pem": CERTIFICATE, **kafka})
    assert found["security_protocol"] == "SSL"
    demanding = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=CERTIFICATE)
    demanding.load_cert_chain("certificate.pem", "key.pem")
    demanding.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = found["ssl_context"].wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = demanding.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    [[(kind, name)]] = server.getpeercert()["subject"]  # type: ignore[index, misc]
    assert kind == "commonName"
    return str(name)


@pytest.mark.parametrize("certificate", ["pem", "location"])
@pytest.mark.parametrize("key", ["key.pem", "encrypted.pem"])
@pytest.mark.parametrize("how", ["pem", "location"])
def test_the_broker_sees_the_worker_s_certificate(
    certificate: str, key: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, "utf-8")
    given = {f"ssl.certificate.{certificate}": "certificate.pem", f"ssl.key.{how}": key, "ssl.key.password": "secret"}
    assert name_seen({name: FILES[value] if name.endswith(".pem") else value for name, value in given.items()}) == (
        "txbridge test"
    )


def test_no_key_is_left_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    aiokafka_auth({"security.protocol": "ssl", "ssl.certificate.pem": CERTIFICATE, "ssl.key.pem": KEY})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", ["ssl", "sasl_ssl"])
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("ssl.keystore.location", "openssl pkcs12"),
        ("ssl.keystore.password", "openssl pkcs12"),
        ("ssl.engine.location", "ssl.key.location"),
        ("ssl.engine.id", "ssl.key.location"),
        ("ssl.providers", "ssl.key.location"),
        ("ssl.ca.certificate.stores", "ssl.ca.location"),
        ("ssl.curves.list", "on the brokers"),
        ("ssl.sigalgs.list", "on the brokers"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name_with_what_to_use_instead(
    protocol: str, name: str, instead: str
) -> None:
    with pytest.raises(UsageError) as caught:
        aiokafka_auth({"security.protocol": protocol, "sasl.mechanism": "PLAIN", name: "something"})
    assert str(caught.value).startswith(f"{name} cannot be used by a worker")
    assert instead in str(caught.value)
    assert "something" not in str(caught.value)


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_both_of_librdkafka_s_names_of_the_mechanism_mean_the_same(name: str) -> None:
    found = aiokafka_auth({"security.protocol": "sasl_plaintext", name: "SCRAM-SHA-512", "sasl.username": "worker"})
    assert (found["sasl_mechanism"], found["sasl_plain_username"]) == ("SCRAM-SHA-512", "worker")


def test_a_property_of_tls_means_nothing_without_tls() -> None:
    assert aiokafka_auth({"security.protocol": "plaintext", "ssl.keystore.location": "x"}) == {}


def test_a_property_of_tls_of_a_later_librdkafka_is_refused() -> None:
    with pytest.raises(UsageError, match=r"ssl\.new cannot be used by a worker, .*: leave it out"):
        aiokafka_auth({"security.protocol": "ssl", "ssl.new": "x"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ssl.key.pem": KEY}, "ssl.key.pem is given without ssl.certificate.location or ssl.certificate.pem"),
        (
            {"ssl.key.location": "k"},
            "ssl.key.location is given without ssl.certificate.location or ssl.certificate.pem",
        ),
        ({"ssl.certificate.pem": "none", "ssl.key.pem": KEY}, "the TLS properties cannot be used: "),
        # Without its password OpenSSL would ask for it on the terminal.
        ({"ssl.certificate.pem": CERTIFICATE, "ssl.key.pem": ENCRYPTED_KEY}, "the TLS properties cannot be used: "),
        ({"ssl.cipher.suites": "NONE-OF-THEM"}, "the TLS properties cannot be used: "),
        ({"ssl.ca.location": "/nowhere"}, "the TLS properties cannot be used: "),
        ({"ssl.crl.location": "/nowhere"}, "the TLS properties cannot be used: "),
    ],
)
def test_what_can_not_be_read_is_a_sentence_without_secrets(given: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        aiokafka_auth({"security.protocol": "ssl", **given})
    assert str(caught.value).startswith(problem)
    assert "PRIVATE KEY" not in str(caught.value)


def test_ciphers_revocation_and_folders_of_authorities_are_honoured(tmp_path: Path) -> None:
    context = aiokafka_auth({"security.protocol": "ssl", "ssl.cipher.suites": "ECDHE-ECDSA-AES128-GCM-SHA256"})[
        "ssl_context"
    ]
    assert {one["name"] for one in context.get_ciphers() if one["protocol"] == "TLSv1.2"} == {
        "ECDHE-ECDSA-AES128-GCM-SHA256"
    }
    (tmp_path / "ca.pem").write_text(CERTIFICATE, "utf-8")
    context = aiokafka_auth({"security.protocol": "ssl", "ssl.crl.location": str(tmp_path / "ca.pem")})["ssl_context"]
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    assert aiokafka_auth({"security.protocol": "ssl", "ssl.ca.location": str(tmp_path)}) is not None
    assert aiokafka_auth({"security.protocol": "ssl", "ssl.ca.location": "probe"}) is not None


def test_the_page_about_security_lists_every_property() -> None:
    text = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")
    section = text.split("### TLS properties of a worker")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    refused = {name for row in rows if "refused" in row for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    honoured = {name for row in rows if "| yes |" in row for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert honoured == set(HONOURED)
    assert refused - {"sasl.mechanism"} == set(REFUSED)


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    made = TokenEndpoint(lifetime_s=100)
    yield made
    made.stop()


async def test_a_token_serves_for_four_fifths_of_its_life_and_in_an_outage_to_its_end(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    tokens = OidcTokens(endpoint.settings("app"))
    first = await tokens.token()
    now += 79
    assert await tokens.token() == first
    now += 2
    second = await tokens.token()
    assert second != first
    assert endpoint.granted == [{"grant_type": ["client_credentials"], "scope": ["kafka"]}] * 2
    endpoint.stop()
    now += 99
    assert await tokens.token() == second
    now += 2
    with pytest.raises(KafkaConnectionError, match=f"Connection refused.*check the token endpoint {endpoint.url}, "):
        await tokens.token()
    endpoint.start()
    assert await tokens.token() not in {first, second}


async def test_a_wrong_secret_is_refused_and_not_shown(endpoint: TokenEndpoint) -> None:
    url = f"{endpoint.url}?key=hidden"
    wrong = {"sasl.oauthbearer.client.secret": "a wrong one", "sasl.oauthbearer.token.endpoint.url": url}
    with pytest.raises(KafkaConnectionError, match="HTTP Error 401") as refused:
        await OidcTokens(endpoint.settings("app") | wrong).token()
    assert "a wrong one" not in str(refused.value)
    assert "hidden" not in str(refused.value)


async def test_https_takes_its_own_authorities(tmp_path: Path) -> None:
    certificate, tls = tmp_path / "both.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.write_text(CERTIFICATE + KEY)
    tls.load_cert_chain(certificate)
    endpoint = TokenEndpoint(tls=tls)
    settings = endpoint.settings("app")
    for trust in ({"https.ca.location": str(certificate)}, {"https.ca.pem": CERTIFICATE}):
        assert await OidcTokens(settings | trust).token()
    for trust in ({}, {"ssl.ca.location": str(certificate)}):
        with pytest.raises(KafkaConnectionError, match="certificate verify failed"):
            await OidcTokens(settings | trust).token()
    with pytest.raises(UsageError, match=r"https\.ca\.location"):
        OidcTokens(settings | {"https.ca.location": str(tmp_path / "none")})
    endpoint.stop()


def test_aiokafka_gets_tokens_and_extensions() -> None:
    endpoint = TokenEndpoint()
    more = {"security.protocol": "SASL_PLAINTEXT", "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,pool=p=2"}
    auth = aiokafka_auth(endpoint.settings("app") | more)
    assert auth["sasl_mechanism"] == "OAUTHBEARER"
    assert auth["sasl_oauth_token_provider"].extensions() == {"logicalCluster": "lkc-1", "pool": "p=2"}
    endpoint.stop()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"method": "default"}, "sasl.oauthbearer.method must be oidc: "),
        ({"grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}, "grant.type must be client_credentials: "),
        ({"client.id": "", "client.secret": ""}, "needs sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret"),
        ({"token.endpoint.url": "file:///etc/passwd"}, "must begin with https:// or http://"),
        ({"token.endpoint.url": "https://app:hidden@host/"}, "and have no user"),
    ],
)
def test_what_a_worker_cannot_follow_is_refused(endpoint: TokenEndpoint, wrong: dict[str, Any], text: str) -> None:
    given = {f"sasl.oauthbearer.{name}": value for name, value in wrong.items()}
    with pytest.raises(UsageError, match=text) as refused:
        OidcTokens(endpoint.settings("app") | given)
    assert "hidden" not in str(refused.value)
