"""OAuth tokens for aiokafka, from a real endpoint; librdkafka's own requests are in tests/security."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.support.token_endpoint import TokenEndpoint
from tests.unit.kafka.test_aiokafka_security import CERTIFICATE, KEY
from txbridge.errors import UsageError
from txbridge.kafka.aiokafka_security import aiokafka_auth
from txbridge.kafka.token_provider import OidcTokens


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
