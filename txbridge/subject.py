"""Namespace and cluster of a report. A report that does not name them could be about another cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from txbridge.config.worker import WorkerSettings
from txbridge.errors import LocalProblemError, TxBridgeError


@dataclass(frozen=True, slots=True)
class Subject:
    namespace: str
    bootstrap_servers: str
    #: Kafka's own id of the cluster; None if the cluster has not answered.
    cluster_id: str | None = None

    def __str__(self) -> str:
        namespace = f"namespace {self.namespace}" if self.namespace else "default namespace"
        cluster = f"cluster {self.cluster_id}" if self.cluster_id else "the cluster"
        return f"{namespace} on {cluster} at {self.bootstrap_servers}"

    def as_record(self) -> dict[str, str | None]:
        return {"namespace": self.namespace, "cluster_id": self.cluster_id, "bootstrap_servers": self.bootstrap_servers}


@contextmanager
def about(settings: WorkerSettings) -> Iterator[None]:
    """Add the namespace and the cluster as a note to every TxBridgeError, except a LocalProblemError."""
    try:
        yield
    except LocalProblemError:
        raise
    except TxBridgeError as error:
        error.add_note(f"({Subject(settings.namespace, settings.bootstrap_servers)})")
        raise
