"""The table of the outcomes of transactions, the same as txbridge_sqlalchemy's."""

from __future__ import annotations

from django.db import models


class Transaction(models.Model):
    """A decided transaction. While a transaction is open, its id is the right to decide it: keep it secret.

    One more row, with the id `barrier`, has the identity of the table as its state.
    """

    id = models.CharField(max_length=32, primary_key=True)
    state = models.CharField(max_length=16)
    #: Milliseconds since 1970-01-01 UTC.
    created_at = models.BigIntegerField()

    class Meta:
        """The names that `txbridge answer-checks` looks for."""

        db_table = "txbridge_transactions"
        indexes = (models.Index(fields=["created_at"], name="txbridge_tx_created_at"),)

    def __str__(self) -> str:
        return f"{self.id[:8]}... {self.state}"
