"""Records that are not ours or break a rule.

They are copied to the discard topic once, with the reason, or refused. Other transactions are not delayed.
"""

from __future__ import annotations

import contextlib
import random
import re
import secrets
import signal
import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Producer

from tests.support import http
from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, Prepared, eventually
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port
from txbridge.worker.ingest import half_log

_Headers = list[tuple[str, bytes | None]]
_Bad = dict[str, tuple[bytes | None, _Headers]]


def _bad_halves(bridge: Bridge, topic: str) -> _Bad:
    good = bridge.half_headers(topic)
    without = {name: [header for header in good if header[0] != name] for name, _ in good}

    def but(name: str, value: bytes | None) -> _Headers:
        return [*without[name], (name, value)]

    return {
        "garbage": (b"\xff\x00garbage", []),
        "empty": (None, []),
        "large": (random.randbytes(900_000), []),
        "other version": (b"v", but("TXB_V", b"2")),
        "version twice": (b"v", [*good, ("TXB_V", b"1")]),
        "no TRAN_MSG": (b"v", without["TRAN_MSG"]),
        "TRAN_MSG no": (b"v", but("TRAN_MSG", b"false")),
        "no topic": (b"v", without["REAL_TOPIC"]),
        "topic ..": (b"v", but("REAL_TOPIC", b"..")),
        "topic null": (b"v", but("REAL_TOPIC", None)),
        "topic of the system": (b"v", but("REAL_TOPIC", b"__consumer_offsets")),
        "topic of ours": (b"v", but("REAL_TOPIC", bridge.names.end.encode())),
        "topic of another namespace": (b"v", but("REAL_TOPIC", b"other.RMQ_SYS_TRANS_OFFSET_TOPIC")),
        "check topic of another": (b"v", but("REAL_TOPIC", b"other.RMQ_SYS_TRANS_CHECK.orders")),
        "discard topic of another": (b"v", but("REAL_TOPIC", b"other.TRANS_CHECK_MAX_TIME_TOPIC")),
        "topic of an audit": (b"v", but("REAL_TOPIC", b"other.TRANS_AUDIT_VIOLATIONS_TOPIC")),
        "frames cut off": (b"\1\0\0", [*good, ("TXB_MESSAGES", b"2")]),
        "no group": (b"v", without["PGROUP"]),
        "odd group": (b"v", but("PGROUP", b"a/b")),
        "no id": (b"v", without["UNIQ_KEY"]),
        "short id": (b"v", but("UNIQ_KEY", b"ABC")),
        "id twice": (b"v", [*good, ("UNIQ_KEY", b"0" * 32)]),
        "not UTF-8": (b"v", but("PGROUP", b"\xff\xfe")),
        "reserved": (b"v", [*good, ("TXB_HALF", b"0:0")]),
        "odd partition": (b"v", [*good, ("REAL_QID", b"-1")]),
        "odd timestamp": (b"v", [*good, ("BORN_TIMESTAMP", b"now")]),
    }


def _bad_ends(bridge: Bridge, entry: str) -> _Bad:
    good = bridge.end_headers()
    return {
        "garbage": (b"\xff\x00garbage", []),
        "empty": (None, []),
        "empty with headers": (None, good),
        "nothing": (b"", good),
        "large": (random.randbytes(900_000), good),
        "other version": (entry.encode(), [("TXB_V", b"7"), *good[1:]]),
        "no group": (entry.encode(), [good[0], good[2]]),
        "odd source": (entry.encode(), [*good[:2], ("SOURCE", b"god")]),
        "1,001 entries": ("\n".join([entry] * 1_001).encode(), good),
        "one bad entry": (f"{entry}\nx,y,z".encode(), good),
        "negative": (f"-1,{entry.split(',', 1)[1]}".encode(), good),
        "above 63 bits": (f"{2**64},{entry.split(',', 1)[1]}".encode(), good),
        "odd decision": (entry[:-1].encode() + b"7", good),
        "resume with a decision": (entry.encode(), bridge.end_headers(source="resume")),
        "carriage return": (entry.encode() + b"\r\n" + entry.encode(), good),
    }


# Killed before its Kafka transaction is committed. A kill after the commit is the case of every take-over.
@pytest.mark.parametrize("fault", ["", "commit.flushed@2", pytest.param("commit.applied@2", marks=pytest.mark.long)])
def test_p8_malformed_records_are_set_aside_once_and_stop_nothing(kafka: EmbeddedKafka, fault: str) -> None:
    with Bridge(kafka.bootstrap_servers, f"malformed {fault}", partitions=1) as bridge:
        topic = bridge.create_topic("real")
        good = [bridge.prepare(topic, b"first")]
        bad = [(bridge.names.half, *one) for one in _bad_halves(bridge, topic).values()]
        bad += [(bridge.names.end, *one) for one in _bad_ends(bridge, good[0].entry(COMMIT)).values()]
        random.Random(1).shuffle(bad)
        expected: dict[bytes, tuple[bytes | None, _Headers]] = {}
        for number, (where, value, headers) in enumerate(bad):
            stored = bridge.produce(where, value=value, headers=headers, key=b"key", partition=0)
            expected[f"{where}:0:{stored.offset()}".encode()] = (value, headers)
            if number % 5 == 0:
                good.append(bridge.prepare(topic, b"good %d" % number))
                bridge.decide(good[-1], COMMIT)
        for where in (bridge.names.half, bridge.names.end):
            offset = bridge.produce_undecodable(where, b"undecodable", bridge.end_headers(), 0)
            expected[f"{where}:0:{offset}".encode()] = (b"undecodable", [])
        if fault:
            victim = bridge.worker(fault)
            assert victim.wait_dead(40) == -signal.SIGKILL
        worker = bridge.worker()
        good.append(bridge.prepare(topic, b"last"))
        bridge.decide_many([good[0], good[-1]], COMMIT)
        bridge.wait_visible(topic, [b"first", b"last"])
        eventually(lambda: len(bridge.discarded()) >= len(expected), 30, "not everything was set aside")
        # After kill -9 another worker copies nothing to the discard topic again.
        worker.kill()
        with bridge.local_owner():
            found = {record["TXB_SOURCE"]: record for record in bridge.discarded()}
            assert len(bridge.discarded()) == len(found) == len(expected)
        for source, (value, headers) in expected.items():
            record = found[source]
            assert (record["value"], record["TXB_REASON"]) == (value, b"MALFORMED"), source
            assert record["TXB_ERROR"], source
            assert record["key"] == (None if value == b"undecodable" else b"key")
            ours = {"TXB_V", "TXB_REASON", "TXB_ERROR", "TXB_SOURCE"}
            assert value != b"undecodable" or record.keys() == ours | {"key", "value"}
            assert {name: record[name] for name, _ in headers if name not in ours} == {
                name: value for name, value in headers if name not in ours
            }
        assert set(bridge.visible(topic).values()) == {1}
        assert len(bridge.visible(topic)) == len(good)
        outcomes = Counter(outcome for (_, _), found in bridge.outcomes().items() for outcome in found)
        halves = sum(source.startswith(f"{bridge.names.half}:".encode()) for source in expected)
        assert outcomes == {"commit": len(good), "discard": halves}


def test_p5_forged_and_mistaken_ends_are_refused_with_the_reason(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    worker = bridge.worker()
    prepared, other = (bridge.prepare(topic, value, partition=0) for value in (b"value", b"other"))
    stolen = prepared.entry(COMMIT).replace(prepared.transaction_id, secrets.token_hex(16).upper())
    bridge.end([stolen], 0)
    bridge.end([prepared.entry(COMMIT)], 0, group="thief")
    bridge.end([f"{2**60},{prepared.transaction_id},{COMMIT}"], 0)
    bridge.end([f"{2**63 - 1},{prepared.transaction_id},{COMMIT}"], 0)
    bridge.end([prepared.entry(UNKNOWN)], 0, source="resume")
    # Of a record with good and bad entries, the good ones are applied.
    bridge.end([f"{other.offset},{prepared.transaction_id},{ROLLBACK}", prepared.entry(ROLLBACK)], 0)
    bridge.decide(prepared, COMMIT)
    bridge.decide(other, COMMIT)
    bridge.wait_visible(topic, [b"other"])
    bridge.wait_outcome(prepared, "rollback")
    eventually(lambda: bridge.checkpoint(0)["end"] == bridge.bounds(bridge.names.end, 0)[1])
    reasons = Counter[object]()
    for event in worker.events("end_refused"):
        reasons[event["reason"]] += int(str(event["count"]))
    assert reasons == {
        "wrong_transaction_id": 2,
        "wrong_group": 1,
        "no_half_message": 2,
        "not_discarded": 1,
        "contradiction": 1,
    }
    assert prepared.transaction_id not in worker.log, "a whole transaction id is the right to decide"
    assert bridge.visible(topic) == {b"other": 1}
    assert not bridge.discarded()


def test_p2_compressed_decisions_are_applied_and_kill_no_worker(bridge: Bridge) -> None:
    """The worker must not need the compression libraries that Faust's client may lack."""
    topic = bridge.create_topic("real")
    worker = bridge.worker()
    # Some providers of Kafka do not let the brokers unpack it.
    bridge.alter_topic(bridge.names.end, compression_type="producer")
    for compression in ("gzip", "snappy", "lz4", "zstd"):
        values = [b"%s %d" % (compression.encode(), number) for number in range(50)]
        prepared = bridge.prepare_many(topic, values, partition=0)
        config = {"bootstrap.servers": bridge.bootstrap_servers, "compression.type": compression, "linger.ms": 100}
        producer = Producer(config)
        for one in prepared:
            producer.produce(bridge.names.end, one.entry(COMMIT).encode(), headers=bridge.end_headers(), partition=0)
        producer.flush(120)
        bridge.wait_visible(topic, values)
        # The worker goes on afterwards, and stays in the group.
        after = b"after " + compression.encode()
        bridge.deliver(topic, after)
        assert worker.returncode is None
    assert set(bridge.visible(topic).values()) == {1}


def test_p9_a_flood_of_garbage_is_set_aside_in_bounded_memory(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_log, "_MALFORMED_BYTES", 1_000_000)
    topic = bridge.create_topic("real")
    garbage = [random.randbytes(100_000) for _ in range(100)]
    bridge.produce_together(bridge.names.half, [(value, []) for value in garbage], partition=0)
    prepared = bridge.prepare(topic, b"value", partition=0)
    bridge.decide(prepared, COMMIT)
    with bridge.local_owner():
        bridge.wait_visible(topic, [b"value"], 10)
        eventually(lambda: len(bridge.discarded()) >= 100)
        assert Counter(record["value"] for record in bridge.discarded()) == Counter(garbage)


def test_p8_what_is_too_large_for_the_discard_topic_is_set_aside_without_its_body(bridge: Bridge) -> None:
    bridge.alter_topic(bridge.names.discard, max_message_bytes="20000")
    topic = bridge.create_topic("real")
    with bridge.member() as member, bridge.local_owner(transaction_timeout=200, transaction_check_interval=300):
        values = {b"small %d" % number for number in range(5)} | {random.randbytes(40_000) for _ in range(2)}
        prepared = {value: bridge.prepare(topic, value, partition=0) for value in values}
        bridge.produce_together(
            bridge.names.half, [(b"bad", []), (random.randbytes(40_000), []), (b"worse", [])], partition=0
        )
        bridge.produce_together(bridge.names.end, [(random.randbytes(40_000), []), (b"odd", [])], partition=0)
        eventually(lambda: len(bridge.discarded()) >= len(values) + 5, 40)
        bridge.deliver(topic, b"goes on")
        records = bridge.discarded()
        assert len(records) == len(values) + 5
        by_id = {record["UNIQ_KEY"]: record for record in records if record["TXB_REASON"] == b"MAX_CHECKS"}
        for value, one in prepared.items():
            record = by_id[one.transaction_id.encode()]
            assert record["value"] == (value if len(value) < 100 else None)
            assert len(member.checks(one)) == 3
        malformed = Counter(record["value"] for record in records if record["TXB_REASON"] == b"MALFORMED")
        assert malformed == {b"bad": 1, b"worse": 1, b"odd": 1, None: 2}


def test_p8_an_end_that_names_what_is_not_stored_stops_nothing_while_messages_come(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    bridge.worker()
    applied = bridge.bounds(bridge.names.op, 0)[1]
    over = threading.Event()
    producer = Producer({"bootstrap.servers": bridge.bootstrap_servers, "linger.ms": 0})

    def prepare_more() -> None:
        while not over.wait(0.001):
            headers = bridge.half_headers(topic)
            producer.produce(bridge.names.half, value=b"undecided", partition=0, headers=headers)
            producer.poll(0)

    others = threading.Thread(target=prepare_more)
    others.start()
    try:
        good = bridge.prepare(topic, b"good", partition=0)
        bridge.end([f"{10**12},{secrets.token_hex(16).upper()},{COMMIT}"], 0)
        bridge.decide(good, COMMIT)
        # Only the log's end is read, because reading the topic would take time from the other thread.
        eventually(lambda: bridge.bounds(bridge.names.op, 0)[1] > applied, 30)
    finally:
        over.set()
        others.join()
        producer.flush()
    assert bridge.visible(topic) == {b"good": 1}


@pytest.mark.parametrize("by_faust", [False, True], ids=["read by the owner", "told by Faust"])
def test_p1_a_decision_in_an_aborted_kafka_transaction_commits_nothing(bridge: Bridge, by_faust: bool) -> None:
    topic = bridge.create_topic("real")
    spring = bridge.stranger()

    def end(prepared: Prepared, decision: int) -> None:
        headers = [("TXB_V", b"1"), ("PGROUP", b"group"), ("SOURCE", b"client")]
        spring.produce(bridge.names.end, prepared.entry(decision).encode(), partition=0, headers=headers)

    with contextlib.ExitStack() as stack:
        if by_faust:
            worker = bridge.worker(transaction_timeout=60_000)
        else:
            stack.enter_context(bridge.local_owner(transaction_timeout=60_000))
        first = bridge.prepare(topic, b"first", partition=0)
        bridge.decide(first, COMMIT)
        bridge.wait_visible(topic, [b"first"])
        aborted = bridge.prepare(topic, b"aborted", partition=0)
        committed = bridge.prepare(topic, b"committed", partition=0)
        last = bridge.prepare(topic, b"last", partition=0)
        spring.begin_transaction()
        end(aborted, COMMIT)
        spring.flush()
        time.sleep(1.5)
        spring.abort_transaction()
        spring.begin_transaction()
        end(committed, COMMIT)
        spring.commit_transaction()
        bridge.decide(last, COMMIT)
        bridge.wait_visible(topic, [b"committed", b"last"])
        if by_faust:
            worker.wait_logged("transactional_decisions")
        # No decision was applied, so a rollback counts.
        bridge.decide(aborted, ROLLBACK)
        bridge.wait_outcome(aborted, "rollback")
    assert bridge.visible(topic) == {b"first": 1, b"committed": 1, b"last": 1}


def test_p8_a_half_message_in_an_aborted_kafka_transaction_is_one_and_the_log_and_the_metrics_say_so(
    bridge: Bridge,
) -> None:
    topic, port = bridge.create_topic("real"), free_port()
    worker = bridge.worker(metrics_port=port, transaction_timeout=60_000)

    def gaps(cause: str) -> float:
        text = http.ask(f"http://127.0.0.1:{port}/metrics", 10).text
        [value] = re.findall(rf'^txbridge_errors_total{{cause="{cause}"}} (\S+)$', text, re.MULTILINE)
        return float(value)

    first = bridge.prepare(topic, b"first", partition=0)
    bridge.decide(first, COMMIT)
    bridge.wait_visible(topic, [b"first"])
    assert gaps("transactional_half_messages") == gaps("transactional_decisions") == 0
    spring = bridge.stranger()
    spring.begin_transaction()
    transaction_id = secrets.token_hex(16).upper()
    offsets: list[int] = []
    spring.produce(
        bridge.names.half,
        b"aborted",
        partition=0,
        headers=bridge.half_headers(topic, "group", transaction_id),
        on_delivery=lambda _, message: offsets.append(message.offset()),
    )
    spring.flush()
    spring.abort_transaction()
    bridge.decide(Prepared(0, offsets[0], transaction_id), COMMIT)
    # The next half message comes after the marker.
    last = bridge.prepare(topic, b"last", partition=0)
    bridge.decide(last, COMMIT)
    bridge.wait_visible(topic, [b"first", b"aborted", b"last"])
    eventually(lambda: gaps("transactional_half_messages") == 1)
    assert gaps("transactional_decisions") == 0
    [told] = worker.events("transactional_half_messages")
    assert (told["topic"], told["partition"], told["level"]) == (bridge.names.half, 0, "warning")
