"""`manage.py txbridge_purge`."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from txbridge.errors import UsageError
from txbridge_django.conf import valid_options
from txbridge_django.models import Transaction

#: Twice `transaction_max_age` (72 h), plus the 30 days for which a discarded message can be resumed.
DAYS = 36
_BATCH = 1_000
_DAY_MS = 86_400_000


class Command(BaseCommand):
    """Deletes rows that no check can need any more, in small transactions."""

    help = "Delete rows of txbridge_transactions that no check can need any more. Run it once a day."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--days", type=int, default=DAYS, help=f"Older than so many days ({DAYS}).")

    def handle(self, *_: Any, days: int, **__: Any) -> None:
        if days < 1:
            raise CommandError("--days must be at least 1")
        try:
            rows = Transaction.objects.using(valid_options().database)
        except UsageError as error:
            raise CommandError(str(error)) from None
        before = time.time_ns() // 1_000_000 - days * _DAY_MS
        deleted = 0
        while True:
            oldest = rows.filter(created_at__lt=before).order_by("created_at").values_list("id", flat=True)
            ids = list(oldest[:_BATCH])
            if not ids:
                break
            deleted += rows.filter(id__in=ids).delete()[0]
        self.stdout.write(f"{deleted} rows deleted")
