"""The reading stage: the cuts, the records below them as typed rows, and the facts that no record states."""
