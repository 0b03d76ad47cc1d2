"""The audit of what a worker does with messages of one transaction that have different times of delivery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import dataset  # type: ignore[import-untyped]
from txbridge_audit import AuditReport, run_audit
from txbridge_audit.audit import AuditEngine

from tests.integration.test_delays import HOUR, Clock, now
from tests.support.harness import Bridge, eventually
from tests.support.listeners import Commits
from txbridge import Message, TransactionProducer
from txbridge.operations import Action, resolve
from txbridge.operations.model import Result


def audited(bridge: Bridge, **how: object) -> AuditReport:
    return run_audit(bridge.bootstrap_servers, namespace=bridge.namespace, engine=AuditEngine.LOCAL, **how)  # type: ignore[arg-type]


def rows_of(ledger: Path) -> list[dict[str, Any]]:
    """The current row of each transaction, by half offset."""
    rows = dataset.dataset(ledger, partitioning="hive").to_table().to_pylist()
    last = {(row["partition"], row["half"]): row for row in sorted(rows, key=lambda row: row["step"])}
    return sorted(last.values(), key=lambda row: row["prepared_at"])


def test_each_message_is_judged_by_its_own_time(bridge: Bridge, tmp_path: Path) -> None:
    """One transaction is delivered in two steps. The rest of another one is cancelled."""
    orders, reminders = bridge.create_topic("orders"), bridge.create_topic("reminders")
    due, ledger = now() + 6_000, tmp_path / "ledger"
    kept = [Message(orders, b"1"), Message(reminders, b"2", deliver_at=due), Message(orders, b"3", deliver_at=due)]
    cancelled = [Message(orders, b"4"), Message(reminders, b"5", deliver_at=due + HOUR)]
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with bridge.local_owner(), bridge.local_owner(1):
        with TransactionProducer("group", Commits(), settings, namespace=bridge.namespace) as producer:
            for messages in (kept, cancelled):
                sent = producer.send_message_in_transaction(messages)
                sent.wait(60)
        bridge.wait_visible(orders, [b"1", b"4"])
        first = audited(bridge, ledger_path=str(ledger), continued=True)
        assert (first.clean, first.findings.total, first.pending_states["scheduled"]) == (True, 0, 2)
        assert now() < due, "too slow to see the first step alone"
        assert [(row["messages"], row["next_at"].timestamp() * 1000) for row in rows_of(ledger)] == [
            (3, due),
            (2, due + HOUR),
        ]
        where = f"{sent.half_partition}:{sent.half_offset}"
        done = resolve(bridge.connection(), where, Action.ABANDON, reason="paid", operator="me")
        assert done.result is Result.ABANDONED
        bridge.wait_visible(orders, [b"3"])
        eventually(lambda: not bridge.parked_states(0) and not bridge.parked_states(1))
    continued = audited(bridge, ledger_path=str(ledger), continued=True)
    whole = audited(bridge)
    for report in (continued, whole):
        assert (report.clean, report.delivered, report.abandoned, report.transactions) == (True, 1, 1, 2)
        assert dict(report.findings.by_kind) == {"BY_HAND": 1}
    assert [(row["fate"], len(row["delivered"]), row["next_at"]) for row in rows_of(ledger)] == [
        ("delivered", 3, None),
        ("abandoned", 1, None),
    ]


def test_a_worker_whose_clock_is_wrong_is_early_with_each_message(bridge: Bridge) -> None:
    orders, clock, due = bridge.create_topic("orders", partitions=1), Clock(), now() + HOUR
    messages = [
        Message(orders, b"1", b"k"),
        Message(orders, b"2", b"k", deliver_at=due),
        Message(orders, b"3", b"k", deliver_at=due + 3 * HOUR),
    ]
    with bridge.local_owner(outside=clock), bridge.local_owner(1, outside=clock):
        settings = {"bootstrap.servers": bridge.bootstrap_servers}
        with TransactionProducer("group", Commits(), settings, namespace=bridge.namespace) as producer:
            producer.send_message_in_transaction(messages).wait(60)
        bridge.wait_visible(orders, [b"1"])
        assert audited(bridge).clean
        clock.ahead = 2 * HOUR
        bridge.wait_visible(orders, [b"1", b"2"])
        report = audited(bridge)
    assert (report.pending_states["scheduled"], dict(report.findings.by_kind)) == (1, {})
    assert [entry.kind for entry in report.violations.listed] == ["EARLY"]
