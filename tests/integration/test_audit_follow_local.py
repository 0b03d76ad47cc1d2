"""Continued audits and following by the local engine: the report after any step is that of a full audit."""

from __future__ import annotations

import dataclasses
import json
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from pyarrow import dataset  # type: ignore[import-untyped]
from txbridge_audit import audit
from txbridge_audit.audit import AuditEngine, continue_once, follow, run_audit
from txbridge_audit.cluster import facts, kafka_admin
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.local_rows import local_audit
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.engines.violations_topic import Alarms
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.judge.facts import AuditLimits, AuditSelection
from txbridge_audit.judge.facts import TopicPartition as Place
from txbridge_audit.report.entries import Entry
from txbridge_audit.report.model import AuditReport, AuditStep

from tests.support.audit_cases import CASES, TAIL
from tests.support.audit_log import VIOLATIONS, KafkaLog, values_in
from tests.support.audit_terms import COMMIT, FORWARDED, ORDERS, PASSED, PLAIN, Half
from tests.support.harness import eventually
from tests.support.module_fixtures import module_kafka
from txbridge.embedded import EmbeddedKafka

#: Fields of a report that differ from audit to audit.
OF_ONE_RUN = {
    *("started_at", "read_at", "seconds", "cuts", "topic_ids", "continued"),
    *("cluster_id", "bootstrap_servers", "version", "engine"),
}


kafka = module_kafka()


def source_of(log: KafkaLog) -> AuditedTopics:
    settings = kafka_settings(log.servers)
    cluster = AuditedCluster(settings)
    return AuditedTopics(cluster, settings, log.names, facts.internal_topics(cluster, log.names), lambda _: None)


def plan_of(log: KafkaLog) -> Plan:
    topics = frozenset([log.real(FORWARDED)])
    return Plan(int(time.time() * 1000), AuditLimits(), AuditSelection(), topics, settle_timeout=30)


def in_full(log: KafkaLog) -> AuditReport:
    return run_audit(
        log.servers, namespace=log.names.namespace, engine=AuditEngine.LOCAL, real_topics=[log.real(FORWARDED)]
    )


def told(report: AuditReport) -> dict[str, object]:
    return {name: value for name, value in report.to_dict().items() if name not in OF_ONE_RUN}


class KilledError(Exception):
    """Stands for kill -9."""


def test_any_steps_say_what_a_full_audit_says(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Cases are planted in portions. After some steps the process ends, before or after its step counted."""
    log = KafkaLog(kafka.bootstrap_servers)
    source, raised = source_of(log), Counter[str]()
    state = StateStore(tmp_path)
    steps = LocalSteps(source, state)

    def killed(_: int, __: Sequence[Entry]) -> Mapping[Place, int]:
        raise KilledError

    def step() -> AuditReport:
        made = steps.make_step(plan_of(log))
        raised.update(alarm.id for alarm in made.alarms)
        return made.report

    names = list(CASES)
    for number in range(0, len(names), 60):
        for name in names[number : number + 60]:
            CASES[name].plant(log)
        if number == 60:
            with pytest.raises(KilledError):
                steps.make_step(plan_of(log), killed)
        step()
        if number == 60:
            state.close()
            state = StateStore(tmp_path)
            steps = LocalSteps(source, state)
    log.transaction(log.progress(PLAIN, half=0))
    log.transaction(log.progress(PASSED, half=3))
    for case in TAIL.values():
        case.plant(log)
    step()
    assert not steps.has_news()
    report = step()
    assert dict(report.violations.by_kind) == VIOLATIONS
    assert told(report) == told(in_full(log))
    assert set(raised.values()) == {1}
    assert len(raised) == sum(VIOLATIONS.values())
    state.close()


def test_one_audit_at_a_time_continues_a_ledger(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    state = StateStore(tmp_path)
    with pytest.raises(CouldNotAuditError, match="another audit continues the ledger"):
        StateStore(tmp_path)
    state.close()
    state = StateStore(tmp_path)
    LocalSteps(source_of(log), state).make_step(plan_of(log))
    other = dataclasses.replace(source_of(log), names=KafkaLog(kafka.bootstrap_servers).names)
    with pytest.raises(CouldNotAuditError, match="is about the namespace"):
        LocalSteps(other, state)
    state.close()


def rows_in(folder: Path) -> list[tuple[int, str]]:
    """Step and transaction of each row, as a reader of the whole ledger finds them."""
    table = dataset.dataset(folder, partitioning="hive").to_table(["step", "transaction"]).to_pydict()
    return sorted(zip(table["step"], table["transaction"], strict=True))


def test_a_step_that_is_killed_while_it_writes_leaves_a_ledger_that_can_be_read(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    source, first = source_of(log), log.half()
    continue_once(source, tmp_path, plan_of(log))
    second = log.half()

    def killed(_: object, folder: Path, **__: object) -> None:
        (folder / "day=2026-11-23").mkdir(parents=True)
        (folder / "day=2026-11-23" / "part-0.parquet").write_bytes(b"PAR1")
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(dataset, "write_dataset", killed)
        with pytest.raises(KilledError):
            continue_once(source, tmp_path, plan_of(log))
    assert rows_in(tmp_path) == [(1, first.id[:8])]
    # Killed between its rows and its end: they are those of no step.
    (tmp_path / "step=2" / "day=2026-11-23").mkdir(parents=True)
    (tmp_path / "step=2" / "day=2026-11-23" / "part-9.parquet").write_bytes(b"PAR1")
    report = continue_once(source, tmp_path, plan_of(log))
    assert report.transactions == 2
    assert rows_in(tmp_path) == [(1, first.id[:8]), (2, second.id[:8])]


def test_a_full_disk_is_named_and_loses_no_step(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """No file may grow beyond some kB here, which the system says by an error of the same kind."""
    log = KafkaLog(kafka.bootstrap_servers)
    source, whole, steps = source_of(log), tmp_path / "whole", tmp_path / "steps"
    log.half()
    whole.mkdir()
    continue_once(source, steps, plan_of(log))
    for _ in range(50):
        log.half()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, unlimited[1]))
    try:
        with pytest.raises(CouldNotAuditError, match=r"cannot be written .*: check the disk"):
            local_audit(source, plan_of(log), ledger=whole, with_overview=False)
        with pytest.raises(CouldNotAuditError, match=r"cannot be kept there .*: check the folder and the disk"):
            continue_once(source, steps, plan_of(log))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert list(whole.iterdir()) == []
    assert local_audit(source, plan_of(log), ledger=whole, with_overview=False).transactions == 51
    assert continue_once(source, steps, plan_of(log)).transactions == 51


def test_what_retention_removes_is_forgotten_and_what_waits_has_expired(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    log = KafkaLog(kafka.bootstrap_servers)
    source, state = source_of(log), StateStore(tmp_path)
    steps = LocalSteps(source, state)
    lost, first, second, waiting, kept = (log.half() for _ in range(5))
    for half in (lost, first, second, kept):
        log.end(half, COMMIT)
    for half in (first, second, kept):
        log.deliver(half)
    log.transaction(log.op("commit", lost), log.parked(waiting, "pending", checks=1))
    log.transaction(log.progress(PLAIN, half=kept.offset + 1))
    report = steps.make_step(plan_of(log)).report
    assert (report.transactions, report.delivered, report.fates["LOST"], report.pending) == (5, 3, 1, 1)
    log.delete_records(log.names.half, PLAIN, kept.offset)
    report = steps.make_step(plan_of(log)).report
    assert (report.transactions, report.delivered) == (1, 1)
    assert +Counter(report.violations.by_kind) == {"EXPIRED": 1}
    full = in_full(log)
    assert (report.fates, report.violations) == (full.fates, full.violations)
    # A full audit has not seen the half messages of these records.
    assert (report.findings.total, dict(full.findings.by_kind)) == (0, {"HALF_GONE": 2})
    # A record that names a closed transaction late is judged with it.
    log.transaction(log.copy(kept))
    made = steps.make_step(plan_of(log))
    assert [alarm.kind for alarm in made.alarms] == ["DUPLICATED"]
    assert made.report.violations == in_full(log).violations
    state.close()


@pytest.mark.long
def test_following_waits_for_a_kafka_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "_PATIENCE", 2.0)
    monkeypatch.setattr(audit, "QUIET", 0.5)
    with EmbeddedKafka(data_dir=tmp_path / "kafka") as kafka:
        log, said, stop = KafkaLog(kafka.bootstrap_servers), list[str](), threading.Event()
        log.end(known := log.half(), COMMIT)
        log.deliver(known)

        def away() -> None:
            kafka.kill()
            eventually(lambda: any("goes on when it does" in text for text in said), 60)
            kafka.start()
            log.transaction(log.copy(Half(PLAIN, 90_000, "F" * 32, "billing", log.real(ORDERS))))

        broken = threading.Thread(target=away)
        report = follow(
            *(log.servers, str(tmp_path / "ledger")),
            stop=stop,
            interval=0.1,
            namespace=log.names.namespace,
            progress=said.append,
            on_step=lambda step: broken.start() if broken.ident is None else step.alarms and stop.set(),
        )
        broken.join()
    assert report.violations.by_kind["PHANTOM"] == 1


def test_following_raises_each_violation_once(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower dies after its alarms were written, before the step counted, and is started again."""
    log = KafkaLog(kafka.bootstrap_servers)
    topic = f"{log.names.namespace}-violations"
    log.create(NewTopic(topic, 1, 1))
    stop = threading.Event()

    def phantom(offset: int) -> None:
        log.transaction(log.copy(Half(PLAIN, offset, "F" * 32, "billing", log.real(ORDERS))))

    # Where no half message goes, nothing is looked for.
    known = log.half()
    log.end(known, COMMIT)
    log.deliver(known)
    phantom(90_000)

    def followed(on_step: Callable[[AuditStep], None] = lambda _: None) -> AuditReport:
        return follow(
            log.servers,
            str(tmp_path),
            stop=stop,
            violations_topic=topic,
            interval=0.1,
            namespace=log.names.namespace,
            on_step=on_step,
        )

    with monkeypatch.context() as patch:
        sent = Alarms.send

        def killed(alarms: Alarms, step: int, some: Sequence[Entry]) -> Mapping[Place, int]:
            sent(alarms, step, some)
            raise KilledError

        patch.setattr(Alarms, "send", killed)
        with pytest.raises(KilledError):
            followed()
    seen: list[str] = []

    def on_step(step: AuditStep) -> None:
        seen.extend(alarm.kind for alarm in step.alarms)
        if len(seen) == 1:
            phantom(90_001)
        if len(seen) == 2:
            stop.set()

    report = followed(on_step)
    assert report.violations.by_kind["PHANTOM"] == 2
    assert seen == ["PHANTOM", "PHANTOM"]
    assert [json.loads(value)["kind"] for value in values_in(log.servers, topic)] == ["PHANTOM", "PHANTOM"]
    assert len({json.loads(value)["id"] for value in values_in(log.servers, topic)}) == 2
