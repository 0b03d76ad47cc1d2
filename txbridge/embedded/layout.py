"""The nodes of a cluster, with their folders and ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from txbridge.embedded.config import Member
from txbridge.embedded.ports import free_port, require_free
from txbridge.errors import UsageError

#: Number of nodes that vote about the metadata. One of them may be down.
QUORUM = 3
#: Largest number of brokers. Each one needs a JVM of its own.
MOST_BROKERS = 9
#: Node ids of controllers that are no brokers begin above this.
CONTROLLER_IDS = 100
_BROKER, _CONTROLLER = "broker-", "controller-"


def check_size(brokers: int) -> int:
    if brokers != 1 and not QUORUM <= brokers <= MOST_BROKERS:
        if brokers == 2:
            why = ": with two, none may be away (a quorum of two needs both)"
        elif brokers > MOST_BROKERS:
            why = ": each one needs a JVM of its own"
        else:
            why = ""
        raise UsageError(f"brokers must be 1, or {QUORUM} to {MOST_BROKERS}, not {brokers}{why}")
    return brokers


def check_port(port: int | None, brokers: int) -> int | None:
    """Return the port, or raise UsageError. Further brokers take the ports above that of the first."""
    if port is not None and not 1 <= port <= 65_536 - brokers:
        raise UsageError(f"port must be between 1 and {65_536 - brokers}, or None for a free one, not {port}")
    return port


def folders(data_dir: Path, brokers: int, *, separate_controllers: bool) -> dict[int, Path]:
    """The folder of each node by its id. One node has the data folder itself.

    Raises:
        UsageError: the data folder holds another number of nodes.

    """
    if brokers == 1:
        wanted = {1: data_dir}
    else:
        wanted = {number: data_dir / f"{_BROKER}{number}" for number in range(1, brokers + 1)}
        if separate_controllers:
            wanted |= {CONTROLLER_IDS + one: data_dir / f"{_CONTROLLER}{one}" for one in range(1, QUORUM + 1)}
    found = set(node_folders(data_dir))
    if found and found != set(wanted.values()):
        number = sum(folder == data_dir or folder.name.startswith(_BROKER) for folder in found)
        kind = f"{number} broker{'s' if number > 1 else ''}" + (
            " and separate controllers" if any(folder.name.startswith(_CONTROLLER) for folder in found) else ""
        )
        raise UsageError(
            f"the data folder {data_dir} belongs to a Kafka of {kind}: start it with as many (--brokers, in Python "
            "brokers=...), or use another folder (--data-dir, in Python data_dir=...)"
        )
    return wanted


def node_folders(data_dir: Path) -> list[Path]:
    """The folders of the nodes that were formatted or started here, brokers first."""
    parts = (folder for kind in (_BROKER, _CONTROLLER) for folder in sorted(data_dir.glob(f"{kind}*")))
    return [
        folder
        for folder in (data_dir, *parts)
        if (folder / "kafka" / "meta.properties").exists() or (folder / "broker.json").exists()
    ]


def ways(member: Member) -> list[tuple[int, int]]:
    """Pairs of ports: the one that the others connect to, and the one behind it."""
    both = [(member.internal_link, member.internal)] if member.is_broker else []
    return both + ([(member.controller_link, member.controller)] if member.is_controller else [])


def choose_members(nodes: list[int], port: int | None, *, separate_controllers: bool, with_links: bool) -> list[Member]:
    """Ports for each node; raises EnvironmentProblemError when a wanted one is taken."""
    # A chosen port of one node must not be the wanted one of another.
    taken: set[int] = set() if port is None else set(range(port, port + len(nodes)))

    def free() -> Iterator[int]:
        while True:
            found = free_port()
            if found not in taken:
                taken.add(found)
                yield found

    ports = free()
    members = []
    for place, node_id in enumerate(nodes):
        is_controller = node_id > CONTROLLER_IDS if separate_controllers else node_id <= QUORUM
        if node_id > CONTROLLER_IDS:
            own = 0
        elif port is None:
            own = next(ports)
        else:
            own = port + place
            require_free(own)
        internal, controller = next(ports), next(ports)
        members.append(
            Member(
                node_id=node_id,
                is_broker=node_id < CONTROLLER_IDS,
                is_controller=is_controller,
                port=own,
                internal=internal,
                internal_link=next(ports) if with_links else internal,
                controller=controller,
                controller_link=next(ports) if with_links else controller,
            )
        )
    return members
