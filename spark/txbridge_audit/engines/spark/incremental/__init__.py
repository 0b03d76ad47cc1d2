"""Continued audits: the steps of `--continue` and `--follow`, and the state between them."""
