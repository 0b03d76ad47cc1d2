"""OAuth tokens for aiokafka, by librdkafka's properties of the method `oidc` (RFC 6749, client credentials).

librdkafka gets the tokens of its own connections itself, with the same requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from txbridge.errors import UsageError
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
    """The tokens of all connections of one client. Thread-safe."""

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
