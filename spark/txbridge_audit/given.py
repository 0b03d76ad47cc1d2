"""Kafka options as a person gives them: on the command line, in the environment, in a file.

Other users of a machine can read the command line of every process: a password belongs in one of the other two. Both
are read by `txbridge worker` as well, so that one file or one variable can serve both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from txbridge.config_file import flat, read_config_file
from txbridge.errors import UsageError
from txbridge_audit.errors import CouldNotAuditError

VARIABLE = "TXBRIDGE_KAFKA"
TABLE = "kafka"
#: The audit is told its cluster by --bootstrap-servers; what a worker's file says of it does not count.
_ADDRESSES = frozenset({"bootstrap.servers", "metadata.broker.list"})


def kafka_options(
    pairs: Iterable[str], config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The options of `key=value` pairs, of the variable TXBRIDGE_KAFKA and of a file's table; the first of them counts.

    Raises CouldNotAuditError for what can not be read. No message repeats a value: it may be a password.
    """
    given = {**_of_file(config), **_of_environment(environ)}
    return {**{name: value for name, value in given.items() if name not in _ADDRESSES}, **parse_options(pairs)}


def parse_options(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` pairs of a command line as a dictionary. A pair without `=` raises CouldNotAuditError."""
    options = {}
    for number, pair in enumerate(pairs, 1):
        name, equals, value = pair.partition("=")
        if not (equals and name.strip()):
            raise CouldNotAuditError(f"--kafka is not of the form key=value (number {number} of them)")
        options[name.strip()] = value
    return options


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    text = environ.get(VARIABLE, "")
    # An empty variable counts as absent: that is what an unset one becomes in a compose file.
    if not text:
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise CouldNotAuditError(f'{VARIABLE} must be JSON like {{"security.protocol": "ssl"}}: {error}') from None
    return _options(VARIABLE, found)


def _of_file(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found = read_config_file(path)
    except UsageError as error:
        raise CouldNotAuditError(str(error)) from None
    return _options(f"{TABLE} ({path})", found.get(TABLE, {}))


def _options(where: str, found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping):
        raise CouldNotAuditError(f"{where} must be a table of librdkafka properties")
    return {name: _text(where, name, value) for name, value in flat(found)}


def _text(where: str, name: str, value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case _:
            raise CouldNotAuditError(f"{where}: {name} must be text, a number, true or false")
