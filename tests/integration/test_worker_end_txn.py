"""A connection that breaks exactly at a commit: each message is delivered once, however much the broker got."""

from __future__ import annotations

import pytest

from tests.support.harness import COMMIT, ROLLBACK, Bridge
from tests.support.kafka_proxy import Cut, EndTxnProxy


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())
def test_p3_p10_exactly_once_when_the_connection_breaks_at_end_txn(
    proxy: EndTxnProxy, proxied_servers: str, cut: Cut
) -> None:
    with Bridge(proxied_servers, f"end txn {cut.name}", partitions=1) as bridge:
        topic = bridge.create_topic("real")
        # Shorter than the default, because the silent cases wait for this time-out.
        worker = bridge.worker(commit_timeout=4_000)
        before = bridge.prepare(topic, b"before")
        bridge.decide(before, COMMIT)
        bridge.wait_visible(topic, [b"before"])

        values = [b"%d" % number for number in range(20)]
        prepared = bridge.prepare_many(topic, values)
        gone = bridge.prepare(topic, b"rolled back")
        met = len(proxy.met)
        proxy.arm(cut)
        bridge.decide_many(prepared, COMMIT)
        bridge.decide(gone, ROLLBACK)
        proxy.wait_met(met + 1)
        if cut is Cut.LATE:
            # The worker has given up that connection and goes on. The old request arrives during that.
            worker.wait_logged('"outcome_learnt"')
            bridge.decide_many(bridge.prepare_many(topic, [b"next"]), COMMIT)
            proxy.deliver_late()
            bridge.wait_visible(topic, [b"next"], 60)
        bridge.wait_visible(topic, values, 60)

        after = [b"after %d" % number for number in range(20)]
        bridge.decide_many(bridge.prepare_many(topic, after), COMMIT)
        bridge.wait_visible(topic, after, 60)
        extra = [b"next"] if cut is Cut.LATE else []
        assert bridge.visible(topic) == dict.fromkeys([b"before", *values, *after, *extra], 1)
        outcomes = bridge.outcomes()
        assert all(outcomes[one.partition, one.offset] == ["commit"] for one in [before, *prepared])
        assert outcomes[gone.partition, gone.offset] == ["rollback"]
        # The worker noticed the unknown outcome, read the topics, and went on in the same process.
        assert worker.events("outcome_learnt") or worker.events("outcome_unknown")
        assert worker.returncode is None
