"""The outbox in the admin: what waits for a relay, without bodies."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Length
from django.http import HttpRequest

from txbridge.client.message import now_ms
from txbridge_django.conf import outbox_database
from txbridge_django.models import OutboxEntry

#: Most characters of a key that are shown.
_KEY = 60


@admin.register(OutboxEntry)
class OutboxAdmin(admin.ModelAdmin):
    """Lists the rows, the oldest first. Nobody can change one: a relay may be sending it."""

    list_display = ("id", "topic", "shown_key", "age", "size")
    list_display_links = None
    fields = list_display
    ordering = ("id",)
    # The number of all rows would be counted once more.
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[OutboxEntry]:
        """Without what may be secret or large, which stays in the database."""
        found = super().get_queryset(request).using(outbox_database()).defer("value", "headers")
        return found.annotate(bytes=Coalesce(Length("value"), 0))

    @admin.display(description="key")
    def shown_key(self, entry: OutboxEntry) -> str | None:
        """The key as text, if it is text."""
        if entry.key is None:
            return None
        key = bytes(entry.key)
        try:
            return key.decode()[:_KEY]
        except UnicodeDecodeError:
            return key.hex()[:_KEY]

    @admin.display(description="age, s", ordering="created_at")
    def age(self, entry: Any) -> float:
        """Seconds since it was written, by this machine's clock."""
        return float(round((now_ms() - entry.created_at) / 1e3, 1))

    @admin.display(description="size, bytes", ordering="bytes")
    def size(self, entry: Any) -> int:
        """The size of the value."""
        return int(entry.bytes)

    def has_add_permission(self, _: HttpRequest) -> bool:
        """Messages are added by the application."""
        return False

    def has_change_permission(self, _request: HttpRequest, _entry: OutboxEntry | None = None) -> bool:
        """See the class."""
        return False

    has_delete_permission = has_change_permission
