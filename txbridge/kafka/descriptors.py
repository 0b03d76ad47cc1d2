"""File descriptors that a worker needs.

librdkafka has a thread for each broker, one for the coordinator, and one for everything else, each with a pipe (2
descriptors). Brokers and coordinator may have a connection (1) as well. test_worker_machine.py counts them.
"""

from __future__ import annotations

#: Clients of a partition: its transactional producer, and readers of HALF, of decisions, and of bodies. Of these, the
#: last two are connected only while they are needed: at a take-over, after it, and when bodies exceed the memory.
_CLIENTS_OF_A_PARTITION = 4
#: Clients of the process: two for requests, one more while one of them is replaced, and one that asks where logs end.
#: Faust's has fewer descriptors than any of them.
_CLIENTS_OF_THE_PROCESS = 4
#: The process itself, some scrapes of its port at a time, and take-overs that ask each broker: some for each.
_OTHERS = 64


def of_a_client(brokers: int) -> int:
    """Descriptors of one client of librdkafka at most."""
    return 5 + 3 * brokers


def needed(partitions: int, brokers: int) -> int:
    """Descriptors of a worker that serves this many partitions, at most."""
    return _OTHERS + (_CLIENTS_OF_THE_PROCESS + _CLIENTS_OF_A_PARTITION * partitions) * of_a_client(brokers)


def refusal(limit: int, partitions: int, brokers: int) -> str:
    """A sentence about a limit that is too low for all partitions, which a worker may come to own."""
    return (
        f"this process may have {limit} file descriptors open, enough for {capacity(limit, brokers)} of {partitions} "
        f"partitions: raise its hard limit (ulimit -Hn, LimitNOFILE) to {needed(partitions, brokers)}, or start more "
        f"workers"
    )


def capacity(limit: int, brokers: int) -> int:
    """The number of partitions that a worker with this limit can serve."""
    return max(0, (limit - needed(0, brokers)) // (_CLIENTS_OF_A_PARTITION * of_a_client(brokers)))
