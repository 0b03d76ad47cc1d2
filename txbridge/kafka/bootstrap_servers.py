"""The one parser of bootstrap servers, because librdkafka, aiokafka and Kafka's Java client each read them differently.

librdkafka takes a protocol in front, and aiokafka does not. After a trailing comma, Faust tries 127.0.0.1:9092.
"""

from __future__ import annotations

import re

from txbridge.errors import UsageError

#: Kafka's usual port, which librdkafka and aiokafka add, too.
_DEFAULT_PORT = 9092
_HIGHEST_PORT = 65_535
#: A protocol of Kafka, a host name or an address (of IPv6 in brackets), and a port.
_SERVER = re.compile(
    r"(?:(?P<protocol>PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9._-]+)"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)


def canonical_servers(given: object, protocol: object = None) -> str:
    """The servers as host:port,host:port. `protocol` is the property security.protocol; None is plaintext.

    Spaces around commas and empty parts are dropped, and so is a protocol in front if it is the given one. Raises
    UsageError for everything else, because a client could read it in another way.
    """
    if "@" in str(given):
        # It is not repeated.
        raise UsageError("bootstrap.servers takes no password: give host:port, and sasl.username and sasl.password")
    servers = [part for part in (part.strip() for part in str(given).split(",")) if part]
    if not servers:
        raise UsageError("bootstrap.servers names no server: give host:port,host:port")
    return ",".join(_canonical(server, str(protocol or "plaintext")) for server in servers)


def _canonical(server: str, protocol: str) -> str:
    found = _SERVER.fullmatch(server)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= _HIGHEST_PORT:
        raise UsageError(
            f"bootstrap.servers: {server!r} is not host:port. Separate servers by commas, and write an address of IPv6 "
            f"in brackets: [::1]:9092"
        )
    if (found["protocol"] or protocol).lower() != protocol.lower():
        raise UsageError(
            f"bootstrap.servers: {server!r} names another protocol than security.protocol, which is {protocol}. Give "
            f"security.protocol, and the server as {found['host']}:{port}"
        )
    return f"{found['host']}:{port}"
