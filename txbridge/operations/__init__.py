"""Operations on stuck transactions: list them, show the history of one, decide one by hand, resume discarded ones.

Listing reads the topics and nothing else, so that it works with no worker alive and disturbs none. Deciding, resuming
and abandoning write END commands, which the worker applies as any other: the promises hold for them too.
"""

from txbridge.errors import missing_extra

if error := missing_extra(__name__, "operations", "pydantic"):
    raise error

from txbridge.operations.commands import resolve, resolve_all
from txbridge.operations.connection import Connection
from txbridge.operations.history import History, Step, read_history
from txbridge.operations.listing import list_discarded, list_pending
from txbridge.operations.model import Answer, Listing, NextStep, OpenMessage, Result, Selection, StoredCommand
from txbridge.operations.view import Action

__all__ = [
    "Action",
    "Answer",
    "Connection",
    "History",
    "Listing",
    "NextStep",
    "OpenMessage",
    "Result",
    "Selection",
    "Step",
    "StoredCommand",
    "list_discarded",
    "list_pending",
    "read_history",
    "resolve",
    "resolve_all",
]
