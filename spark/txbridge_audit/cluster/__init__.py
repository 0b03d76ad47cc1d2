"""Everything that both engines ask of a Kafka cluster: settings, offsets, cuts, and what no record states."""
