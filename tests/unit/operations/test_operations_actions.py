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
from txbridge.operations.actions import Action, outcome_of, refuse
from txbridge.operations.decision_writer import check_words
from txbridge.operations.model import Answer, Result, StoredCommand
from txbridge.operations.view import DecisionCommand

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


# --- before writing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "action", "text"),
    [
        (
            replace(PENDING, stored=STORED),
            Action.ROLLBACK,
            "somebody was first: commit of client host-1 at END offset 12, whi",
        ),
        (
            HELD,
            Action.ROLLBACK,
            "it is committed already (END offset 6) and cannot be delivered: topic orders.placed does n",
        ),
        (HELD, Action.COMMIT, "it is committed already (END offset 6)"),
        (SCHEDULED, Action.ROLLBACK, "it is committed already (END offset 6)"),
        (DISCARDED, Action.COMMIT, "it was discarded (MAX_CHECKS), and a decision has no effect then: resume it first"),
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


def test_a_pending_message_can_be_decided_and_one_without_a_body_rolled_back():
    assert refuse(Action.COMMIT, PENDING) is None
    assert refuse(Action.ROLLBACK, PENDING) is None
    assert refuse(Action.ROLLBACK, replace(PENDING, gone=True)) is None


@pytest.mark.parametrize(
    ("message", "result", "text"),
    [
        (PENDING, Result.REFUSED, "it is not discarded but pending. Nothing was written"),
        (HELD, Result.REFUSED, "it is not discarded but held. Nothing was written"),
        (SCHEDULED, Result.REFUSED, "it is not discarded but scheduled. Nothing was written"),
        (
            replace(PENDING, resumed=5_000),
            Result.ALREADY_RESUMED,
            "it was resumed before and is pending. Nothing was written",
        ),
        (
            replace(DISCARDED, stored=STORED),
            Result.STORED,
            f"somebody was first: {STORED}, which no worker has applied yet. Nothing was written",
        ),
        (
            replace(DISCARDED, gone=True),
            Result.REFUSED,
            (
                "the half topic no longer has its body (retention), so that it could not be delivered any more. Its "
                "copy lies in the discard topic at 0:9. Nothing was written"
            ),
        ),
    ],
)
def test_only_a_discarded_message_with_a_body_is_resumed(message, result, text):
    assert refuse(Action.RESUME, message) == Answer(message, result, text)


def test_a_discarded_message_can_be_resumed_also_a_second_time_after_a_second_discard():
    assert refuse(Action.RESUME, DISCARDED) is None
    assert refuse(Action.RESUME, replace(DISCARDED, resumed=5_000)) is None


# --- after it was applied ---------------------------------------------------------------------------------------------


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
            "somebody was first: rollback of client alice at END offset 19",
        ),
        (
            COMMIT,
            [command(17, UNKNOWN, Source.CHECK), command(18, ROLLBACK, Source.CLIENT), command(19, COMMIT)],
            [Outcome.ROLLBACK],
            None,
            Result.REFUSED,
            "somebody was first: rollback of client alice at END offset 18",
        ),
        (
            COMMIT,
            [command(19, COMMIT, Source.CHECK)],
            [Outcome.COMMIT],
            None,
            Result.REFUSED,
            "somebody was first: commit of check alice at END offset 19",
        ),
        (
            COMMIT,
            [],
            [],
            parked(TransactionState.HELD, decided=20, error="no topic"),
            Result.HELD,
            "committed, but it cannot be delivered yet, and the worker goes on trying: no topic",
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


def test_a_resume_that_was_applied():
    again = parked(TransactionState.PENDING, resumed=9_000)
    answer = outcome_of(Action.RESUME, DISCARDED, 20, [command(20, UNKNOWN, Source.RESUME)], [], again)
    assert (answer.result, answer.detail) == (Result.RESUMED, "resumed: it is checked again, from check 1 on")


def test_a_resume_that_was_applied_and_decided_at_once():
    answer = outcome_of(Action.RESUME, DISCARDED, 20, [command(20, UNKNOWN, Source.RESUME)], [Outcome.COMMIT], None)
    assert (answer.result, answer.detail) == (Result.RESUMED, "resumed, and since finished: commit")


def test_a_resume_after_somebody_elses_had_no_effect():
    commands = [command(19, UNKNOWN, Source.RESUME), command(20, UNKNOWN, Source.RESUME)]
    answer = outcome_of(Action.RESUME, DISCARDED, 20, commands, [], parked(TransactionState.PENDING, resumed=9_000))
    assert answer.result is Result.ALREADY_RESUMED
    assert answer.detail == "somebody was first: resume of alice at END offset 19. This one had no effect"


@pytest.mark.parametrize("resumed", [None, 5_000])
def test_a_resume_without_a_trace_is_said_to_be_refused(resumed):
    still = parked(TransactionState.DISCARDED, reason="MAX_CHECKS", discarded_at=(0, 9), resumed=resumed)
    discarded = replace(DISCARDED, resumed=resumed)
    answer = outcome_of(Action.RESUME, discarded, 20, [command(20, UNKNOWN, Source.RESUME)], [], still)
    assert answer.result is Result.REFUSED


# --- who and why ------------------------------------------------------------------------------------------------------


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
        ("\ud800", "alice", "no text"),
    ],
)
def test_words_that_can_not_be_recorded_are_refused(reason, operator, text):
    with pytest.raises(UsageError, match=text):
        check_words(reason, operator)
