"""The transition table against the same table written by hand."""

from __future__ import annotations

import itertools

import pytest

from txbridge.core.decision_record import Decision, Source
from txbridge.core.states import TRANSITIONS, Event, TransactionState, event_of

#: Rows are events, columns are states; "-" is a pair that cannot happen.
BY_HAND = """
event                pending     held            scheduled       discarded  committed       rolled_back     abandoned
commit               committed   ! repeat        ! repeat        ! late     ! repeat        ! contradict. ! repeat
commit_undeliverable held        ! repeat        -               ! late     ! repeat        ! contradict. ! repeat
commit_early         scheduled   -               -               -          -               -               -
commit_step          scheduled   -               -               -          -               -               -
rollback             rolled_back ! contradict. ! contradict. ! late     ! contradict. ! repeat        ! contradict.
unknown              pending     held            scheduled       discarded  committed       rolled_back     abandoned
resume               ! not_disc. ! not_disc.     ! not_disc.     pending    ! not_disc.     ! not_disc.     ! not_disc.
abandon              ! not_held  abandoned       abandoned       ! not_held ! not_held      ! not_held      ! not_held
deliver              -           committed       committed       -          -               -               -
deliver_step         -           scheduled       scheduled       -          -               -               -
due_undeliverable    -           -               held            -          -               -               -
check                pending     -               -               -          -               -               -
give_up              discarded   -               -               -          -               -               -
"""


def cell(state: TransactionState, event: Event) -> str:
    transition = TRANSITIONS.get((state, event))
    if transition is None:
        return "-"
    if transition.refused is None:
        return transition.state.value
    assert transition.state is state, "a refused event changes nothing"
    return "! " + transition.refused.value.replace("not_discarded", "not_disc.").replace("contradiction", "contradict.")


def test_the_transition_table_is_the_one_written_by_hand(capsys):
    header, *rows = [line.split() for line in BY_HAND.strip().replace("! ", "!").splitlines()]
    by_hand = {
        (name, row[0]): text.replace("!", "! ") for row in rows for name, text in zip(header[1:], row[1:], strict=True)
    }
    table = {
        (state.value, event.value): cell(state, event) for state, event in itertools.product(TransactionState, Event)
    }
    for event in Event:
        print(f"{event.value:<22}" + "".join(f"{table[state.value, event.value]:<17}" for state in TransactionState))
    assert table == by_hand
    assert len(by_hand) == 7 * 13


@pytest.mark.parametrize("source", [Source.CLIENT, Source.CHECK, Source.OPERATOR])
def test_whoever_decides_a_decision_is_the_same_event(source):
    assert event_of(Decision.COMMIT, source) is Event.COMMIT
    assert event_of(Decision.ROLLBACK, source) is Event.ROLLBACK
    assert event_of(Decision.UNKNOWN, source) is Event.UNKNOWN


def test_a_command_is_not_an_unknown():
    assert event_of(Decision.UNKNOWN, Source.RESUME) is Event.RESUME
    assert event_of(Decision.UNKNOWN, Source.ABANDON) is Event.ABANDON
