"""The protocol as the audit reads it: records of every topic -> mentions. After docs/protocol.md and nothing else."""
