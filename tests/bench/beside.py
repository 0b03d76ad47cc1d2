"""Other work in a thread beside a measurement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def beside(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run `work` meanwhile. It ends when the event is set, at the end of the block, which raises its exception."""
    ended, failed = threading.Event(), []

    def run() -> None:
        try:
            work(ended)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def served(producer: Producer) -> Iterator[None]:
    """Serve the producer's acknowledgements meanwhile, and close it at the end."""

    def serve(ended: threading.Event) -> None:
        while not ended.is_set():
            producer.poll(0.1)

    with beside(serve):
        yield
    producer.close()
