"""A program that ends without close(): it says what was on its way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.harness import Bridge

_PIPELINED = """
class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN

producer = TransactionProducer("orders", Listener(), settings, namespace=namespace)
producer.start()
for _ in range(500):
    producer.submit_message_in_transaction(Message(topic, b"v" * 10_000))
"""
_ASYNCIO = """
class Listener(AsyncTransactionListener):
    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN

async def main():
    global producer, sends
    producer = AsyncTransactionProducer("orders", Listener(), settings, namespace=namespace)
    await producer.start()
    message = Message(topic, b"v" * 10_000)
    sends = [asyncio.create_task(producer.send_message_in_transaction(message)) for _ in range(500)]
    await asyncio.sleep(0)
    END

# Not asyncio.run, which cancels what is running, and so tells the producer.
asyncio.new_event_loop().run_until_complete(main())
"""


def _stderr(bridge: Bridge, program: str) -> str:
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    given = f"settings, namespace, topic = {settings!r}, {bridge.namespace!r}, {bridge.create_topic('real')!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"import asyncio\nfrom txbridge import *\n{given}{program}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize("program", [_PIPELINED, _ASYNCIO.replace("END", "")], ids=["pipelined", "asyncio"])
def test_a_program_that_ends_without_close_says_what_was_on_its_way(bridge: Bridge, program: str) -> None:
    text = _stderr(bridge, program)
    [line] = [line for line in text.splitlines() if line.startswith("not_closed ")]
    fields = dict(field.split("=", 1) for field in line.split(" next=")[0].split()[1:])
    assert 0 < int(fields["transactions_running"]) + int(fields["ends_not_acknowledged"]) <= 500
    assert "call close() before the program ends" in line


@pytest.mark.parametrize(
    "program",
    [_PIPELINED + "producer.close()", _ASYNCIO.replace("END", "await asyncio.gather(*sends); await producer.close()")],
    ids=["pipelined", "asyncio"],
)
def test_after_close_there_is_nothing_to_say(bridge: Bridge, program: str) -> None:
    assert _stderr(bridge, program) == ""
