"""The engine without Java: confluent-kafka reads, and the mentions lie in memory or in SQLite."""
