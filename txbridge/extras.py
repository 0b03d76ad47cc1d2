"""Extras, the optional parts of the installation. The error for a missing one names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from txbridge.errors import LocalProblemError

#: Packages of this repository. If one of them is not found, that is a bug and not a missing extra.
_OURS = frozenset({"txbridge", "txbridge_audit", "txbridge_django", "txbridge_rocketmq", "txbridge_sqlalchemy"})


class MissingExtraError(LocalProblemError, ModuleNotFoundError):
    """A package of an extra is not installed."""


def missing_extra(package: str, extra: str, *modules: str) -> MissingExtraError | None:
    """The error for `package` if one of the modules that it needs is not installed. None of them is imported.

    The package itself raises it, so that the trace ends at the import that cannot work.
    """
    for module in modules:
        # None is how Python marks a module that must not be imported. find_spec would raise an error.
        if module in sys.modules and sys.modules[module] is not None:
            continue
        if module in sys.modules or find_spec(module) is None:
            return MissingExtraError(f"{package} needs {module}: pip install 'txbridge[{extra}]'")
    return None


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
        raise MissingExtraError(f"{what}: pip install 'txbridge[{extra}]'") from error
