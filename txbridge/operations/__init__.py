"""Operations on stuck transactions: list them, decide one by hand, resume discarded ones.

Listing reads the topics and nothing else, so that it works with no worker alive and disturbs none. Deciding and
resuming write END commands, which the worker applies as any other: the promises hold for them too.
"""

from txbridge.operations.connection import Connection
from txbridge.operations.deciding import resolve
from txbridge.operations.listing import list_discarded, list_pending
from txbridge.operations.model import Answer, Listing, NextStep, OpenMessage, Result, Selection, StoredCommand
from txbridge.operations.resuming import resume, resume_group

__all__ = [
    "Answer",
    "Connection",
    "Listing",
    "NextStep",
    "OpenMessage",
    "Result",
    "Selection",
    "StoredCommand",
    "list_discarded",
    "list_pending",
    "resolve",
    "resume",
    "resume_group",
]
