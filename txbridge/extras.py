"""Parts of the installation that are optional, the extras: whoever needs one that is missing is told its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from txbridge.errors import LocalProblemError

#: Packages of our own: one of them that is not found is a mistake of ours, not a missing extra.
_OURS = frozenset({"txbridge", "txbridge_audit", "txbridge_django", "txbridge_rocketmq", "txbridge_sqlalchemy"})


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Explain an import that fails because an extra is missing: LocalProblemError. Others are our own mistake."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OURS or package in sys.stdlib_module_names:
            raise
        raise LocalProblemError(f"{what}: pip install 'txbridge[{extra}]'") from error
