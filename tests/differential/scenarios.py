"""The scenarios and their expected fates, written by hand from RocketMQ's source and docs/parity.md.

Both sides check after 1 s, then every second (RocketMQ: every round of 1 to 2 s), at most three times, and then
discard. The numbers of a fate are: visible copies, checks, discard records, refusals.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.scenario import Answer, Expected, Fate, Scenario, Stage

COMMIT, ROLLBACK, UNKNOWN, EXCEPTION = Answer.COMMIT, Answer.ROLLBACK, Answer.UNKNOWN, Answer.EXCEPTION

# RocketMQ's producer sends its END one-way, so a decision by hand that must come after it waits. The broker executes
# the END within milliseconds, and does not check the half message for another half second.
_AFTER_END_S = 0.5
# RocketMQ makes its four rounds (three checks and the discard) after 1 s of time-out and 2.1 s each; ours take 4 s.
_ALL_CHECKS_S = 12.0
_IMMUNITY_S = 15


def commit(stage: Stage) -> None:
    stage.send("a", COMMIT)


def rollback(stage: Stage) -> None:
    stage.send("a", ROLLBACK)


def unknown_then_commit(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [COMMIT])


def unknown_then_rollback(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [ROLLBACK])


def unknown_twice_then_commit(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [UNKNOWN, COMMIT])


def unknown_for_ever(stage: Stage) -> None:
    stage.send("a", UNKNOWN)


def exception_then_commit(stage: Stage) -> None:
    stage.send("a", EXCEPTION, [COMMIT])


def exception_in_check(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [EXCEPTION, COMMIT])


def commit_by_last_check(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [UNKNOWN, UNKNOWN, COMMIT])


def decided_is_not_checked(stage: Stage) -> None:
    stage.send("committed", COMMIT)
    stage.send("open", UNKNOWN)
    stage.send("rolled-back", ROLLBACK)
    stage.until_set_aside("open")


def interleaved(stage: Stage) -> None:
    stage.send("a", UNKNOWN)
    stage.send("b", UNKNOWN)
    stage.decide("a", COMMIT)
    stage.decide("b", ROLLBACK)


def stranger(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [ROLLBACK])
    stage.decide("a", COMMIT, stranger=True)


def commit_twice(stage: Stage) -> None:
    stage.send("a", COMMIT)
    stage.until_visible("a")
    stage.decide("a", COMMIT)


def commit_after_rollback(stage: Stage) -> None:
    stage.send("a", ROLLBACK)
    stage.wait(_AFTER_END_S)
    stage.decide("a", COMMIT)


def rollback_after_commit(stage: Stage) -> None:
    stage.send("a", COMMIT)
    stage.until_visible("a")
    stage.decide("a", ROLLBACK)


def commit_after_discard(stage: Stage) -> None:
    stage.send("a", UNKNOWN)
    stage.until_set_aside("a")
    stage.decide("a", COMMIT)


def check_answered_twice(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [COMMIT])
    stage.until_visible("a")
    stage.answer_again("a", COMMIT)


def contrary_second_answer(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [ROLLBACK])
    stage.until_checked("a", 1)
    stage.wait(_AFTER_END_S)
    stage.answer_again("a", COMMIT)


def commit_between_checks(stage: Stage) -> None:
    stage.send("a", UNKNOWN)
    stage.until_checked("a", 1)
    stage.decide("a", COMMIT)


def commit_between_checks_and_by_check(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [UNKNOWN, COMMIT])
    stage.until_checked("a", 1)
    stage.decide("a", COMMIT)


def producer_away(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [COMMIT])
    stage.leave()
    stage.wait(_ALL_CHECKS_S)
    stage.come_back()


def long_immunity(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [COMMIT], immunity=_IMMUNITY_S)
    stage.wait(_IMMUNITY_S)


def resumed(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [UNKNOWN, UNKNOWN, UNKNOWN, COMMIT])
    stage.until_set_aside("a")
    stage.resume("a")


def resumed_twice(stage: Stage) -> None:
    stage.send("a", UNKNOWN, [UNKNOWN, UNKNOWN, UNKNOWN, COMMIT])
    stage.until_set_aside("a")
    stage.resume("a")
    stage.resume("a")


def send_is_repeated(stage: Stage) -> None:
    stage.send("a", COMMIT, [COMMIT], lost=True)


def _same(name: str, play: Callable[[Stage], None], *fate: int) -> Scenario:
    return _scenario(name, play, Expected(Fate(*fate)))


def _scenario(name: str, play: Callable[[Stage], None], expected: Expected) -> Scenario:
    return Scenario(name, play, {"a": expected})


SCENARIOS = (
    _same("commit", commit, 1, 0),
    _same("rollback", rollback, 0, 0),
    _same("unknown, then commit by check", unknown_then_commit, 1, 1),
    _same("unknown, then rollback by check", unknown_then_rollback, 0, 1),
    _same("unknown twice, then commit by check", unknown_twice_then_commit, 1, 2),
    _same("unknown forever", unknown_for_ever, 0, 3, 1),
    _same("exception, then commit by check", exception_then_commit, 1, 1),
    _same("exception in a check", exception_in_check, 1, 2),
    Scenario(
        "what is decided is not checked",
        decided_is_not_checked,
        {
            "committed": Expected(Fate(1, 0)),
            "open": Expected(Fate(0, 3, 1)),
            "rolled-back": Expected(Fate(0, 0)),
        },
    ),
    Scenario(
        "two interleaved, opposite decisions",
        interleaved,
        {"a": Expected(Fate(1, 0)), "b": Expected(Fate(0, 0))},
    ),
    _same("decision of another group", stranger, 0, 1, 0, 1),
    _same("discarded, resumed, then commit", resumed, 1, 4, 1),
    _scenario("commit twice", commit_twice, Expected(Fate(1, 0, 0, 1), (Fate(2, 0),), "D.11")),
    _scenario("commit after rollback", commit_after_rollback, Expected(Fate(0, 0, 0, 1), (Fate(1, 0),), "D.12")),
    _scenario("rollback after commit", rollback_after_commit, Expected(Fate(1, 0, 0, 1), (Fate(1, 0),), "D.13")),
    _scenario("commit after discard", commit_after_discard, Expected(Fate(0, 3, 1, 1), (Fate(1, 3, 1),), "D.16")),
    _scenario("check answered twice", check_answered_twice, Expected(Fate(1, 1, 0, 1), (Fate(2, 1),), "D.11")),
    _scenario(
        "check answered rollback, then commit",
        contrary_second_answer,
        Expected(Fate(0, 1, 0, 1), (Fate(1, 1),), "D.12"),
    ),
    _scenario(
        "producer commits after a check",
        commit_between_checks,
        Expected(Fate(1, 1), (Fate(1, 3, 1),), "D.15"),
    ),
    _scenario(
        "producer and check commit",
        commit_between_checks_and_by_check,
        Expected(Fate(1, 1), (Fate(2, 2),), "D.11"),
    ),
    _scenario("producer away while checks are due", producer_away, Expected(Fate(1, 1), (Fate(0, 0, 1),), "E.7c")),
    _scenario("immunity longer than all checks", long_immunity, Expected(Fate(1, 1), (Fate(0, 0, 1),), "E.5a")),
    _scenario("resumed twice", resumed_twice, Expected(Fate(1, 4, 1, 1), (Fate(2, 5, 1),), "G.6")),
    Scenario(
        "SEND whose answer gets lost",
        send_is_repeated,
        # The worker writes the copy to the discard topic, with the reason COPY.
        {"a": Expected(Fate(1, 0, 1), (Fate(2, 1),), "C.13")},
        only_rocketmqs_client=True,
    ),
    _scenario(
        "commit by the last check",
        commit_by_last_check,
        Expected(
            Fate(1, 3),
            (Fate(1, 3), Fate(1, 3, 1)),
            "E.3.5",
            "RocketMQ may set it aside in the round of its last check, and delivers it all the same",
        ),
    ),
)
