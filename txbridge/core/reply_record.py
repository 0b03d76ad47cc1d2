"""Replies: the worker's answers to END records that ask for one. They go to the check topic of the producer group."""

from __future__ import annotations

from dataclasses import dataclass

from txbridge.core import names
from txbridge.core.half_copies import coordinates, parse_coordinates
from txbridge.core.headers import MalformedRecordError, OurHeaders
from txbridge.core.names import Headers
from txbridge.core.states import TransactionState

_UNKNOWN = "unknown"
_STATES = {_UNKNOWN: None, **{state.value: state for state in TransactionState}}


@dataclass(frozen=True, slots=True)
class Reply:
    """The state of a transaction after an END record, for its sender."""

    #: The name that the sender gave it.
    name: str
    #: None: the worker does not know such a transaction of the sender's group.
    state: TransactionState | None = None
    #: Half offset of a known one. Its partition is that of the END record.
    half_offset: int | None = None
    #: Of an abandoned one: number of messages that were delivered before. None: not known.
    delivered: int | None = None


def reply_headers(reply: Reply, partition: int) -> list[tuple[str, bytes | None]]:
    """Headers of a reply. `partition` is that of the END record."""
    state = _UNKNOWN if reply.state is None else reply.state.value
    headers: list[tuple[str, bytes | None]] = [
        (names.VERSION, names.PROTOCOL_VERSION),
        (names.REPLY, reply.name.encode()),
        (names.STATE, state.encode()),
    ]
    if reply.half_offset is not None:
        headers.append((names.HALF_COORDINATES, coordinates(partition, reply.half_offset)))
    if reply.delivered is not None:
        headers.append((names.DELIVERED, b"%d" % reply.delivered))
    return headers


def is_reply(headers: Headers) -> bool:
    """Whether a record of a check topic is a reply, and no check request."""
    return any(name == names.REPLY for name, _ in headers)


def parse_reply(headers: Headers) -> Reply:
    """Read a reply. Raises MalformedRecordError with the rule that it breaks."""
    ours = OurHeaders(headers)
    ours.require_version("reply")
    state = ours.require_text(names.STATE)
    if state not in _STATES:
        raise MalformedRecordError(f"header {names.STATE} is not one of {', '.join(_STATES)}: {state[:40]!r}")
    where = ours.find_text(names.HALF_COORDINATES)
    offset = None if where is None else parse_coordinates(where)[1]
    return Reply(ours.require_text(names.REPLY), _STATES[state], offset, ours.optional_number(names.DELIVERED))
