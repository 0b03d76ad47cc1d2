"""Links between the nodes of a cluster, which can be cut for each node. `KafkaLinks` starts this module as a process.

    python -m tests.support.kafka_links NODE:PORT:BEHIND ...

The other nodes connect to node NODE at PORT, which forwards to port BEHIND of the loopback address. Each line on
standard input is an order: "cut NODE" or "join NODE", answered with "done". End of file ends the process.

A node that is cut off receives nothing from the others, and they receive nothing from it. As in a network that drops
packets, connections stay open, and data arrive when the node joins again. Clients do not use these links. The first
request of a connection identifies its sender: Kafka's brokers put their number into the client id.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping

from tests.support.line_process import LineProcess
from txbridge.embedded.ports import HOST

# Bytes that are read at once: a fetch of a follower answers with up to 1 MB.
_CHUNK = 256 * 1024
_DONE = "done"
_ENDED = "the links between the nodes have ended: see their stderr above"
#: An order is carried out at once, except on a machine that is very busy.
_PATIENCE_S = 120.0
#: The number of a node in a client id, as in "raft-client-1", "broker-2-fetcher-0" and "3".
_NUMBER = re.compile(r"\d+")


class KafkaLinks:
    """The process that forwards the connections between nodes."""

    def __init__(self, links: Mapping[int, list[tuple[int, int]]]) -> None:
        """Start it, and wait until the links are open. The pairs are the port to connect to, and the one behind it."""
        pairs = [f"{node}:{port}:{behind}" for node, ports in links.items() for port, behind in ports]
        self._process = LineProcess([sys.executable, "-m", "tests.support.kafka_links", *pairs])
        assert self._process.next_line(_PATIENCE_S) == _DONE, _ENDED

    def cut(self, node: int) -> None:
        assert self._process.ask(f"cut {node}", _PATIENCE_S) == _DONE, _ENDED

    def join(self, node: int) -> None:
        assert self._process.ask(f"join {node}", _PATIENCE_S) == _DONE, _ENDED

    def close(self) -> None:
        self._process.end(0)


def sender_of(request: bytes) -> int | None:
    """The node that sent a request (with its length in front), by its client id."""
    (length,) = struct.unpack_from(">h", request, 12)
    found = _NUMBER.search(request[14 : 14 + length].decode(errors="replace")) if length > 0 else None
    return int(found[0]) if found else None


class _Switch:
    """The set of nodes that are cut off."""

    def __init__(self) -> None:
        self._cut: set[int] = set()
        self._changed = asyncio.Condition()

    async def obey(self, line: str) -> None:
        word, _, node = line.strip().partition(" ")
        async with self._changed:
            (self._cut.add if word == "cut" else self._cut.discard)(int(node))
            self._changed.notify_all()

    async def wait_open(self, one: int | None, other: int) -> None:
        """Wait until the link between two nodes is open."""
        if one != other and self._cut & {one, other}:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._cut & {one, other})


async def _carry(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, wait_open: Callable[[], Awaitable[None]]
) -> None:
    """Forward one direction of a connection, until either side ends it."""
    while data := await source.read(_CHUNK):
        await wait_open()
        target.write(data)
        await target.drain()


async def _forward(
    switch: _Switch, node: int, behind: int, client: asyncio.StreamReader, back: asyncio.StreamWriter
) -> None:
    writers = [back]
    try:
        first = await client.readexactly(14)
        first += await client.readexactly(max(struct.unpack_from(">h", first, 12)[0], 0))
        sender = sender_of(first)

        async def wait_open() -> None:
            await switch.wait_open(sender, node)

        await wait_open()
        answers, target = await asyncio.open_connection(HOST, behind)
        writers.append(target)
        target.write(first)
        both = [
            asyncio.create_task(_carry(client, target, wait_open)),
            asyncio.create_task(_carry(answers, back, wait_open)),
        ]
        _, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    except (OSError, asyncio.IncompleteReadError):
        pass  # a node has ended, and its connections with it
    finally:
        for writer in writers:
            writer.close()


async def _serve(links: list[tuple[int, int, int]]) -> None:
    switch, orders = _Switch(), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    for node, port, behind in links:
        await asyncio.start_server(
            lambda client, back, node=node, behind=behind: _forward(switch, node, behind, client, back), HOST, port
        )
    print(_DONE, flush=True)
    while line := await orders.readline():
        await switch.obey(line.decode())
        print(_DONE, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve([tuple(map(int, pair.split(":"))) for pair in sys.argv[1:]]))  # type: ignore[misc]
