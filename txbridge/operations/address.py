"""Lookup of the half message that a person names by half coordinates or by its transaction id."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from txbridge.core.half_copies import parse_coordinates
from txbridge.core.headers import MalformedRecordError
from txbridge.core.names import short_id
from txbridge.core.states import Outcome
from txbridge.errors import TxBridgeError, UsageError
from txbridge.operations.connection import Connection
from txbridge.operations.model import OpenMessage
from txbridge.operations.reading import old_outcome, read_view, read_views
from txbridge.operations.view import PartitionView

#: At least as many characters of an id as are shown; fewer would not protect against a mistyped offset.
_ID_PREFIX = re.compile(r"[0-9A-F]{8,32}\Z")

_Found = TypeVar("_Found")

_PAST = {
    Outcome.COMMIT: "it was committed and delivered",
    Outcome.ROLLBACK: "it was rolled back",
    Outcome.DISCARD: "it was discarded, and can no longer be resumed",
    Outcome.ABANDON: "it was committed, and abandoned by an operator or cancelled by the application",
}


class FinishedError(TxBridgeError):
    """Messages have changed since the caller looked at them: one is finished, for example. Nothing was written."""


def find_target(connection: Connection, target: str, id_prefix: str | None) -> tuple[PartitionView, OpenMessage]:
    """Find the open message that `target` names, by coordinates or the beginning of its id, and its partition.

    `id_prefix` guards against a mistyped offset: the id of the message must begin with it.
    Raises UsageError when there is no such message, FinishedError when it is finished, and as `read_view`.
    """
    target = target.strip()
    if id_prefix is not None and not is_id_prefix(id_prefix):
        raise UsageError(
            f"--id takes the first 8 to 32 characters of a transaction id (0-9 A-F), not {id_prefix[:40]!r}"
        )
    view, message = _by_id(connection, target) if is_id_prefix(target) else _by_place(connection, target)
    if id_prefix is not None and not message.transaction_id.startswith(id_prefix):
        raise UsageError(
            f"the half message at {message.coordinates} has the transaction id {message.short_id}..., not "
            f"{short_id(id_prefix)}...: nothing was done. `txbridge pending` lists what is open"
        )
    return view, message


def is_id_prefix(text: str) -> bool:
    """Whether this is a transaction id, or as much of one as commands and logs show."""
    return _ID_PREFIX.match(text) is not None


def only_one(found: Sequence[_Found], target: str, coordinates: Callable[[_Found], str]) -> _Found | None:
    """The only message whose id begins with `target`, or None. Raises UsageError when there are several."""
    if len(found) > 1:
        listed = " and ".join(map(coordinates, found))
        raise UsageError(f"the half messages at {listed} have ids that begin with {short_id(target)}: give coordinates")
    return found[0] if found else None


def _by_id(connection: Connection, target: str) -> tuple[PartitionView, OpenMessage]:
    found = [
        (view, message)
        for view in read_views(connection)
        for message in view.open_messages()
        if message.transaction_id.startswith(target)
    ]
    if (one := only_one(found, target, lambda it: it[1].coordinates)) is not None:
        return one
    raise UsageError(
        f"no open half message has the transaction id {short_id(target)}...: it is finished, or was never prepared in "
        f"this namespace. Give <partition>:<half offset> instead of the id to find out which"
    )


def parse_place(connection: Connection, target: str) -> tuple[int, int]:
    """Partition and half offset of `<partition>:<half offset>`. Raises UsageError."""
    try:
        partition, half_offset = parse_coordinates(target)
    except MalformedRecordError:
        # It may be most of a transaction id, so no more of it is shown than of one.
        shown = f"{short_id(target)}..." if len(target) > len(short_id(target)) else target
        raise UsageError(
            f"{shown!r} is not the address of a half message: give <partition>:<half offset>, as in 0:42, or 8 to "
            f"32 characters of a transaction id (0-9 A-F); `txbridge pending` lists what is open"
        ) from None
    connection.require_partition(partition)
    return partition, half_offset


def _by_place(connection: Connection, target: str) -> tuple[PartitionView, OpenMessage]:
    partition, half_offset = parse_place(connection, target)
    view = read_view(connection, partition)
    if view.outcome_of(half_offset) is Outcome.DISCARD:
        # OP is read after OFFSET: the message may have been discarded in between, and its parked entry is there now.
        view = read_view(connection, partition)
    message = view.find_open(half_offset)
    if message is not None:
        return view, message
    half = f"{connection.names.half}[{partition}]"
    if half_offset >= view.half_end:
        raise UsageError(f"there is no half message at {target}: {half} ends at offset {view.half_end}")
    outcome = view.outcome_of(half_offset) or old_outcome(connection, view, half_offset)
    if outcome is not None:
        raise FinishedError(f"{target} is finished: {_PAST[outcome]}. Nothing was written")
    if half_offset >= view.watermark:
        raise UsageError(f"the record at {target} is not a half message: txbridge did not write it")
    raise FinishedError(
        f"{target} is finished, or was never a half message: everything below offset {view.watermark} is settled, and "
        f"OP does not go back that far. Nothing was written"
    )
