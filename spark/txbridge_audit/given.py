"""Kafka options as a person gives them: on the command line, in the environment, in a file.

Other users of a machine can read the command line of every process: a password belongs in one of the other two. Both
are read by `txbridge worker` as well, so that one file or one variable can serve both.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CouldNotAuditError(f"can not read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CouldNotAuditError(f"the configuration file {path} is not valid TOML: {error}") from None
    return _options(f"{TABLE} ({path})", found.get(TABLE, {}))


def _options(where: str, found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping):
        raise CouldNotAuditError(f"{where} must be a table of librdkafka properties")
    return dict(_flat(where, found))


def _flat(where: str, table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names with their values; in TOML unquoted dotted names make nested tables."""
    for name, value in table.items():
        match value:
            case bool():
                yield prefix + name, str(value).lower()
            case str() | int() | float():
                yield prefix + name, str(value)
            case Mapping():
                yield from _flat(where, value, f"{prefix}{name}.")
            case _:
                raise CouldNotAuditError(f"{where}: {prefix}{name} must be text, a number, true or false")
