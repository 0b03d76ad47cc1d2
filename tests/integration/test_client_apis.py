"""Tests of a single API of the client on a real Kafka: many transactions in flight, and their end in time."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.integration.test_client import check_record, ends, half_of
from tests.support.harness import eventually
from tests.support.listeners import COMMIT, UNKNOWN, Answers
from tests.support.own_threads import names_of_ours
from txbridge import AsyncTransactionListener, AsyncTransactionProducer, Message, TransactionProducer


class Coroutines(AsyncTransactionListener):
    """Commits even numbers, and leaves the others to a check."""

    async def execute_local_transaction(self, message, arg):
        await asyncio.sleep(0)
        return UNKNOWN if arg % 2 else COMMIT

    async def check_local_transaction(self, message):
        await asyncio.sleep(0)
        return COMMIT


def settings(bridge):
    return {"bootstrap.servers": bridge.bootstrap_servers}


def test_pipelined_from_one_thread_in_order(bridge):
    listener = Answers()
    with TransactionProducer("orders", listener, settings(bridge), namespace=bridge.namespace) as producer:
        futures = [
            producer.submit_message_in_transaction(Message("t", b"v", b"%d" % (number % 7)), number)
            for number in range(3_000)
        ]
        assert producer.flush() == 0
        results = [future.result(0) for future in futures]
        assert all(result.end.done() for result in results)
    found = ends(bridge)
    assert Counter(entry[2] for entry in found) == Counter(result.transaction_id for result in results)
    assert len(bridge.read(bridge.names.end)) < 1_000
    # One thread runs the local transactions, so those of a key run in the order of the calls. Their ENDs have the same
    # order.
    for key in range(7):
        mine = [arg for _, arg in listener.executed if arg % 7 == key]
        assert mine == sorted(mine)
    for partition in (0, 1):
        offsets = [entry[1] for entry in found if entry[0] == partition]
        assert offsets == sorted(offsets)


def test_a_thousand_sends_on_one_loop_and_their_checks(bridge):
    async def main():
        async with AsyncTransactionProducer(
            "orders", Coroutines(), settings(bridge), namespace=bridge.namespace, check_concurrency=8
        ) as producer:
            sends = [producer.send_message_in_transaction(Message("t", b"v"), number) for number in range(1_000)]
            results = await asyncio.gather(*sends)
            await asyncio.gather(*[result.wait(120) for result in results])
            loop = asyncio.get_running_loop()
            asked = [result for number, result in enumerate(results) if number % 2][:20]
            for result in asked:
                half = await loop.run_in_executor(None, half_of, bridge, result.transaction_id)
                check_record(bridge, half)
            await loop.run_in_executor(None, eventually, lambda: len(ends(bridge, "check")) == 20)
            return results

    results = asyncio.run(main())
    by_client = {entry[2]: entry[3] for entry in ends(bridge, "client")}
    assert [by_client[result.transaction_id] for result in results] == [8, 0] * 500
    assert {entry[3] for entry in ends(bridge, "check")} == {8}
    eventually(lambda: not names_of_ours())
