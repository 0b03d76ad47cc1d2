"""The outbox and its relays under chaos: each committed row is visible once, and those of a key in their order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.relay_faults import FAULTS, SHORT, Fault
from tests.chaos.relay_run import judge, run_relays
from txbridge.embedded import EmbeddedKafka


@pytest.mark.parametrize(
    ("rows", "rate", "faults"),
    [
        pytest.param(10_000, 1_000, SHORT, id="short"),
        pytest.param(100_000, 1_000, FAULTS, marks=pytest.mark.long, id="long"),
    ],
)
def test_p3_p10_p14_rows_are_visible_once_and_in_order_whatever_fails(
    own_kafka: EmbeddedKafka, rows: int, rate: float, faults: Sequence[Fault]
) -> None:
    assert run_relays(own_kafka, rows, rate, faults) == []


def test_the_judge_finds_what_is_wrong() -> None:
    committed = {1: b"a", 2: b"a", 3: b"b", 4: b"a"}
    assert judge(committed, [(b"a", 1), (b"a", 2), (b"b", 3), (b"a", 4)]) == []
    assert judge(committed, [(b"a", 2), (b"a", 1), (b"a", 1), (b"c", 3), (b"b", 5)]) == [
        "lost: 4",
        "phantom: 5",
        "doubled: 1 2 times",
        "out of order: 2 before 1 of key b'a'",
        "strayed: 3 has key b'c'",
    ]
