"""The tables of outcomes and of the outbox, the same as txbridge_sqlalchemy's."""

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


class OutboxEntry(models.Model):
    """A message that `txbridge relay` sends, and then deletes. `outbox.add` writes it."""

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=249)
    key = models.BinaryField(null=True)
    value = models.BinaryField(null=True)
    #: A JSON list of pairs.
    headers = models.TextField(null=True)  # noqa: DJ001  no headers are NULL for the relay, not empty text
    partition = models.IntegerField(null=True)
    #: Milliseconds since 1970-01-01 UTC, as all times here.
    timestamp = models.BigIntegerField(null=True)
    deliver_at = models.BigIntegerField(null=True)
    created_at = models.BigIntegerField()

    class Meta:
        """The names that `txbridge relay` looks for."""

        db_table = "txbridge_outbox"
        verbose_name = "outbox entry"
        verbose_name_plural = "outbox entries"

    def __str__(self) -> str:
        return f"{self.id} for {self.topic}"


class OutboxLane(models.Model):
    """The last batch that a relay has sent of a part of the outbox. Only relays read and write it."""

    lane = models.IntegerField(primary_key=True)
    transaction_id = models.CharField(max_length=32, null=True)  # noqa: DJ001  NULL before the first batch
    half_partition = models.IntegerField(null=True)
    half_offset = models.BigIntegerField(null=True)

    class Meta:
        """The names that `txbridge relay` looks for."""

        db_table = "txbridge_outbox_lanes"

    def __str__(self) -> str:
        return f"{self.lane}"
