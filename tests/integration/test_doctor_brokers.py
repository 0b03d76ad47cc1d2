"""`txbridge doctor` and `topics plan` on two real brokers, and on one of them without a controller."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.command_line import run_txbridge
from tests.support.harness import eventually, quiet
from tests.support.second_broker import SESSION, SecondBroker
from txbridge.core.names import Names
from txbridge.embedded import EmbeddedKafka

#: Kafka creates its own topics at their first use, with this number of copies.
COPIES = {"offsets.topic.replication.factor": "2", "transaction.state.log.replication.factor": "2"}


def cli(servers: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_txbridge(*arguments, "--bootstrap-servers", servers)


def findings(servers: str) -> tuple[int, dict[str, list[str]]]:
    done = cli(servers, "doctor", "--format", "json")
    assert done.stderr == ""
    found: dict[str, list[str]] = {}
    for one in json.loads(done.stdout)["findings"]:
        found.setdefault(one["check"], []).append(f"{one['level']}: {one['text']}")
    return done.returncode, found


def warning(finding: str) -> str | None:
    return finding if finding.startswith("warning") else None


def unclean(admin: AdminClient, topic: str) -> None:
    operation = AlterConfigOpType.SET
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(120)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[EmbeddedKafka, SecondBroker]]:
    """Two brokers with the topics of the default namespace on both."""
    with EmbeddedKafka(config={**SESSION, **COPIES}) as first, SecondBroker(first, COPIES) as second:
        applied = cli(both(first, second), "topics", "apply", "--min-insync-replicas", "2")
        assert applied.returncode == 0, applied.stderr
        yield first, second


def both(first: EmbeddedKafka, second: SecondBroker) -> str:
    return f"{first.bootstrap_servers},{second.bootstrap_servers}"


@pytest.mark.long
def test_two_brokers_are_examined(brokers: tuple[EmbeddedKafka, SecondBroker]) -> None:
    servers = both(*brokers)
    code, found = findings(servers)
    assert found["limits"] == [
        "ok: the brokers accept commit_timeout and session_timeout, and elect no unclean leaders"
    ]
    assert found["replication"] == ["ok: all topics have 2 copies or more, all of them in sync"]
    # The only problem left is that no worker runs.
    levels = {line.partition(":")[0] for lines in found.values() for line in lines}
    assert (code, levels, found["workers"][0][:7]) == (1, {"ok", "note", "problem"}, "problem")

    unclean(AdminClient(quiet(servers)), Names().op)
    text = eventually(lambda: warning(findings(servers)[1]["replication"][0]), 20)
    assert text.startswith(f"warning: {Names().op}: unclean.leader.election.enable is true, must be false, or ")
    repaired = cli(servers, "topics", "apply", "--min-insync-replicas", "2", "--format", "json")
    assert repaired.returncode == 0, repaired.stderr
    plans = json.loads(repaired.stdout)["topics"]
    assert [one["topic"] for one in plans if one["changes"] or one["notes"]] == [Names().op]


@pytest.mark.long
@pytest.mark.parametrize("lost", ["hangs", "is gone"])
def test_without_a_controller_there_is_no_verdict_and_no_trace(
    brokers: tuple[EmbeddedKafka, SecondBroker], lost: str
) -> None:
    """Kafka names any broker as the controller to clients, so either of the two sentences may come."""
    first, second = brokers
    first_address = first.bootstrap_servers
    if lost == "hangs":
        first.pause()
    else:
        first.kill()
    try:
        code, found = findings(second.bootstrap_servers)
        listed = cli(second.bootstrap_servers, "pending")
    finally:
        if lost == "hangs":
            first.resume()
    assert code == 2
    sentences = ("answers, but its controller does not: ", f"{first_address} does not answer")
    assert any(one in found["connection"][0] for one in sentences), found["connection"]
    assert listed.returncode == 2
    assert "Traceback" not in listed.stderr
