"""The ledger: one row per transaction with its fate and its history, for any SQL engine (docs/audit-ledger.md)."""
