"""A deterministic simulator: the real owner code on a simulated Kafka with a virtual clock, under faults.

`python -m tests.simulator --seeds N --first-seed S`; docs/testing.md lists what it models.
"""
