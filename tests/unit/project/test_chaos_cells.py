"""The broker that a cell on three brokers kills."""

from __future__ import annotations

import pytest

from tests.chaos.cluster_cells import coordinating


@pytest.mark.parametrize(
    ("name", "partitions", "partition"),
    [
        ("", 50, 0),
        # 97
        ("a", 50, 47),
        # 97 * 31 + 98 = 3,105
        ("ab", 4, 1),
        # 99,162,322
        ("hello", 50, 22),
        # -609,428,141: the sign is dropped before the remainder is taken
        ("The quick brown fox jumps over the lazy dog", 50, 41),
        # (233 * 31 + 0xD83D) * 31 + 0xDE00 = 1,996,812: two units of UTF-16
        ("\u00e9\U0001f600", 1_000, 812),
        # -2,147,483,648 has no absolute value in 32 bits
        ("polygenelubricants", 50, 0),
    ],
)
def test_a_group_is_coordinated_where_kafka_puts_it(name: str, partitions: int, partition: int) -> None:
    """Kafka's rule: Utils.abs(name.hashCode()) % partitions."""
    assert coordinating(name, partitions) == partition
