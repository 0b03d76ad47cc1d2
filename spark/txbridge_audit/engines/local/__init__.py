"""The engine without Java: confluent-kafka reads. The rows lie in memory, in a file, or in the state of a ledger."""
