"""The experiments that break the code: what they name is there, so that `make broken` and `make mutation` find it."""

from __future__ import annotations

import pytest

from tests.broken_on_purpose import BREAKS, ROOT, Break
from tests.mutation import MODULES


@pytest.mark.parametrize("broken", BREAKS, ids=lambda one: one.promise)
def test_what_is_broken_for_a_promise_stands_once_in_its_file_and_its_test_exists(broken: Break) -> None:
    assert (ROOT / broken.file).read_text().count(broken.old) == 1
    test, _, name = broken.test.split()[0].partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / test).read_text()


def test_mutants_of_the_draft_are_planted_where_it_is() -> None:
    assert (ROOT / MODULES["draft"]).is_file()
