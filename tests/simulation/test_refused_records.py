"""Records that topics refuse in quantity, on the simulated Kafka: commits for another topic hardly wait (P8)."""

from __future__ import annotations

import pytest

from tests.simulator.refused import RefusedRecords, RefusedRun

#: A commit for another topic may take this much longer than without refused records (ms).
_LONGER_MS = 1_000


@pytest.mark.parametrize("shows_configs", [True, False])
@pytest.mark.parametrize(
    "load",
    [
        RefusedRecords(at_once=300),
        RefusedRecords(per_second=15),
        RefusedRecords(per_second=200, seconds=5),
        RefusedRecords(topics=10, at_once=400),
        RefusedRecords(topics=10, per_second=15),
    ],
    ids=str,
)
def test_p8_a_commit_for_another_topic_takes_at_most_a_second_longer(load: RefusedRecords, shows_configs: bool):
    without = max(RefusedRun(RefusedRecords()).run().delays)
    outcome = RefusedRun(load, shows_configs=shows_configs).run()
    assert max(outcome.delays) <= without + _LONGER_MS
    # The good messages of the topics that refuse others arrive, too.
    assert outcome.good_visible == outcome.good


def test_messages_that_fit_each_but_not_in_one_batch_arrive_though_no_limit_is_seen():
    outcome = RefusedRun(RefusedRecords(pairs=3), shows_configs=False).run()
    assert (outcome.good_visible, outcome.good) == (6, 6)
