"""librdkafka's security properties on Faust's connection, the worker's second one: honoured, or refused by name."""

from __future__ import annotations

import re
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.authority import Authority
from txbridge.errors import UsageError
from txbridge.kafka.aiokafka_security import HONOURED, REFUSED, aiokafka_auth

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
