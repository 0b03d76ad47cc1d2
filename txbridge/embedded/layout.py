"""The nodes of a cluster, with their folders and ports."""

from __future__ import annotations

from pathlib import Path

from txbridge.embedded.config import QUORUM, BrokerPorts
from txbridge.embedded.ports import free_port
from txbridge.errors import UsageError

#: Largest number of brokers. Each one needs a JVM of its own.
MOST_BROKERS = 9
_BROKER = "broker-"


def check_size(brokers: int) -> int:
    """Return the number of brokers, or raise UsageError."""
    if brokers == 1 or QUORUM <= brokers <= MOST_BROKERS:
        return brokers
    why = ""
    if brokers == 2:
        why = ": with two, none may be away (a quorum of two needs both)"
    elif brokers > MOST_BROKERS:
        why = ": each one needs a JVM of its own"
    raise UsageError(f"brokers must be 1, or {QUORUM} to {MOST_BROKERS}, not {brokers}{why}")


def check_port(port: int | None, brokers: int) -> int | None:
    """Return the port, or raise UsageError. Further brokers take the ports above that of the first."""
    if port is not None and not 1 <= port <= 65_536 - brokers:
        raise UsageError(f"port must be between 1 and {65_536 - brokers}, or None for a free one, not {port}")
    return port


def check_secure_port(secure_port: int | None, port: int | None, brokers: int) -> int | None:
    """Return the port of the listener with TLS, or raise UsageError."""
    if secure_port is None:
        return None
    if brokers > 1:
        raise UsageError("only one node can have a secure port: leave --brokers out, in Python brokers=...")
    if not 0 <= secure_port <= 65_535 or secure_port == port:
        raise UsageError(f"secure_port must be between 0, for a free one, and 65535, and not port, not {secure_port}")
    return secure_port


def choose_folders(data_dir: Path, brokers: int) -> dict[int, Path]:
    """The folder of each node by its id. One node has the data folder itself.

    Raises:
        UsageError: the data folder holds another number of nodes.

    """
    if brokers == 1:
        wanted = {1: data_dir}
    else:
        wanted = {number: data_dir / f"{_BROKER}{number}" for number in range(1, brokers + 1)}
    found = set(find_folders(data_dir))
    if found and found != set(wanted.values()):
        kind = f"{len(found)} broker{'s' if len(found) > 1 else ''}"
        raise UsageError(
            f"the data folder {data_dir} belongs to a Kafka of {kind}: start it with as many (--brokers, in Python "
            "brokers=...), or use another folder (--data-dir, in Python data_dir=...)"
        )
    return wanted


def find_folders(data_dir: Path) -> list[Path]:
    """The folders of the nodes that were formatted or started here, in the order of their ids."""
    return [
        folder
        for folder in (data_dir, *sorted(data_dir.glob(f"{_BROKER}*")))
        if (folder / "kafka" / "meta.properties").exists() or (folder / "broker.json").exists()
    ]


def choose_ports(brokers: int, port: int | None) -> list[BrokerPorts]:
    """Ports for each broker, the clients' from `port` on, or free ones."""
    # A chosen port of one node must not be the wanted one of another.
    taken: set[int] = set() if port is None else set(range(port, port + brokers))

    def choose() -> int:
        while (found := free_port()) in taken:
            pass
        taken.add(found)
        return found

    return [
        BrokerPorts(node_id, choose() if port is None else port + node_id - 1, internal=choose(), controller=choose())
        for node_id in range(1, brokers + 1)
    ]
