"""A configuration file in TOML, and Kafka's dotted names in it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from txbridge.errors import UsageError


def read_config_file(path: Path) -> dict[str, Any]:
    """The content of the file. Raises UsageError, which repeats nothing of it."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}") from None


def flat(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and their values: in TOML, unquoted dotted names make nested tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
