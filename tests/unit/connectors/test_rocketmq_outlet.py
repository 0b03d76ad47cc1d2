"""The end of the door's senders to Kafka while Kafka is away."""

from __future__ import annotations

import asyncio

from txbridge_rocketmq.decision_outlet import DecisionOutlet
from txbridge_rocketmq.outlet import Outlet

from txbridge.client.kafka.connection import KafkaConnection
from txbridge.core.decision_record import Decision, DecisionEntry, Source

_NOWHERE = "127.0.0.1:1"


async def test_at_the_end_all_decisions_are_given_up_also_those_that_wait_for_another() -> None:
    outlet = Outlet({"bootstrap.servers": _NOWHERE}, KafkaConnection(_NOWHERE), "ENDs")
    await asyncio.to_thread(outlet.start, asyncio.get_running_loop(), "END")
    decisions = DecisionOutlet(outlet, "END", "door")
    answers = []
    for number in range(3):
        entry = DecisionEntry(number, "0" * 32, Decision.COMMIT)
        answers.append(decisions.submit_decision("group", 0, Source.CLIENT, entry))
        # The first one leaves, and the others wait for it.
        await asyncio.sleep(0.01)
    await asyncio.to_thread(outlet.close)
    async with asyncio.timeout(120):
        reasons = await asyncio.gather(*answers)
    assert all("the producer was closed meanwhile" in str(reason) for reason in reasons)
    assert decisions.unsettled == 0
