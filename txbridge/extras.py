"""Extras, the optional parts of the installation. The error for a missing one names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from txbridge.errors import LocalProblemError

#: Packages of this repository. If one of them is not found, that is a bug and not a missing extra.
_OURS = frozenset({"txbridge", "txbridge_audit", "txbridge_django", "txbridge_rocketmq", "txbridge_sqlalchemy"})


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise LocalProblemError with the name of the extra, if an import fails because the extra is missing.

    Other errors are raised unchanged, because they are bugs of txbridge.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OURS or package in sys.stdlib_module_names:
            raise
        raise LocalProblemError(f"{what}: pip install 'txbridge[{extra}]'") from error
