"""The tables of outcomes and of the outbox, the same as txbridge_sqlalchemy's."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage
from django.db import models

_HAS_A_TIME = models.Q(deliver_at__isnull=False)


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
        indexes = (models.Index(fields=["deliver_at", "id"], name="txbridge_outbox_due", condition=_HAS_A_TIME),)

    def __str__(self) -> str:
        return f"{self.id} for {self.topic}"

    @classmethod
    def check(cls, **options: Any) -> list[CheckMessage]:
        """Without the warning of a database that makes the index of all rows: SQLAlchemy's outbox has it there, too."""
        return [one for one in super().check(**options) if one.id != "models.W037"]


class OutboxRelay(models.Model):
    """The one row of the relay's state: who works, and which batch was the last one. Only relays read and write it."""

    id = models.IntegerField(primary_key=True)
    identity = models.CharField(max_length=16)
    owner = models.CharField(max_length=32, null=True)  # noqa: DJ001  NULL: no relay has rows on their way
    batch = models.BigIntegerField()
    topic_id = models.CharField(max_length=32, null=True)  # noqa: DJ001  NULL before the first relay
    partition = models.IntegerField(null=True)
    position = models.BigIntegerField(null=True)

    class Meta:
        """The names that `txbridge relay` looks for."""

        db_table = "txbridge_outbox_relay"

    def __str__(self) -> str:
        return str(self.identity)
