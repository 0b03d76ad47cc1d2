"""Half of the brokers away: the audit says which partitions nobody can read, and gives no verdict."""

from __future__ import annotations

import subprocess
import sys

from confluent_kafka.admin import NewTopic

from tests.integration.test_audit import ENVIRONMENT, KafkaLog
from tests.support.audit_cases import COMMIT
from tests.support.harness import eventually
from tests.support.second_broker import FIRST, SECOND, SESSION, SecondBroker
from txbridge.embedded import EmbeddedKafka

#: The real topic: a partition on each broker.
SPLIT = "orders.split"


def audit(log: KafkaLog) -> subprocess.CompletedProcess[str]:
    arguments = ["--bootstrap-servers", log.servers, "--namespace", log.names.namespace]
    command = [sys.executable, "-m", "txbridge.cli.main", "audit", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=800, check=False)


def has_leader(log: KafkaLog, partition: int) -> bool:
    return log.admin.list_topics(SPLIT, timeout=120).topics[SPLIT].partitions[partition].leader >= 0


def test_half_of_the_brokers_away_is_no_verdict() -> None:
    with EmbeddedKafka(config=SESSION) as kafka:
        # Everything else is on the first broker, as there is no other yet.
        log = KafkaLog(kafka.bootstrap_servers)
        with SecondBroker(kafka) as second:
            log.create(NewTopic(SPLIT, 2, replica_assignment=[[FIRST], [SECOND]]))
            for partition in (0, 1):
                half = log.half(SPLIT)
                log.end(half, COMMIT)
                log.transaction(log.copy(half, partition=partition), log.op("commit", half))
            whole = audit(log)
            assert whole.returncode == 0, whole.stdout + whole.stderr
            second.kill()
            eventually(lambda: not has_leader(log, 1), 60, "the controller did not notice")
            done = audit(log)
    assert done.returncode == 2, done.stdout + done.stderr
    # No report that somebody could take for one.
    assert done.stdout == ""
    assert f"{SPLIT}/1" in done.stderr
    assert "no verdict is possible" in done.stderr
    assert "check that all of its brokers are up" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
