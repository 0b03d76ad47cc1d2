"""Options of a door and their validation."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txbridge.errors import UsageError
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.watched_files import Certificate

#: Environment variable that may hold the secret, instead of a file.
SECRET_VARIABLE = "TXBRIDGE_ROCKETMQ_SECRET"  # noqa: S105  a name
#: Minimum length of the secret, in characters: too many to be tried out, even with letters and digits alone.
SHORTEST_SECRET = 32


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
