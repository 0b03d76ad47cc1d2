"""Brokers without requests that txbridge needs: doctor and worker name the request and the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.harness import Bridge
from tests.support.old_broker import OldBroker
from txbridge.embedded import EmbeddedKafka
from txbridge.embedded.ports import free_port

#: Each test has a Kafka of its own.
pytestmark = pytest.mark.long

ADVICE = "use brokers of Apache Kafka 3.9 or later, or a service that speaks all of its transactions"


@pytest.fixture(scope="module")
def old_broker() -> Iterator[OldBroker]:
    port = free_port()
    with OldBroker() as proxy:
        proxy.connect_to(port)
        with EmbeddedKafka(port, config={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}):
            yield proxy


@pytest.mark.parametrize(
    ("hidden", "what"),
    [
        # Requests that Kafka 2.8 and older do not have.
        ({61, 65, 66}, "DescribeTransactions 0 of Kafka 3.0 (hanging transactions are found; found none)"),
        # A service that speaks Kafka's protocol without its transactions.
        ({24, 25, 26}, "AddPartitionsToTxn 0 of Kafka 0.11 (Kafka transactions; found none), EndTxn 0 of Kafka 0.11 "),
    ],
    ids=["2.8", "no transactions"],
)
def test_a_broker_that_lacks_something_is_refused_with_a_sentence(
    old_broker: OldBroker, hidden: set[int], what: str
) -> None:
    with Bridge(f"127.0.0.1:{old_broker.port}", "old broker") as bridge:
        old_broker.hidden = hidden
        try:
            worker = bridge.worker(wait=0)
            assert worker.wait_dead() == 2
            log = worker.log
            arguments = ["--bootstrap-servers", bridge.bootstrap_servers, "--namespace", bridge.namespace, "--json"]
            command = [sys.executable, "-m", "txbridge.cli.main", "doctor", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        finally:
            old_broker.hidden = ()
    assert f"broker 1 lacks {what}" in log
    assert f"What to do: {ADVICE}" in log
    assert "Traceback" not in log + done.stderr
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["text"].startswith("broker 1 lacks")]
    assert (found["check"], found["level"], found["do"]) == ("versions", "problem", ADVICE)
    assert what in found["text"]
