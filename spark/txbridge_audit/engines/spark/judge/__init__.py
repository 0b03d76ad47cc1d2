"""The judging stage: the ledger, the rules, and the verdicts that follow from them."""
