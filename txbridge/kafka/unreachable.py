"""Why Kafka cannot be reached, from librdkafka's errors of the connection: the addresses, the cause and the remedy.

Also if another cluster is reached, which stands for none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from txbridge.errors import KafkaUnreachableError
from txbridge.kafka.errors import ALL_BROKERS_DOWN, AUTHENTICATION, SSL
from txbridge.masking import masked

#: Patterns of librdkafka's texts, which differ by chance for one cause, and what to do. The first that is found counts.
_REMEDIES = (
    ("Connection refused", "nothing listens there: check the port, and whether Kafka runs"),
    (
        "Failed to resolve",
        "check the name; if it is not in bootstrap.servers, a broker has it in its advertised.listeners",
    ),
    (
        "Disconnected.*in state SSL_HANDSHAKE",
        "this port has no TLS, or a proxy has no broker behind it: check the port, and security.protocol",
    ),
    (
        "certificate",
        "set ssl.ca.location to the authority of the broker's certificate, and use an address that is in it",
    ),
    ("mechanism handshake failed", "sasl.mechanism or security.protocol does not fit this port"),
    ("SASL", "check sasl.username and sasl.password"),
    ("Receive failed", "what listens at this port is no Kafka: check the port"),
)
#: Errors of a connection that TLS or SASL, or the endpoint of its tokens, refuses: nothing that passes.
REFUSED = frozenset({AUTHENTICATION, SSL})
#: librdkafka has got no token, or has one that the broker does not take (any more).
_NO_TOKEN = re.compile("OAUTHBEARER token|invalid_token")
#: What librdkafka adds to an error: for how long it has tried, and in which state.
_HOW_LONG = re.compile(r"(/bootstrap)?(: .*?) \(after .*\)$", re.DOTALL)


def unreachable(purpose: str, user: Mapping[str, Any], cause: KafkaError | None) -> KafkaUnreachableError:
    """The error of a request that no broker has answered.

    `cause` is the last error of the connection. `user` are the settings of the connection, empty if they are not known.
    """
    servers = str(user.get("bootstrap.servers", ""))
    where = f" at {servers}" if servers else ""
    text, remedy = explain_cause(cause, user)
    return KafkaUnreachableError(f"Kafka cannot be reached{where} ({purpose}): {text}; {remedy}", servers, cause)


def note_cause(last: KafkaError | None, error: KafkaError) -> KafkaError:
    """The cause after one more error of the connection. That all brokers are down follows each of the others."""
    return error if last is None or error.code() != ALL_BROKERS_DOWN else last


def other_cluster(expected: str, found: str) -> str:
    """Why a cluster is refused that is not that of the program's start; empty if it is, or if none is expected."""
    if expected in ("", found):
        return ""
    return (
        f"another Kafka cluster answers at the same address: {found}, not {expected} as at the start. Nothing is sent "
        "to it or served there. Check the address, or, if the move is meant, restart this process"
    )


def token_remedy(user: Mapping[str, Any]) -> str:
    """What to do about an endpoint that gives no token."""
    url = masked(str(user.get("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.token.endpoint.url")))
    return f"check the token endpoint {url}, the client id and secret of sasl.oauthbearer, and https.ca.location"


def explain_cause(cause: KafkaError | None, user: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a connection's last error, and what to do about it."""
    protocol = str(user.get("security.protocol", "plaintext")).lower()
    if cause is not None and cause.code() == ALL_BROKERS_DOWN:
        # librdkafka reports no error of a connection that was made and then closed.
        return (
            "every connection is closed at once",
            f"security.protocol={protocol} may not fit this port, or a proxy has no broker behind it",
        )
    full = "no answer" if cause is None else cause.str()
    if _NO_TOKEN.search(full):
        return _HOW_LONG.sub(r"\2", full), token_remedy(user)
    remedies = (remedy for pattern, remedy in _REMEDIES if re.search(pattern, full, re.DOTALL))
    return _HOW_LONG.sub(r"\2", full), next(remedies, "check the address, and whether Kafka runs")
