"""Jobs beside each other: to plan one takes a single processor, and Spark waits for nobody meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

_T = TypeVar("_T")


def beside(spark: SparkSession, job: Callable[[], _T]) -> Callable[[], _T]:
    """Run the job in a thread of its own from now on. Returns what waits for its result, or raises its error.

    Nobody has to wait: who was interrupted, or has failed, leaves it alone.
    """
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(job())
        except BaseException as error:  # noqa: BLE001  (whoever waits for it raises it)
            found.set_exception(error)

    threading.Thread(target=inheritable_thread_target(spark)(run), daemon=True).start()
    return found.result
