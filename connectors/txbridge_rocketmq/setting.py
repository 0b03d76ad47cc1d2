"""What all parts of a door know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txbridge.client.message import Limits
from txbridge.core.names import Names
from txbridge_rocketmq.access import Access


@dataclass(frozen=True, slots=True)
class Setting:
    """What a door is made of that does not change while it runs."""

    names: Names
    #: Of HALF.
    partitions: int
    limits: Limits
    secret: bytes
    #: Addresses of all doors, as clients reach them.
    addresses: tuple[str, ...]
    #: The same for gRPC.
    grpc_addresses: tuple[str, ...]
    access: Access
    #: Why nothing may be sent; empty while all is well.
    obstacle: Callable[[], str]
