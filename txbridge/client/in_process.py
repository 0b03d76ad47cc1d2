"""Bridges in this process, which tests use instead of Kafka and a worker (txbridge.testing.memory)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txbridge.client.checks.calls import CheckCalls
    from txbridge.client.options import ClientOptions
    from txbridge.client.runtime import Runtime

#: By the bootstrap.servers that stand for a bridge: starts a client on it. It returns at once, or raises as `start`. A
#: client that starts without Kafka is returned in any case.
BRIDGES: dict[str, Callable[[ClientOptions, CheckCalls], Runtime]] = {}
