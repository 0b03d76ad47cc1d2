"""Links between the nodes of a cluster, which can be cut for each node. Started as a module by `Links`.

    python -m txbridge.embedded.links CONTROL_PORT NODE:PORT:BEHIND ...

The other nodes connect to node NODE at PORT, which forwards to port BEHIND of the loopback address. Each line on a
connection to CONTROL_PORT is an order: "cut NODE" or "join NODE", answered with "done".

A node that is cut off receives nothing from the others, and they receive nothing from it. As in a network that drops
packets, connections stay open, and data arrive when the node joins again. Clients do not use these links. The first
request of a connection identifies its sender: Kafka's brokers put their number into the client id.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from txbridge.deadline import Deadline
from txbridge.embedded.diagnose import KafkaStartError, describe_failure, read_tail
from txbridge.embedded.ports import HOST, free_port
from txbridge.embedded.process import ChildProcess
from txbridge.errors import EnvironmentProblemError

# Bytes that are read at once: a fetch of a follower answers with up to 1 MB.
_CHUNK = 256 * 1024
# It starts in 0.1 s; the rest is for an overloaded machine.
_START_S = 60.0
_POLL_S = 0.02
# An order takes no time on an idle machine.
_ORDER_S = 30.0
_DONE = "done\n"

#: The number of a node in a client id, as in "raft-client-1", "broker-2-fetcher-0" and "3".
_NUMBER = re.compile(r"\d+")


def sender(request: bytes) -> int | None:
    """The node that sent a request (with its length in front), by its client id."""
    (length,) = struct.unpack_from(">h", request, 12)
    found = _NUMBER.search(request[14 : 14 + length].decode(errors="replace")) if length > 0 else None
    return int(found[0]) if found else None


class Switch:
    """The set of nodes that are cut off."""

    def __init__(self) -> None:
        self._cut: set[int] = set()
        self._changed = asyncio.Condition()

    async def order(self, line: str) -> None:
        word, _, node = line.strip().partition(" ")
        async with self._changed:
            (self._cut.add if word == "cut" else self._cut.discard)(int(node))
            self._changed.notify_all()

    def _is_open(self, one: int | None, other: int) -> bool:
        return one == other or not self._cut & {one, other}

    async def passage(self, one: int | None, other: int) -> None:
        """Wait until the link between two nodes is open."""
        if not self._is_open(one, other):
            async with self._changed:
                await self._changed.wait_for(lambda: self._is_open(one, other))


async def _carry(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, passage: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Forward one direction of a connection, until either side ends it."""
    while data := await source.read(_CHUNK):
        await passage()
        target.write(data)
        await target.drain()


async def _connection(
    switch: Switch, node: int, behind: int, client: asyncio.StreamReader, back: asyncio.StreamWriter
) -> None:
    writers = [back]
    try:
        first = await client.readexactly(14)
        first += await client.readexactly(max(struct.unpack_from(">h", first, 12)[0], 0))
        who = sender(first)
        await switch.passage(who, node)
        answers, target = await asyncio.open_connection(HOST, behind)
        writers.append(target)
        target.write(first)

        async def passage() -> None:
            await switch.passage(who, node)

        both = [
            asyncio.create_task(_carry(client, target, passage)),
            asyncio.create_task(_carry(answers, back, passage)),
        ]
        _, pending = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    except (OSError, asyncio.IncompleteReadError):
        pass  # a node is gone, and so is the connection
    finally:
        for writer in writers:
            writer.close()


async def _orders(switch: Switch, lines: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
    while line := await lines.readline():
        await switch.order(line.decode())
        answers.write(_DONE.encode())
        await answers.drain()
    answers.close()


async def _serve(control_port: int, links: list[tuple[int, int, int]]) -> None:
    switch = Switch()

    def answer(node: int, behind: int) -> Callable[..., Coroutine[Any, Any, None]]:
        return lambda client, back: _connection(switch, node, behind, client, back)

    for node, port, behind in links:
        await asyncio.start_server(answer(node, behind), HOST, port)
    # Started last: once the control port accepts connections, all links are open.
    control = await asyncio.start_server(lambda lines, answers: _orders(switch, lines, answers), HOST, control_port)
    await control.serve_forever()


class Links:
    """The process that forwards the connections between nodes."""

    def __init__(self, links: Mapping[int, list[tuple[int, int]]], folder: Path, env: Mapping[str, str]) -> None:
        """Start the process. `links` has pairs of ports by node: the one to connect to, and the one behind it."""
        self._control_port = free_port()
        pairs = [f"{node}:{port}:{behind}" for node, ports in links.items() for port, behind in ports]
        command = [sys.executable, "-m", "txbridge.embedded.links", str(self._control_port), *pairs]
        self._log = folder / "links.log"
        # The log has the output of earlier starts, too.
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._child = ChildProcess.launch(command, output=self._log, env=env)

    def wait(self) -> None:
        """Wait until the links are open. Raises KafkaStartError when the process ends or does not answer in time."""
        deadline = Deadline(_START_S)
        while True:
            try:
                socket.create_connection((HOST, self._control_port), _ORDER_S).close()
            except OSError:
                code = self._child.poll()
                if code is not None or deadline.is_over:
                    raise self._start_error(code) from None
                time.sleep(_POLL_S)
            else:
                return

    def cut(self, node: int) -> None:
        self._order(f"cut {node}")

    def join(self, node: int) -> None:
        self._order(f"join {node}")

    def _order(self, line: str) -> None:
        try:
            with socket.create_connection((HOST, self._control_port), _ORDER_S) as connection:
                connection.sendall(f"{line}\n".encode())
                with connection.makefile() as answers:
                    answer = answers.readline()
        except OSError as error:
            answer = str(error)
        if answer != _DONE:
            raise EnvironmentProblemError(
                f"the process that forwards the connections between the nodes did not confirm {line!r} "
                f"({answer.strip() or 'it has ended'}): restart() of the whole Kafka starts it anew; its output is in "
                f"{self._log}"
            )

    def _start_error(self, code: int | None) -> KafkaStartError:
        what = "did not answer in time" if code is None else f"ended with exit code {code} while it was starting"
        output = read_tail(self._log, self._log_start)
        message = describe_failure(
            f"The process that forwards the connections between the nodes {what}", output, self._log
        )
        return KafkaStartError(message, code, output)

    def close(self) -> None:
        self._child.kill()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            _serve(
                int(sys.argv[1]),
                [
                    (int(node), int(port), int(behind))
                    for node, port, behind in (one.split(":") for one in sys.argv[2:])
                ],
            )
        )
