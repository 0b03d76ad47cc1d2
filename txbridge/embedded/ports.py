"""Free ports on the loopback address."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from txbridge.errors import EnvironmentProblemError

#: The broker listens here and nowhere else: its plain port has no authentication.
HOST = "127.0.0.1"

_LOWEST = 10_240
# First port of the kernel's range for outgoing connections if it does not report one (Linux's default).
_USUAL_EPHEMERAL = 32_768
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Each attempt fails only if a program listens just there; fifty failures in a row mean that something else is wrong.
_ATTEMPTS = 50


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now. As Java does it: a recently closed connection does not matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A free port *below* the kernel's range for outgoing connections.

    A port that the kernel hands out (bind to 0) lies inside that range. While the broker is down, a client that keeps
    reconnecting can be given that very port as its source. It then connects to itself, and the broker can never bind
    the port again.
    """
    try:
        highest = int(_EPHEMERAL_RANGE.read_text().split()[0]) - 1
    except (OSError, ValueError, IndexError):
        highest = _USUAL_EPHEMERAL - 1
    if highest <= _LOWEST:
        highest = 65_535
    for _ in range(_ATTEMPTS):
        port = random.randint(_LOWEST, highest)  # noqa: S311 - spreads, hides nothing
        if is_free(port):
            return port
    raise EnvironmentProblemError(f"found no free port on {HOST} between {_LOWEST} and {highest}")


def require_free(port: int, option: str = "port") -> None:
    """Refuse a taken port before a JVM is started for it."""
    if not is_free(port):
        raise EnvironmentProblemError(
            f"port {port} on {HOST} is taken. Choose another with --{option.replace('_', '-')} (0 finds a free one; in "
            f"Python: EmbeddedKafka({option}=...)), or stop what listens there: `ss -ltnp 'sport = :{port}'` names it"
        )
