"""Short chaos cells on three brokers, with one cluster for all: fewer transactions, and faults of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext

import pytest

from tests.chaos.cells import Cell, Run, run_cell
from tests.chaos.cluster_cells import leader_dies, leader_stopped, rolling_restart, two_are_gone
from tests.support.harness import eventually
from tests.support.kafka_cluster import KafkaCluster
from tests.support.listeners import ROLLBACK, Answers
from txbridge import Message, PrepareError, TransactionProducer

pytestmark = pytest.mark.long
_TRANSACTIONS = 2_000
#: A third of Kafka's own session, so that other brokers take over soon.
_SESSION_MS = 3_000
#: A broker is away for longer than its session.
_AWAY_S = 5.0
#: The client's own send time-out.
_SEND_MS = 3_000
#: Time besides the time-out: a second until librdkafka reports it, and delays on a busy machine.
_SLACK_S = 6.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """A cluster with separate controllers: with two brokers gone the quorum goes on, and knows the in-sync replicas."""
    config = {"broker.session.timeout.ms": str(_SESSION_MS)}
    with KafkaCluster(separate_controllers=True, config=config) as cluster:
        yield cluster


def run_short(kafka: KafkaCluster, cell: str, fault: Callable[[Run], None]) -> None:
    report = run_cell(cell, Cell(fault, lambda: nullcontext(kafka)), _TRANSACTIONS)
    print(report)
    assert report.violations == []
    # A failed half message that was stored all the same is rolled back by a check, and its client sends another.
    assert report.transactions >= _TRANSACTIONS
    # 90 of 100 commit at once and 3 by a check.
    assert report.committed > 0.8 * _TRANSACTIONS


@pytest.mark.parametrize("kind", ["OP", "HALF", "END", "OFFSET", "real", "__transaction_state", "__consumer_offsets"])
def test_p3_p10_nothing_is_lost_doubled_or_leaked_when_the_leader_dies_of(kafka: KafkaCluster, kind: str) -> None:
    run_short(kafka, f"leader of {kind} kill -9", leader_dies(kind, _AWAY_S))


def test_p2_p10_below_min_insync_replicas_prepares_fail_soon_and_decisions_are_kept(kafka: KafkaCluster) -> None:
    took: list[float] = []
    told: list[str] = []

    def fault(run: Run) -> None:
        settings = {"bootstrap.servers": run.bridge.bootstrap_servers, "message.timeout.ms": _SEND_MS}
        producer = TransactionProducer("other", Answers(ROLLBACK, ROLLBACK), settings, namespace=run.bridge.namespace)
        # The producer runs until the verdict: a check settles half messages that were stored and not acknowledged.
        stack.enter_context(producer)
        producer.send_message_in_transaction(Message(run.topic, b"never"))

        def says_why() -> bool:
            began = time.monotonic()
            with pytest.raises(PrepareError) as failure:
                producer.send_message_in_transaction(Message(run.topic, b"never"))
            took.append(time.monotonic() - began)
            told.append(str(failure.value))
            return "too few replicas are in sync (NOT_ENOUGH_REPLICAS): 1 where min.insync" in told[-1]

        # The controller must first notice that two brokers are gone.
        two_are_gone(lambda _: eventually(says_why, 60, lambda: "\n".join(told)))(run)

    with ExitStack() as stack:
        run_short(kafka, "two brokers gone", fault)
    print(took)
    assert max(took) < _SEND_MS / 1_000 + _SLACK_S


@pytest.mark.parametrize(
    "fault",
    [pytest.param(leader_stopped(_AWAY_S), id="broker stop"), pytest.param(rolling_restart(1), id="rolling restart")],
)
def test_p3_p10_nothing_is_lost_doubled_or_leaked_under(
    kafka: KafkaCluster, fault: Callable[[Run], None], request: pytest.FixtureRequest
) -> None:
    run_short(kafka, request.node.callspec.id, fault)
