"""Concurrent Spark jobs: planning a job uses a single processor, and another job can run meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

_T = TypeVar("_T")


def beside(spark: SparkSession, job: Callable[[], _T]) -> Callable[[], _T]:
    """Start the job in a thread of its own. Returns a function that waits for its result, or raises its error.

    The caller need not call that function, for example after an interrupt or a failure.
    """
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(job())
        except BaseException as error:  # noqa: BLE001  (whoever waits for it raises it)
            found.set_exception(error)

    threading.Thread(target=inheritable_thread_target(spark)(run), daemon=True).start()
    return found.result
