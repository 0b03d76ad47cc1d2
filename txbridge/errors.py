"""Errors that all parts of txbridge share. Each message says what to do, and the CLI prints it without a trace."""

from __future__ import annotations

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
