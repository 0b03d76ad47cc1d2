"""Options of a door and their validation, and what all its parts use: its setting, its metrics and its tasks."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from txbridge.client.message import MessageLimits
from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge_rocketmq.access import AccessKeys, Certificate

#: Of the time of a SEND (s): Kafka acknowledges in milliseconds, and it fails after three seconds.
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
#: Environment variable that may hold the secret, instead of a file.
SECRET_VARIABLE = "TXBRIDGE_ROCKETMQ_SECRET"  # noqa: S105  a name
#: Minimum length of the secret, in characters: too many to be tried out, even with letters and digits alone.
SHORTEST_SECRET = 32


@dataclass(frozen=True, slots=True)
class DoorSetting:
    """Settings of a door, which do not change while it runs, but for the access keys in their file."""

    names: Names
    #: Partitions of HALF.
    partitions: int
    limits: MessageLimits
    secret: bytes = field(repr=False)
    #: Addresses of all doors, as clients of the remoting protocol reach them.
    addresses: tuple[str, ...]
    access: AccessKeys
    #: Returns the reason why nothing may be sent; empty if there is none.
    obstacle: Callable[[], str]


class DoorMetrics:
    """Metrics of a door, changed in the event loop only. Any thread may read the registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"txbridge_rocketmq_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"txbridge_rocketmq_{name}", text, labels, registry=registry)

        self.connections = gauge("connections", "Open connections of clients.")
        self.streams = gauge("streams", "Open telemetry streams of gRPC clients.")
        self.groups = gauge("groups", "Producer groups whose checks this door reads.")
        self.expiry = gauge("certificate_expiry_timestamp_seconds", "Until when the certificate is valid.", "file")
        self.requests = counter(
            "requests", "Requests, by RocketMQ's name of the request and of the answer.", "request", "response"
        )
        self.sends = Histogram(
            "txbridge_rocketmq_send_seconds",
            "From a SEND that was read to its acknowledgement by Kafka.",
            registry=registry,
            buckets=_BUCKETS,
        )
        self.checks = counter(
            "checks",
            "Checks: sent to a client, not sent, answered by the door, or not of this door (not_ours).",
            "result",
        )
        self.closed = counter("connections_closed", "Connections that the door closed, by reason.", "reason")
        self.consumers_refused = counter(
            "consumers_refused", "Requests of consumers, which the door refuses: they receive nothing.", "protocol"
        )
        for protocol in ("remoting", "grpc"):
            # An increase is seen only in what was there before.
            self.consumers_refused.labels(protocol)
        self.traces_dropped = counter("traces_dropped", "Messages with traces of clients, whose topic does not exist.")
        self.equal_ids = counter(
            "equal_ids",
            "Transactional and delayed messages with the id of another message: some clients make equal ids.",
        )
        self.ends_lost = counter(
            "ends_not_acknowledged", "Decisions that Kafka did not acknowledge; the worker asks again."
        )


def spawn_task(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task, which is one of the `tasks` until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """Validated options of a door's place."""

    host: str
    port: int
    addresses: tuple[str, ...]
    secret: bytes = field(repr=False)
    access: AccessKeys
    tls: Certificate | None
    #: Host and port for gRPC clients; None if they are not served.
    grpc: tuple[str, int] | None
    #: Partitions of topics that are created when a client names them; 0: none is created.
    auto_create_topics: int


def door_options(place: Any, environ: Mapping[str, str] = os.environ) -> DoorOptions:
    """Validate the command's DoorPlace. Raises UsageError, which says what to do."""
    host, port = _address(place.listen, "--listen", smallest_port=0)
    return DoorOptions(
        host=host,
        port=port,
        addresses=_advertised(host, place.listen, place.advertised),
        secret=read_secret(place.secret_file, environ),
        access=AccessKeys() if place.access_keys is None else AccessKeys(place.access_keys),
        tls=_tls(place.tls_certificate, place.tls_key),
        grpc=_address(place.grpc_listen, "--grpc-listen", smallest_port=0) if place.grpc_listen else None,
        auto_create_topics=place.auto_create_topics,
    )


def read_secret(file: Path | None, environ: Mapping[str, str]) -> bytes:
    """The secret of the deployment, from a file or from the environment. Raises UsageError."""
    given = environ.get(SECRET_VARIABLE, "")
    if file is not None and given:
        raise UsageError(f"the secret is given twice: by --secret-file and by {SECRET_VARIABLE}")
    if file is not None:
        try:
            text = file.read_text("utf-8").strip()
            everybody = file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the secret cannot be read from {file}: {error}") from None
        if everybody:
            raise UsageError(f"every user of this machine can read or write the secret in {file}: chmod 600 {file}")
    elif given:
        text = given.strip()
    else:
        raise UsageError(
            "the door needs a secret, the same for all doors of a namespace: --secret-file FILE, or "
            f"{SECRET_VARIABLE}. `openssl rand -hex 32` makes one"
        )
    if len(text) < SHORTEST_SECRET:
        raise UsageError(
            f"the secret has {len(text)} characters, and {SHORTEST_SECRET} are needed: transaction ids could be "
            "guessed. `openssl rand -hex 32` makes one"
        )
    return text.encode()


def _advertised(host: str, listen: str, given: str) -> tuple[str, ...]:
    """The addresses that clients get; empty if they get the listen address."""
    addresses = tuple(one.strip() for one in given.split(",")) if given else ()
    for one in addresses:
        _address(one, "--advertised", smallest_port=1)
    if not addresses and host in {"", "0.0.0.0", "::"}:  # noqa: S104  it is refused
        raise UsageError(
            f"--listen {listen} is not an address that clients can use: give --advertised HOST:PORT, "
            "the address by which they reach this door (of several doors: all addresses, the same list at each)"
        )
    return addresses


def _address(text: str, flag: str, *, smallest_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not smallest_port <= int(port) <= 65_535:
        raise UsageError(f"{flag} {text!r} is not HOST:PORT")
    if smallest_port and not host:
        raise UsageError(f"{flag} {text!r} has no host")
    return host.strip("[]"), int(port)


def _tls(certificate: Path | None, key: Path | None) -> Certificate | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs both --tls-certificate and --tls-key")
    return Certificate(certificate, key)
