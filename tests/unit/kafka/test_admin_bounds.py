"""The wait for the answer to an administrative request."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from txbridge.kafka.admin import Bounds, UnwantedError


class LastMoment(Future[str]):
    """An answer that comes right after a look at it has ended."""

    def come(self) -> bool:
        """Returns false: the answer is still wanted."""
        if not self.done():
            self.set_result("here")
        return False

    def result(self, timeout: float | None = None) -> str:
        try:
            return super().result(timeout)
        except TimeoutError:
            self.come()
            raise


def test_an_answer_that_comes_while_a_look_ends_is_the_answer() -> None:
    answer = LastMoment()
    assert Bounds(is_unwanted=answer.come).result_of(answer) == "here"


def test_an_answer_that_nobody_wants_any_more_is_not_waited_for() -> None:
    with pytest.raises(UnwantedError):
        Bounds(is_unwanted=lambda: True).result_of(Future())
