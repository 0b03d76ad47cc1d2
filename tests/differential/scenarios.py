"""The scenarios and their expected fates, written by hand from RocketMQ's source and tests/parity.csv.

Both sides check after 1 s, then every second (RocketMQ: every round of 1 to 2 s), at most three times, and then
discard. The numbers of a fate are: visible copies, checks, discard records, refusals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

from tests.differential.scenario import Answer, Expected, Fate, Scenario, Stage, Steps

COMMIT, ROLLBACK, UNKNOWN, EXCEPTION = Answer.COMMIT, Answer.ROLLBACK, Answer.UNKNOWN, Answer.EXCEPTION

# RocketMQ's producer sends its END one-way, so a decision by hand that must come after it waits. The broker executes
# the END within milliseconds, and does not check the half message for another half second.
_AFTER_END_S = 0.5
# RocketMQ makes its four rounds (three checks and the discard) after 1 s of time-out and 2.1 s each; ours take 4 s.
_ALL_CHECKS_S = 12.0
_IMMUNITY_S = 15


class _Script:
    """`on.send("a", COMMIT)` is a step: it calls this method of the stage with these arguments."""

    def __getattr__(self, method: str) -> Callable[..., Callable[[Stage], None]]:
        return partial(methodcaller, method)


on: Any = _Script()


def _same(name: str, steps: Steps, *fate: int) -> Scenario:
    return _scenario(name, steps, Expected(Fate(*fate)))


def _scenario(name: str, steps: Steps, expected: Expected) -> Scenario:
    return Scenario(name, steps, {"a": expected})


SCENARIOS = (
    _same("commit", [on.send("a", COMMIT)], 1, 0),
    _same("rollback", [on.send("a", ROLLBACK)], 0, 0),
    _same("unknown, then commit by check", [on.send("a", UNKNOWN, [COMMIT])], 1, 1),
    _same("unknown, then rollback by check", [on.send("a", UNKNOWN, [ROLLBACK])], 0, 1),
    _same("unknown twice, then commit by check", [on.send("a", UNKNOWN, [UNKNOWN, COMMIT])], 1, 2),
    _same("unknown forever", [on.send("a", UNKNOWN)], 0, 3, 1),
    _same("exception, then commit by check", [on.send("a", EXCEPTION, [COMMIT])], 1, 1),
    _same("exception in a check", [on.send("a", UNKNOWN, [EXCEPTION, COMMIT])], 1, 2),
    Scenario(
        "what is decided is not checked",
        [
            on.send("committed", COMMIT),
            on.send("open", UNKNOWN),
            on.send("rolled-back", ROLLBACK),
            on.until_set_aside("open"),
        ],
        {"committed": Expected(Fate(1, 0)), "open": Expected(Fate(0, 3, 1)), "rolled-back": Expected(Fate(0, 0))},
    ),
    Scenario(
        "two interleaved, opposite decisions",
        [on.send("a", UNKNOWN), on.send("b", UNKNOWN), on.decide("a", COMMIT), on.decide("b", ROLLBACK)],
        {"a": Expected(Fate(1, 0)), "b": Expected(Fate(0, 0))},
    ),
    _same(
        "decision of another group",
        [on.send("a", UNKNOWN, [ROLLBACK]), on.decide("a", COMMIT, stranger=True)],
        0,
        1,
        0,
        1,
    ),
    _same(
        "discarded, resumed, then commit",
        [on.send("a", UNKNOWN, [UNKNOWN] * 3 + [COMMIT]), on.until_set_aside("a"), on.resume("a")],
        1,
        4,
        1,
    ),
    _scenario(
        "commit twice",
        [on.send("a", COMMIT), on.until_visible("a"), on.decide("a", COMMIT)],
        Expected(Fate(1, 0, 0, 1), (Fate(2, 0),), "D.11"),
    ),
    _scenario(
        "commit after rollback",
        [on.send("a", ROLLBACK), on.wait(_AFTER_END_S), on.decide("a", COMMIT)],
        Expected(Fate(0, 0, 0, 1), (Fate(1, 0),), "D.12"),
    ),
    _scenario(
        "rollback after commit",
        [on.send("a", COMMIT), on.until_visible("a"), on.decide("a", ROLLBACK)],
        Expected(Fate(1, 0, 0, 1), (Fate(1, 0),), "D.13"),
    ),
    _scenario(
        "commit after discard",
        [on.send("a", UNKNOWN), on.until_set_aside("a"), on.decide("a", COMMIT)],
        Expected(Fate(0, 3, 1, 1), (Fate(1, 3, 1),), "D.16"),
    ),
    _scenario(
        "check answered twice",
        [on.send("a", UNKNOWN, [COMMIT]), on.until_visible("a"), on.answer_again("a", COMMIT)],
        Expected(Fate(1, 1, 0, 1), (Fate(2, 1),), "D.11"),
    ),
    _scenario(
        "check answered rollback, then commit",
        [
            on.send("a", UNKNOWN, [ROLLBACK]),
            on.until_checked("a", 1),
            on.wait(_AFTER_END_S),
            on.answer_again("a", COMMIT),
        ],
        Expected(Fate(0, 1, 0, 1), (Fate(1, 1),), "D.12"),
    ),
    _scenario(
        "producer commits after a check",
        [on.send("a", UNKNOWN), on.until_checked("a", 1), on.decide("a", COMMIT)],
        Expected(Fate(1, 1), (Fate(1, 3, 1),), "D.15"),
    ),
    _scenario(
        "producer and check commit",
        [on.send("a", UNKNOWN, [UNKNOWN, COMMIT]), on.until_checked("a", 1), on.decide("a", COMMIT)],
        Expected(Fate(1, 1), (Fate(2, 2),), "D.11"),
    ),
    _scenario(
        "producer away while checks are due",
        [on.send("a", UNKNOWN, [COMMIT]), on.leave(), on.wait(_ALL_CHECKS_S), on.come_back()],
        Expected(Fate(1, 1), (Fate(0, 0, 1),), "E.7c"),
    ),
    _scenario(
        "immunity longer than all checks",
        [on.send("a", UNKNOWN, [COMMIT], immunity=_IMMUNITY_S), on.wait(_IMMUNITY_S)],
        Expected(Fate(1, 1), (Fate(0, 0, 1),), "E.5a"),
    ),
    _scenario(
        "resumed twice",
        [on.send("a", UNKNOWN, [UNKNOWN] * 3 + [COMMIT]), on.until_set_aside("a"), on.resume("a"), on.resume("a")],
        Expected(Fate(1, 4, 1, 1), (Fate(2, 5, 1),), "G.6"),
    ),
    Scenario(
        "SEND whose answer gets lost",
        [on.send("a", COMMIT, [COMMIT], lost=True)],
        # The worker writes the copy to the discard topic, with the reason COPY.
        {"a": Expected(Fate(1, 0, 1), (Fate(2, 1),), "C.13")},
        only_rocketmqs_client=True,
    ),
    _scenario(
        "commit by the last check",
        [on.send("a", UNKNOWN, [UNKNOWN, UNKNOWN, COMMIT])],
        Expected(
            Fate(1, 3),
            (Fate(1, 3), Fate(1, 3, 1)),
            "E.3.5",
            "RocketMQ may set it aside in the round of its last check, and delivers it all the same",
        ),
    ),
)
