"""Settings that all parts of a door use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txbridge.client.message import MessageLimits
from txbridge.core.names import Names
from txbridge_rocketmq.access import AccessKeys


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
