"""Translation of librdkafka's security properties into arguments of aiokafka, which is also Faust's client."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from txbridge.errors import UsageError
from txbridge.kafka.config import canonical_name

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: librdkafka's spellings of false.
_FALSE = frozenset({"false", "f", "0"})

#: librdkafka's TLS properties that Faust's connection supports.
HONOURED = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
_USE_PEM = (
    "write the key store as PEM (openssl pkcs12 -in STORE -out FILE), and give FILE as ssl.certificate.location and "
    "ssl.key.location"
)
_USE_KEY_FILE = "give the key itself, as ssl.key.location or ssl.key.pem"
_USE_BROKERS = "leave it out; what is allowed can be set on the brokers"
#: TLS properties that it does not support, and the alternative. A worker's two connections must not differ silently.
REFUSED = {
    "ssl.keystore.location": _USE_PEM,
    "ssl.keystore.password": _USE_PEM,
    "ssl.engine.location": _USE_KEY_FILE,
    "ssl.engine.id": _USE_KEY_FILE,
    "ssl.providers": _USE_KEY_FILE,
    "ssl.ca.certificate.stores": "give the authorities' certificates as ssl.ca.location or ssl.ca.pem",
    "ssl.curves.list": _USE_BROKERS,
    "ssl.sigalgs.list": _USE_BROKERS,
}


def aiokafka_auth(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for aiokafka's clients; none for a plain connection. Raises UsageError if aiokafka cannot do it."""
    protocol = str(kafka.get("security.protocol", "plaintext")).upper()
    if protocol == "PLAINTEXT":
        return {}
    tls = {"ssl_context": _ssl_context(kafka)} if protocol in {"SSL", "SASL_SSL"} else {}
    if protocol == "SSL":
        return {"security_protocol": protocol, **tls}
    if protocol not in {"SASL_PLAINTEXT", "SASL_SSL"}:
        raise UsageError(f"security.protocol {protocol!r} is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL")
    named = {canonical_name(name): value for name, value in kafka.items()}
    mechanism = str(named.get("sasl.mechanism", "")).upper()
    if mechanism not in _MECHANISMS:
        raise UsageError(
            f"sasl.mechanism {mechanism!r} cannot be used by a worker; use one of {', '.join(_MECHANISMS)}"
        )
    secret: dict[str, Any]
    if mechanism == "OAUTHBEARER":
        # The doctor examines the other mechanisms where no aiokafka is installed.
        from txbridge.kafka.token_provider import OidcTokens  # noqa: PLC0415

        secret = {"sasl_oauth_token_provider": OidcTokens(named)}
    else:
        secret = {f"sasl_plain_{name}": str(kafka.get(f"sasl.{name}", "")) for name in ("username", "password")}
    return {"security_protocol": protocol, "sasl_mechanism": mechanism, **secret, **tls}


def _ssl_context(kafka: Mapping[str, Any]) -> ssl.SSLContext:
    """An SSL context with the trust and key of librdkafka's properties. Raises UsageError for unusable properties."""
    for name, value in kafka.items():
        if value and name.startswith("ssl.") and name not in HONOURED:
            instead = REFUSED.get(name, "leave it out")
            raise UsageError(f"{name} cannot be used by a worker, whose second connection is Faust's: {instead}")
    for name in ("ssl.key.pem", "ssl.key.location"):
        if kafka.get(name) and not kafka.get("ssl.certificate.pem") and not kafka.get("ssl.certificate.location"):
            raise UsageError(f"{name} is given without ssl.certificate.location or ssl.certificate.pem")
    try:
        return _context_of(kafka)
    except (OSError, ValueError) as error:
        names = ", ".join(name for name in HONOURED if kafka.get(name))
        raise UsageError(f"the TLS properties cannot be used: {error} (given are {names})") from None


def _context_of(kafka: Mapping[str, Any]) -> ssl.SSLContext:
    authorities = kafka.get("ssl.ca.location")
    if authorities == "probe":  # librdkafka's value for the system's certificates
        authorities = None
    folder = authorities if authorities and Path(authorities).is_dir() else None
    context = ssl.create_default_context(
        cafile=None if folder else authorities, capath=folder, cadata=kafka.get("ssl.ca.pem")
    )
    _load_certificate(context, kafka)
    if ciphers := kafka.get("ssl.cipher.suites"):
        context.set_ciphers(str(ciphers))
    if revoked := kafka.get("ssl.crl.location"):
        context.load_verify_locations(cafile=revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if str(kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(kafka.get("enable.ssl.certificate.verification", "true")).lower() in _FALSE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_certificate(context: ssl.SSLContext, kafka: Mapping[str, Any]) -> None:
    """Load the worker's own certificate and key, each from a file or a text; the text wins, as in librdkafka."""
    with ExitStack() as files:
        certificate, key = (
            files.enter_context(_as_file(text)) if (text := kafka.get(f"{what}.pem")) else kafka.get(f"{what}.location")
            for what in ("ssl.certificate", "ssl.key")
        )
        if certificate:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(certificate, key, str(kafka.get("ssl.key.password") or ""))


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A temporary file that only this user can read: Python's ssl loads a key only from a file."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name
