"""Every error that txbridge raises on purpose. Their messages say what to do; the CLI prints them without a trace."""

from __future__ import annotations


class TxBridgeError(Exception):
    """Base of all errors of txbridge."""


class UsageError(TxBridgeError, ValueError):
    """The caller asked for something that cannot work: a wrong option, a reserved name, an empty topic.

    Raised before anything was sent or changed.
    """


class EnvironmentProblemError(TxBridgeError):
    """The machine or the cluster lacks something: no Java, a taken port, no disk space, no connection, no right."""


class LocalProblemError(EnvironmentProblemError):
    """What this machine alone lacks. No cluster was asked, so none is to blame."""
