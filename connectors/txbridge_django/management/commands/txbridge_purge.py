"""`manage.py txbridge_purge`."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.db.models import Max, QuerySet

from txbridge.client.barrier import NEVER_PURGED, PURGED_ROW
from txbridge.client.barrier_purge import PURGE_AFTER, PurgedBarrierTable, mark_of, require_least_age
from txbridge.errors import UsageError
from txbridge.text import parse_age
from txbridge_django.conf import outbox_database
from txbridge_django.models import Transaction


class Command(BaseCommand):
    """Deletes old rows in small transactions."""

    help = "Delete rows of txbridge_transactions for which no check comes any more. Run it once a day."

    def add_arguments(self, parser: ArgumentParser) -> None:
        age = f"{PURGE_AFTER.days}d"
        parser.add_argument("--older-than", metavar="AGE", default=age, help=f"Of messages so old: 12h, 3d ({age}).")
        parser.add_argument("--dry-run", action="store_true", help="Only count them.")

    def handle(self, *_: Any, older_than: str, dry_run: bool, **__: Any) -> None:
        try:
            age = timedelta(milliseconds=parse_age(older_than, "--older-than"))
            require_least_age(age)
            database = outbox_database()
        except UsageError as error:
            raise CommandError(str(error)) from None
        if not connections[database].settings_dict["AUTOCOMMIT"]:
            raise CommandError(f"DATABASES[{database!r}] has AUTOCOMMIT = False: no deletion would be committed")
        table = _DjangoTable(Transaction.objects.using(database))
        deleted = table.purge_rows(age, dry_run=dry_run)
        self.stdout.write(f"{deleted} rows {'would be ' if dry_run else ''}deleted")


class _DjangoTable(PurgedBarrierTable):
    def __init__(self, rows: QuerySet[Transaction]) -> None:
        self._rows = rows

    def find_time(self, start: int, before: int, skipped: int) -> int | None:
        times = self._range(start, before, None).order_by("created_at").values_list("created_at", flat=True)
        return next(iter(times[skipped : skipped + 1]), None)

    def delete_rows(self, start: int, before: int, kept: str | None) -> int:
        return int(self._range(start, before, kept).delete()[0])

    def count_rows(self, start: int, before: int, kept: str | None) -> int:
        return int(self._range(start, before, kept).count())

    def find_newest(self) -> int | None:
        newest: int | None = self._rows.filter(created_at__lt=NEVER_PURGED).aggregate(at=Max("created_at"))["at"]
        return newest

    def raise_mark(self, mark: int) -> None:
        new = mark_of(mark)
        row, is_ours = self._rows.get_or_create(id=PURGED_ROW, defaults={"state": new, "created_at": NEVER_PURGED})
        if not is_ours and row.state < new:
            self._rows.filter(id=PURGED_ROW, state__lt=new).update(state=new)

    def _range(self, start: int, before: int, kept: str | None) -> QuerySet[Transaction]:
        within = self._rows.filter(created_at__gte=start, created_at__lt=before)
        return within if kept is None else within.exclude(state=kept)
