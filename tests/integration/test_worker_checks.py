"""Checks and discards as a producer group sees them: P6 (when and how many), P7 (discard and resume), P8, P9."""

from __future__ import annotations

import itertools
import random
import time

from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, Prepared, eventually


def _entry(bridge: Bridge, prepared: Prepared) -> dict[str, object]:
    """Parked entry of a half message, or None."""
    return bridge.offset_records(prepared.partition).get(
        bridge.names.parked_key(prepared.partition, prepared.offset), {}
    )


def test_p6_a_producer_that_died_before_its_end_is_asked_and_answers(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    bridge.worker(transaction_check_interval=60_000)
    with bridge.member() as member:
        prepared = bridge.prepare(topic, b"value", key=b"key", headers=[("trace", b"1"), ("trace", None)])
        never = bridge.prepare(topic, b"never")
        eventually(lambda: member.checks(prepared) and member.checks(never))
        [request], headers = member.requests(prepared), member.checks(prepared)[0]
        assert (request.key(), request.value()) == (b"key", b"value")
        assert ("trace", None) in (request.headers() or [])
        assert headers["TRANSACTION_CHECK_TIMES"] == b"1"
        assert headers["UNIQ_KEY"] == prepared.transaction_id.encode()
        half = next(one for one in bridge.read(bridge.names.half) if one.value() == b"value")
        assert request.timestamp()[1] - half.timestamp()[1] >= 1_000, "before its immunity time was over"
        bridge.end([prepared.entry(COMMIT, 1)], prepared.partition, source="check")
        bridge.end([never.entry(ROLLBACK, 1)], never.partition, source="check")
        bridge.wait_visible(topic, [b"value"])
        bridge.wait_outcome(never, "rollback")
        assert len(member.checks(prepared)) == len(member.checks(never)) == 1
    assert bridge.visible(topic) == {b"value": 1}
    assert bridge.outcomes() == {
        (prepared.partition, prepared.offset): ["commit"],
        (never.partition, never.offset): ["rollback"],
    }


def test_p6_a_group_with_nobody_alive_burns_no_check(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    worker = bridge.worker(transaction_check_interval=500, transaction_check_max=2, park_after=500)
    dead = bridge.prepare_many(topic, [b"dead %d" % number for number in range(1_000)], group="dead")
    with bridge.member("alive") as member:
        # A thousand checks of a dead group do not delay the checks of a live one.
        alive = bridge.prepare(topic, b"alive", group="alive")
        eventually(lambda: member.checks(alive))
    eventually(lambda: all(bridge.parked_states(partition) for partition in (0, 1)))
    before, since = worker.cpu_seconds, time.monotonic()
    eventually(lambda: time.monotonic() - since > 3)
    load = (worker.cpu_seconds - before) / (time.monotonic() - since)
    print(f"{load:.0%} of a core while 1,000 checks of a dead group are due")
    assert load < 0.3, "it spins"
    assert _entry(bridge, dead[0])["checks"] == 0
    assert bridge.names.check("dead") not in bridge.admin.list_topics(timeout=120).topics
    # With a live member the checks begin with number 1, and the discard comes after the last one.
    with bridge.member("dead") as member:
        eventually(lambda: all(member.checks(one) for one in dead), 40)
        assert {member.checks(one)[0]["TRANSACTION_CHECK_TIMES"] for one in dead} == {b"1"}
        bridge.decide_many(dead[1:], ROLLBACK, group="dead")
        eventually(lambda: {record["value"] for record in bridge.discarded()} >= {b"dead 0"})
        assert [check["TRANSACTION_CHECK_TIMES"] for check in member.checks(dead[0])] == [b"1", b"2"]


def test_p7_one_discard_a_full_interval_after_the_last_check_and_a_resume(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    worker = bridge.worker(transaction_timeout=300, transaction_check_interval=1_000, transaction_check_max=2)
    with bridge.member() as member:
        prepared = bridge.prepare(topic, b"value", key=b"key", headers=[("trace", b"1")])
        eventually(bridge.discarded)
        [record] = bridge.discarded()
        assert (record["key"], record["value"], record["trace"]) == (b"key", b"value", b"1")
        assert (record["TXB_REASON"], record["TRANSACTION_CHECK_TIMES"]) == (b"MAX_CHECKS", b"2")
        requests = member.requests(prepared)
        assert [dict(one.headers() or ())["TRANSACTION_CHECK_TIMES"] for one in requests] == [b"1", b"2"]
        times = [one.timestamp()[1] for one in [*requests, *bridge.read(bridge.names.discard)]]
        # The interval begins with the Kafka transaction of the check, shortly before the append.
        assert all(later - earlier >= 500 for earlier, later in itertools.pairwise(times)), times
        # A decision is too late now. A resume starts the checks again, and a second resume has no effect.
        bridge.decide(prepared, COMMIT)
        worker.wait_logged('"reason": "late"')
        resume = [prepared.entry(UNKNOWN)]
        bridge.end(resume, prepared.partition, source="resume")
        eventually(lambda: len(member.requests(prepared)) == 3)
        assert member.checks(prepared)[2]["TRANSACTION_CHECK_TIMES"] == b"1"
        bridge.end(resume, prepared.partition, source="resume")
        worker.wait_logged('"reason": "not_discarded"')
        bridge.end([prepared.entry(COMMIT, 1)], prepared.partition, source="check")
        bridge.wait_visible(topic, [b"value"])
    assert len(bridge.discarded()) == 1
    assert bridge.visible(topic) == {b"value": 1}


def test_p6_no_check_once_a_decision_is_stored_though_nobody_was_there_to_apply_it(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    values = [b"%d" % number for number in range(50)]
    with bridge.member() as member:
        prepared = bridge.prepare_many(topic, values, partition=0)
        asked = bridge.prepare(topic, b"asked", partition=0)
        born = {one.offset(): one.timestamp()[1] for one in bridge.read(bridge.names.half)}
        bridge.decide_many(prepared, COMMIT, batch=1)
        eventually(lambda: time.time() * 1_000 > born[asked.offset] + 300)
        with bridge.local_owner(transaction_timeout=200):
            bridge.wait_visible(topic, values)
            # Checks of the decided messages would have come before this one.
            eventually(lambda: member.checks(asked))
        assert not any(member.checks(one) for one in prepared)


def test_p6_no_check_overtakes_a_decision(bridge: Bridge) -> None:
    """Decisions come just when the checks are due. Each check has an END position at or below its decision's offset."""
    options = {"transaction_timeout": 200, "transaction_check_interval": 200, "transaction_check_max": 100}
    topic = bridge.create_topic("real")
    decided: dict[Prepared, int] = {}
    with bridge.member() as member, bridge.local_owner(**options):
        for _ in range(4):
            prepared = bridge.prepare_many(topic, [b"x"] * 100, partition=0)
            for one in random.sample(prepared, len(prepared)):
                time.sleep(0.007)
                decided[one] = bridge.decide(one, random.choice([COMMIT, ROLLBACK]))
        eventually(lambda: len(bridge.outcomes()) == len(decided))
    checks = {one: member.checks(one) for one in decided if member.checks(one)}
    print(f"{len(checks)} of {len(decided)} were asked about before they were decided")
    assert checks, "no race took place"
    for one, requests in checks.items():
        assert all(int(request["TXB_END"]) <= decided[one] for request in requests)


def test_p6_a_steady_stream_of_decisions_does_not_keep_checks_waiting(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.member() as member, bridge.local_owner(transaction_timeout=300):
        other = bridge.prepare(topic, b"other", partition=0)
        asked = bridge.prepare(topic, b"asked", partition=0)
        # END grows all the time, so each look at it finds records that are not applied.
        eventually(lambda: [bridge.decide(other, UNKNOWN) for _ in range(50)] and member.checks(asked), 20)


def test_p8_a_check_that_its_topic_does_not_take_delays_no_other(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.member(config={"max.message.bytes": "20000"}) as member, bridge.local_owner():
        small = bridge.prepare_many(topic, [b"small %d" % number for number in range(30)], partition=0)
        large = bridge.prepare(topic, random.randbytes(40_000), partition=0)
        more = bridge.prepare_many(topic, [b"more %d" % number for number in range(30)], partition=0)
        eventually(lambda: all(member.checks(one) for one in [*small, *more]), 40)
        bridge.decide(small[0], COMMIT)
        bridge.wait_visible(topic, [b"small 0"], 5)
        assert not member.checks(large)
        # The message is not lost: a decision from elsewhere finishes it.
        bridge.decide(large, COMMIT)
        bridge.wait_outcome(large, "commit")


def test_p8_a_check_topic_whose_limit_was_raised_is_noticed(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.member(config={"max.message.bytes": "20000"}) as member, bridge.local_owner(park_after=500):
        large = bridge.prepare(topic, random.randbytes(40_000), partition=0)
        eventually(lambda: "error" in _entry(bridge, large))
        bridge.alter_topic(bridge.names.check("group"), max_message_bytes="100000")
        eventually(lambda: member.checks(large), 20)
        assert "error" not in _entry(bridge, large)
        bridge.end([large.entry(ROLLBACK, 1)], 0, source="check")
        bridge.wait_outcome(large, "rollback")
