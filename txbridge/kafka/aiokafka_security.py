"""Translation of librdkafka's security properties into arguments of aiokafka, Faust's client, and its OAuth tokens.

librdkafka gets the tokens of its own connections itself, with the same requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from txbridge.errors import UsageError
from txbridge.kafka.config import canonical_name
from txbridge.kafka.errors import token_remedy

_PREFIX = "sasl.oauthbearer."
_NEEDED = ("client.id", "client.secret", "token.endpoint.url")
#: Properties that change where a token comes from, and their values for client credentials. The first is required.
_ONLY = {"method": "oidc", "grant.type": "client_credentials", "metadata.authentication.type": "none"}
#: Part of a token's life after which another one is fetched, as in librdkafka. Until its end the old one serves.
_RENEW_AFTER = 0.8
#: Longest wait (s) for the endpoint, which answers in milliseconds. Opening a connection to a broker waits for it.
_TIMEOUT_S = 5.0
#: A token has some kilobytes. What else answers at a wrong address is not read to its end.
_LARGEST_ANSWER = 2**20


class NoTokenError(KafkaConnectionError):  # type: ignore[misc]  # aiokafka has no types for mypy here
    """The endpoint gives no token. To aiokafka it is as if the broker were away."""


class OidcTokens(AbstractTokenProvider):  # type: ignore[misc]
    """The tokens of all connections of one client, by librdkafka's properties of the method `oidc`. Thread-safe.

    See RFC 6749, client credentials.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        """`named`: librdkafka's properties, under canonical names. Raises UsageError for those it cannot follow."""
        own = {name.removeprefix(_PREFIX): str(value) for name, value in named.items() if name.startswith(_PREFIX)}
        for name, value in _ONLY.items():
            if own.get(name, "" if name == "method" else value).lower() != value:
                raise UsageError(f"{_PREFIX}{name} must be {value}: Faust's connection gets its tokens in no other way")
        if missing := [f"{_PREFIX}{name}" for name in _NEEDED if not own.get(name)]:
            raise UsageError(f"sasl.mechanism OAUTHBEARER needs {', '.join(missing)}")
        url, scope = own["token.endpoint.url"], own.get("scope")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or parts.username is not None:
            raise UsageError(f"{_PREFIX}token.endpoint.url must begin with https:// or http://, and have no user")
        credentials = base64.b64encode(f"{own['client.id']}:{own['client.secret']}".encode()).decode()
        # The scope as it is: librdkafka does not encode it either.
        form = "grant_type=client_credentials" + (f"&scope={scope}" if scope else "")
        headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}
        self._request = urllib.request.Request(url, form.encode(), headers)  # noqa: S310 - the scheme is checked
        trust = _trust_of(named) if parts.scheme == "https" else None
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=trust))
        self._remedy = token_remedy(named)
        pairs = (pair.partition("=") for pair in own.get("extensions", "").split(",") if pair)
        self._extensions = {name.strip(): value.strip() for name, _, value in pairs}
        self._lock = threading.Lock()
        self._token, self._renew_at, self._ends_at = "", 0.0, 0.0

    async def token(self) -> str:
        """The token of a new connection. Raises NoTokenError."""
        return await asyncio.to_thread(self._valid_token)

    def extensions(self) -> dict[str, str]:
        """SASL extensions, such as the logical cluster at Confluent Cloud."""
        return self._extensions

    def _valid_token(self) -> str:
        with self._lock:
            if time.time() >= self._renew_at:
                try:
                    self._token, self._ends_at = self._fetch_token()
                    self._renew_at = time.time() + _RENEW_AFTER * (self._ends_at - time.time())
                # OSError: no connection, TLS, time-out, HTTP status. The others: the answer is no HTTP, JSON or token.
                except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
                    if isinstance(error, HTTPError):
                        error.close()
                    if time.time() >= self._ends_at:
                        raise NoTokenError(f"there is no token: {error}; {self._remedy}") from None
            return self._token

    def _fetch_token(self) -> tuple[str, float]:
        """A token, and its end (s since 1970), which stands in itself (RFC 7519)."""
        with self._opener.open(self._request, timeout=_TIMEOUT_S) as answer:
            token = json.loads(answer.read(_LARGEST_ANSWER))["access_token"]
        claims = token.split(".")[1]
        return token, float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: the credentials are for the named endpoint alone."""

    def redirect_request(self, *_: object) -> None:
        return None


def _trust_of(named: Mapping[str, Any]) -> ssl.SSLContext:
    """The trust of librdkafka's own requests: `https.ca.*`, by default the system's, never `ssl.ca.*`."""
    location = named.get("https.ca.location")
    try:
        return ssl.create_default_context(
            cafile=None if location == "probe" else location, cadata=named.get("https.ca.pem")
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"https.ca.location or https.ca.pem cannot be used: {error}") from None


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
        from txbridge.kafka.aiokafka_security import OidcTokens  # noqa: PLC0415

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
