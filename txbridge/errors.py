"""Errors that all parts of txbridge share. Each message says what to do, and the CLI prints it without a trace."""

from __future__ import annotations


class TxBridgeError(Exception):
    """Base class of every error that txbridge raises on purpose."""


class UsageError(TxBridgeError, ValueError):
    """The caller asked for something that cannot work: a wrong option, a reserved name, an empty topic.

    Raised before anything was sent or changed.
    """


class EnvironmentProblemError(TxBridgeError):
    """The machine or the cluster lacks something: no Java, a taken port, no disk space, no connection, no right."""


class KafkaUnreachableError(EnvironmentProblemError):
    """The cluster did not answer in time, or refused the connection. Trying again later may help."""


class LocalProblemError(EnvironmentProblemError):
    """Something that this machine lacks. No cluster was asked, so the cause is not there."""
