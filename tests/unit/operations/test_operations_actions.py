"""The result of a manual command, from the records that the worker wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.open_messages import DISCARDED, HELD, PENDING, SCHEDULED
from tests.support.partition_builder import COMMIT, ROLLBACK, UNKNOWN, entry, id_of
from txbridge.core.decision_record import Source
from txbridge.core.half_entry import HalfEntry
from txbridge.core.states import Outcome, TransactionState
from txbridge.errors import UsageError
from txbridge.operations.commands import check_words
from txbridge.operations.model import Answer, Result, StoredCommand
from txbridge.operations.view import Action, DecisionCommand, foretell, outcome_of, refuse

STORED = StoredCommand(12, COMMIT, Source.CLIENT, "host-1")


def command(end_offset: int, decision: int, source: Source = Source.OPERATOR) -> DecisionCommand:
    return DecisionCommand(end_offset, "orders", source, entry(4, decision), "alice")


def parked(state: TransactionState, **fields: object) -> HalfEntry:
    known = {
        "parked": True,
        "offset": 4,
        "transaction_id": id_of(4),
        "group": "orders",
        "real_topic": "orders.placed",
        "born": 1_000,
        "size": 10,
        "checks": 0,
        "next_due": 7_000,
    }
    return HalfEntry(state=state, **{**known, **fields})


@pytest.mark.parametrize(
    ("message", "action", "text"),
    [
        (
            replace(PENDING, stored=STORED),
            Action.ROLLBACK,
            "another command came first: commit of client host-1 at END offset 12, whi",
        ),
        (
            HELD,
            Action.ROLLBACK,
            "it is committed already (END offset 6) and cannot be delivered: topic orders.placed does n",
        ),
        (HELD, Action.COMMIT, "it is committed already (END offset 6)"),
        (SCHEDULED, Action.ROLLBACK, "it is committed already (END offset 6)"),
        (DISCARDED, Action.COMMIT, "it was discarded (MAX_CHECKS): resume it first, then decide"),
        (DISCARDED, Action.ROLLBACK, "it was discarded"),
        (replace(PENDING, gone=True), Action.COMMIT, "the half topic no longer has its body"),
    ],
)
def test_a_decision_that_would_have_no_effect_is_refused_before_it_is_written(message, action, text):
    answer = refuse(action, message)
    assert answer is not None
    assert answer.result is Result.REFUSED
    assert answer.detail.startswith(text)
    assert answer.detail.endswith(". Nothing was written")


@pytest.mark.parametrize(
    ("message", "result", "text"),
    [
        (PENDING, Result.REFUSED, "it is pending, not discarded. Nothing was written"),
        (HELD, Result.REFUSED, "it is held, not discarded. Nothing was written"),
        (SCHEDULED, Result.REFUSED, "it is scheduled, not discarded. Nothing was written"),
        (
            replace(PENDING, resumed=5_000),
            Result.ALREADY_RESUMED,
            "it was resumed before and is pending. Nothing was written",
        ),
        (
            replace(DISCARDED, stored=STORED),
            Result.STORED,
            f"another command came first: {STORED}, which no worker has applied yet. Nothing was written",
        ),
        (
            replace(DISCARDED, gone=True),
            Result.REFUSED,
            (
                "the half topic no longer has its body (retention), so it cannot be delivered. Its copy is in the "
                "discard topic at 0:9. Nothing was written"
            ),
        ),
    ],
)
def test_only_a_discarded_message_with_a_body_is_resumed(message, result, text):
    assert refuse(Action.RESUME, message) == Answer(message, result, text)


@pytest.mark.parametrize(
    ("action", "message", "result", "text"),
    [
        (Action.COMMIT, PENDING, Result.WOULD_COMMIT, "would be committed"),
        (Action.ROLLBACK, PENDING, Result.WOULD_ROLL_BACK, "would be rolled back"),
        (Action.ROLLBACK, replace(PENDING, gone=True), Result.WOULD_ROLL_BACK, "would be rolled back"),
        (Action.RESUME, DISCARDED, Result.WOULD_RESUME, "would be resumed"),
        # After a second discard.
        (Action.RESUME, replace(DISCARDED, resumed=5_000), Result.WOULD_RESUME, "would be resumed"),
        (Action.ABANDON, PENDING, Result.REFUSED, "it is pending: only a held or scheduled message can be abandoned"),
        (
            Action.ABANDON,
            HELD,
            Result.WOULD_ABANDON,
            f"would be abandoned; 10 bytes go to the discard topic. It cannot be delivered: {HELD.error}",
        ),
        (
            Action.ABANDON,
            replace(SCHEDULED, gone=True),
            Result.WOULD_ABANDON,
            "would be abandoned; the half topic no longer has its body. Its time has not come",
        ),
    ],
)
def test_what_an_action_would_do(action, message, result, text):
    assert foretell(action, message) == Answer(message, result, f"{text}. Nothing was written")


@pytest.mark.parametrize(
    ("decision", "commands", "outcomes", "entry_now", "result", "text"),
    [
        (COMMIT, [], [Outcome.COMMIT], None, Result.COMMITTED, "committed and delivered to orders.placed"),
        (ROLLBACK, [], [Outcome.ROLLBACK], None, Result.ROLLED_BACK, "rolled back"),
        (COMMIT, [command(19, UNKNOWN)], [Outcome.COMMIT], None, Result.COMMITTED, "committed"),
        # Another decision came between our look and our command.
        (
            COMMIT,
            [command(19, ROLLBACK, Source.CLIENT)],
            [Outcome.ROLLBACK],
            None,
            Result.REFUSED,
            "another command came first: rollback of client alice at END offset 19",
        ),
        (
            COMMIT,
            [command(17, UNKNOWN, Source.CHECK), command(18, ROLLBACK, Source.CLIENT), command(19, COMMIT)],
            [Outcome.ROLLBACK],
            None,
            Result.REFUSED,
            "another command came first: rollback of client alice at END offset 18",
        ),
        (
            COMMIT,
            [command(19, COMMIT, Source.CHECK)],
            [Outcome.COMMIT],
            None,
            Result.REFUSED,
            "another command came first: commit of check alice at END offset 19",
        ),
        (
            COMMIT,
            [],
            [],
            parked(TransactionState.HELD, decided=20, error="no topic"),
            Result.HELD,
            "committed, but it cannot be delivered yet; the worker keeps trying: no topic",
        ),
        (
            COMMIT,
            [],
            [Outcome.DISCARD],
            parked(TransactionState.DISCARDED, reason="MAX_CHECKS", discarded_at=(0, 1)),
            Result.REFUSED,
            "it was discarded before the decision came",
        ),
        (COMMIT, [], [], None, Result.REFUSED, "the worker refused it; its log says why"),
    ],
)
def test_what_became_of_a_decision(decision, commands, outcomes, entry_now, result, text):
    action = Action.COMMIT if decision == COMMIT else Action.ROLLBACK
    answer = outcome_of(action, PENDING, 20, [*commands, command(20, decision)], outcomes, entry_now)
    assert (answer.result, answer.end_offset) == (result, 20)
    assert answer.detail.startswith(text)


RESUME = command(20, UNKNOWN, Source.RESUME)
AGAIN = parked(TransactionState.PENDING, resumed=9_000)
STILL = parked(TransactionState.DISCARDED, reason="MAX_CHECKS", discarded_at=(0, 9))
SEE_LOG = "the worker refused it; its log says why (event end_refused)"


@pytest.mark.parametrize(
    ("message", "commands", "outcomes", "entry_now", "result", "text"),
    [
        (DISCARDED, [RESUME], [], AGAIN, Result.RESUMED, "resumed: it is checked again, starting with check 1"),
        (DISCARDED, [RESUME], [Outcome.COMMIT], None, Result.RESUMED, "resumed, and finished since: commit"),
        (
            DISCARDED,
            [command(19, UNKNOWN, Source.RESUME), RESUME],
            [],
            AGAIN,
            Result.ALREADY_RESUMED,
            "another command came first: resume of alice at END offset 19. This one had no effect",
        ),
        (DISCARDED, [RESUME], [], STILL, Result.REFUSED, SEE_LOG),
        (replace(DISCARDED, resumed=5_000), [RESUME], [], STILL._replace(resumed=5_000), Result.REFUSED, SEE_LOG),
    ],
)
def test_what_became_of_a_resume(message, commands, outcomes, entry_now, result, text):
    assert outcome_of(Action.RESUME, message, 20, commands, outcomes, entry_now) == Answer(message, result, text, 20)


def test_reason_and_operator_are_taken_without_surrounding_blanks():
    assert check_words(" order 42, paid: see ticket\n", " alice ") == ("order 42, paid: see ticket", "alice")


@pytest.mark.parametrize(
    ("reason", "operator", "text"),
    [
        ("", "alice", "a reason is needed"),
        ("  ", "alice", "a reason is needed"),
        ("why", " ", "an operator is needed"),
        ("why", "a" * 201, "longer than 200 characters"),
        ("x" * 2_049, "alice", "the reason is too long"),
        ("€" * 300, "alice", "the reason is too long"),
        ("\ud800", "alice", "not text"),
    ],
)
def test_words_that_can_not_be_recorded_are_refused(reason, operator, text):
    with pytest.raises(UsageError, match=text):
        check_words(reason, operator)
