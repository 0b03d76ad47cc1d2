"""What both engines ask of a Kafka cluster: settings, offsets, cuts in their order, and what no record states."""
