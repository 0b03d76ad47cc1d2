"""Events that a large enough range of seeds must reach: a simulator that never reaches them proves nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulator.faults import CHANCES, RARE
from txbridge.core.states import TRANSITIONS, Event, RefusalReason, TransactionState

#: Pairs of the table that the worker never looks up: it asks only about pending messages whether they can be delivered.
_NEVER_ASKED = {
    (state, Event.COMMIT_UNDELIVERABLE) for state in TransactionState if state is not TransactionState.PENDING
}

TRANSITION_COUNTERS = tuple(
    f"transition {state.value} {event.value}" for state, event in TRANSITIONS if (state, event) not in _NEVER_ASKED
)
REFUSAL_COUNTERS = tuple(f"refusal {reason.value}" for reason in RefusalReason)
FAULT_COUNTERS = (
    *(f"fault {name}" for name in (*CHANCES, *RARE)),
    "fault crash in a take-over",
    "fault zombie resumed",
    "fault zombie goes on with its take-over",
    "fault record refused",
    "fault clock far off",
    "fault batch too large",
    "fault check too large",
    "fault check without key",
)
#: Counters of requests that arrive late, and of behaviour of clients and of the worker.
OTHER_COUNTERS = (
    "late EndTxn",
    "late EndTxn ends its own transaction",
    "late EndTxn refused, its epoch is over",
    "late InitProducerId",
    "late describe group",
    "link too slow",
    "cut within an END record",
    "run of fresh half messages",
    "run of several fresh half messages",
    "run that rolls back",
    "run for several real topics",
    "run behind decisions one by one",
    "decisions one by one behind a run",
    "several runs in one transaction",
    "client checked",
    "sql attempt rolled back by a check",
    "sql lost commit found by a check",
    "sql check was too early",
    "sql process died behind its row",
    "client decided again",
    *(f"client told {state.value}" for state in TransactionState),
    "client told unknown",
    *(f"client forged {kind}" for kind in range(6)),
    "stranger committed decisions",
    "stranger aborted decisions",
    "stranger hangs with a decision",
    "stranger's committed decision counted",
    "stranger's aborted decision passed over",
    "stranger's aborted half message known",
    "set aside malformed",
    "set aside copy",
    "END named a copy",
    "several messages cut off",
    "several messages delivered together",
    "several messages held and delivered together",
    "several messages scheduled and delivered together",
    "step delivered alone",
    "step of several messages",
    "held after a step",
    "abandoned after a step",
    "abandoned in the transaction that delivered its first step",
    "abandoned in the transaction that would have held it",
    "workers that assume at once",
    "worker that assumes what another has",
    "assumed partition assigned",
    "aborted behind a lost tail",
    "lost tail refused",
    "lost tail restored",
    "held deliveries named apart in OP",
    "discard EXPIRED",
    "discard MAX_CHECKS",
    "discard forgotten",
    "parked with why it is not checked",
    "checkpoint settled at the ends of the logs",
    "log abandoned",
    "log cancelled",
    "log check_refused",
    "log clock_agrees",
    "log clock_differs",
    "log fenced",
    "log held",
    "log internal_topic_refused",
    "log kafka_unavailable",
    "log outcome_unknown",
    "log partition_taken_over",
    "log resumed",
    "log transaction_aborted",
    "log transactional_decisions",
    "log transactional_half_messages",
)
EXPECTED = (*FAULT_COUNTERS, *TRANSITION_COUNTERS, *REFUSAL_COUNTERS, *OTHER_COUNTERS)


def not_reached(counters: Mapping[str, int]) -> list[str]:
    """Expected counters that are still zero."""
    return [name for name in EXPECTED if not counters.get(name)]
