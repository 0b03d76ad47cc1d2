"""The ledger as Spark writes it."""
