"""Errors that all parts of txbridge share. Each message says what to do, and the CLI prints it without a trace.

That of a missing extra, an optional part of the installation, names it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from txbridge.masking import masked_values

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class TxBridgeError(Exception):
    """Base class of every error that txbridge raises on purpose. Its text has no secret, whatever it quotes."""

    def __init__(self, *args: object) -> None:
        super().__init__(*masked_values(args))


class UsageError(TxBridgeError, ValueError):
    """The caller asked for something that cannot work: a wrong option, a reserved name, an empty topic.

    Raised before anything was sent or changed.
    """


class EnvironmentProblemError(TxBridgeError):
    """The machine or the cluster lacks something: no Java, a taken port, no disk space, no connection, no right."""


class KafkaUnreachableError(EnvironmentProblemError):
    """The cluster did not answer in time, or refused the connection. Trying again later may help.

    The text has the addresses, the cause and a remedy.
    """

    def __init__(self, message: str, bootstrap_servers: str = "", cause: KafkaError | None = None) -> None:
        super().__init__(message)
        #: The addresses of the connection; empty if they are not known.
        self.bootstrap_servers = bootstrap_servers
        #: The last error of the connection from librdkafka; None if there is none.
        self.cause = cause


class LocalProblemError(EnvironmentProblemError):
    """Something that this machine lacks. No cluster was asked, so the cause is not there."""


class DatabaseUnreachableError(LocalProblemError):
    """A database gives no connection. Trying again later may help."""


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


needs_cli = partial(needs, "cli", "the command line needs typer, rich and pydantic")
