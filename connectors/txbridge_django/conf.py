"""The setting TXBRIDGE and its validation."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.db import connections

from txbridge.client.barrier import Barrier
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of TXBRIDGE. The setting has their names in capitals."""

    #: The producer group.
    group: str
    #: librdkafka's settings by their own names; at least bootstrap.servers.
    kafka: dict[str, Any]
    namespace: str = ""
    #: The alias of the database whose transactions are the local ones.
    database: str = "default"
    #: Seconds that a check waits for a transaction that still runs, before it answers "unknown" (PostgreSQL).
    check_wait: float = 3.0
    #: Age of a message in seconds from which on a check that finds no row rolls it back.
    patience: float = DEFAULT_PATIENCE_S
    #: Number of checks that are answered at the same time.
    check_threads: int = 1
    #: Further arguments of TransactionProducer.
    producer: dict[str, Any] = field(default_factory=dict)


_KEYS = {one.name.upper(): one.name for one in fields(Options)}


def problems() -> list[str]:
    """Return the problems of the setting, a sentence each."""
    given = getattr(settings, "TXBRIDGE", None)
    if not isinstance(given, dict):
        return ['TXBRIDGE is missing: {"GROUP": "orders", "KAFKA": {"bootstrap.servers": "127.0.0.1:9092"}}']
    found = []
    for key in given:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key).upper(), _KEYS, 1)
            found.append(f"TXBRIDGE[{key!r}] does not exist{f': {near[0]}?' if near else ''}")
    found += [f"TXBRIDGE[{key!r}] is missing" for key in ("GROUP", "KAFKA") if key not in given]
    database = given.get("DATABASE", "default")
    if database not in connections:
        found.append(f"TXBRIDGE['DATABASE'] names {database!r}, which is not in DATABASES")
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
            "function of the message"
        )


def check_settings(**_: Any) -> list[CheckMessage]:
    """Report the problems to `manage.py check`."""
    return [Error(problem, id="txbridge.E001") for problem in problems()]
