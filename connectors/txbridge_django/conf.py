"""The setting TXBRIDGE and its validation."""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.db import connections

from txbridge.client.barrier import Barrier
from txbridge.client.options import ClientOptions
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of TXBRIDGE. The setting has their names in capitals."""

    #: The producer group. Without Kafka it only has the keys of `once`.
    group: str = "outbox"
    #: librdkafka's settings by their own names; at least bootstrap.servers. None: the outbox takes what is announced.
    kafka: dict[str, Any] | None = field(default=None, repr=False)
    namespace: str = ""
    #: The alias of the database whose transactions are the local ones.
    database: str = "default"
    #: Wake the relay at each commit with messages in the outbox (PostgreSQL).
    outbox_notify: bool = False
    #: Seconds that a check waits for a transaction that still runs, before it answers "unknown" (PostgreSQL).
    check_wait: float = 3.0
    #: Age of a message in seconds from which on a check that finds no row rolls it back.
    patience: float = DEFAULT_PATIENCE_S
    #: Number of checks that are answered at the same time.
    check_threads: int = 1
    #: Further arguments of TransactionProducer.
    producer: dict[str, Any] = field(default_factory=dict, repr=False)


_KEYS = {one.name.upper(): one.name for one in fields(Options)}
_MISSING = (
    'TXBRIDGE is missing: {"GROUP": "orders", "KAFKA": {"bootstrap.servers": "127.0.0.1:9092"}}, or {} if messages are '
    "rows of the outbox"
)


def problems() -> list[str]:
    """Return what keeps a producer from working with the setting, a sentence each."""
    given = getattr(settings, "TXBRIDGE", None)
    if not isinstance(given, dict):
        return [_MISSING]
    found = []
    for key in given:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key).upper(), _KEYS, 1)
            found.append(f"TXBRIDGE[{key!r}] does not exist{f': {near[0]}?' if near else ''}")
    if "KAFKA" in given and "GROUP" not in given:
        found.append("TXBRIDGE['GROUP'] is missing")
    database = given.get("DATABASE", "default")
    if database not in connections:
        found.append(_unknown(database))
    elif not connections[database].settings_dict["AUTOCOMMIT"]:
        found.append(
            f"DATABASES[{database!r}] has AUTOCOMMIT = False: atomic() is then a savepoint only, and the message would "
            "be decided before the transaction is. Leave it out"
        )
    if not found and options().check_wait <= 0:
        found.append("TXBRIDGE['CHECK_WAIT'] must be positive")
    if not found:
        try:
            Barrier(options().patience)
        except UsageError as error:
            found.append(f"TXBRIDGE['PATIENCE']: {error}")
    return found


def outbox_database() -> str:
    """The alias of the database with the outbox. Raises UsageError if there is none."""
    if (database := _named_database()) not in connections:
        raise UsageError(_unknown(database))
    return database


def outbox_notifies() -> bool:
    """Whether `outbox.add` wakes the relay."""
    return bool(_given().get("OUTBOX_NOTIFY"))


def _named_database() -> str:
    return str(_given().get("DATABASE", "default"))


def _given() -> dict[str, Any]:
    given = getattr(settings, "TXBRIDGE", None)
    return given if isinstance(given, dict) else {}


def _unknown(database: str) -> str:
    return f"TXBRIDGE['DATABASE'] names {database!r}, which is not in DATABASES"


def options() -> Options:
    """The options, not validated. `valid_options` raises UsageError with all problems."""
    return Options(**{_KEYS[key]: value for key, value in settings.TXBRIDGE.items()})


def valid_options() -> Options:
    """The options. Raises UsageError with all problems."""
    if found := problems():
        raise UsageError("\n".join(found))
    return options()


def refuse_autocommit_off(database: str) -> None:
    """Raise UsageError if autocommit is off in this thread: `atomic()` would neither begin nor commit."""
    connection = connections[database]
    is_on = connection.settings_dict["AUTOCOMMIT"] if connection.connection is None else connection.autocommit
    if not (is_on or connection.in_atomic_block):
        raise UsageError(
            "autocommit is off (transaction.set_autocommit(False)): the message would be decided before your "
            "transaction is. Commit it, call transaction.set_autocommit(True), and put what belongs together into the "
            "block of announce"
        )


def require_own_transaction(database: str) -> None:
    """Raise UsageError where an announcement could not have a transaction of its own."""
    refuse_event_loop("announce")
    # That of a TestCase stands for the database: what is committed within it is so for the test.
    if any(not getattr(block, "_from_testcase", False) for block in connections[database].atomic_blocks):
        raise UsageError(
            "announce was called within transaction.atomic(): the message would be decided before that transaction is. "
            "Call it outside, and put what belongs together into its block. With ATOMIC_REQUESTS decorate the view "
            "with @transaction.non_atomic_requests"
        )
    refuse_autocommit_off(database)


def refuse_event_loop(call: str) -> None:
    """Raise UsageError on an event loop, where Django opens no connection (DJANGO_ALLOW_ASYNC_UNSAFE lets it)."""
    if os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{call} was called on an event loop, as in an async view: Django's transactions are synchronous. Put the call "
        "into a plain function, and await sync_to_async(function)()"
    )


def check_settings(**_: Any) -> list[CheckMessage]:
    """Report the problems to `manage.py check`, and those for which the first announcement would be refused."""
    found = problems()
    if not found and (given := options()).kafka is not None:
        try:
            ClientOptions(given.group, given.kafka, given.namespace)
        except UsageError as error:
            found.append(f"TXBRIDGE: {error}")
    return [Error(problem, id="txbridge.E001") for problem in found]


def check_transactions(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Report a database that cannot roll back. `migrate` and `manage.py check --database` ask for it."""
    database = _named_database()
    if database not in (databases or ()) or connections[database].features.supports_transactions:
        return []
    return [
        Error(
            f"DATABASES[{database!r}] has no transactions (MyISAM), so a message would be sent whatever becomes of "
            "your data. Let MySQL make tables of InnoDB, and convert those that there are",
            id="txbridge.E002",
        )
    ]
