"""The namespace and the cluster that a report is about. A report that does not name them can be about another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from txbridge.config.worker import WorkerSettings
from txbridge.errors import LocalProblemError, TxBridgeError


@dataclass(frozen=True, slots=True)
class Subject:
    """One namespace on one cluster."""

    namespace: str
    bootstrap_servers: str
    #: Kafka's own id of the cluster; None while it has not answered.
    cluster_id: str | None = None

    def __str__(self) -> str:
        namespace = f"namespace {self.namespace}" if self.namespace else "default namespace"
        cluster = f"cluster {self.cluster_id}" if self.cluster_id else "the cluster"
        return f"{namespace} on {cluster} at {self.bootstrap_servers}"

    def as_record(self) -> dict[str, str | None]:
        """For JSON."""
        return {
            "namespace": self.namespace,
            "cluster_id": self.cluster_id,
            "bootstrap_servers": self.bootstrap_servers,
        }


@contextmanager
def about(settings: WorkerSettings) -> Iterator[None]:
    """Let every error of ours name what it is about, as a note; not those that have nothing to do with a cluster."""
    try:
        yield
    except LocalProblemError:
        raise
    except TxBridgeError as error:
        error.add_note(f"({Subject(settings.namespace, settings.bootstrap_servers)})")
        raise
