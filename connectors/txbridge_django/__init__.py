"""Transactional messages for Django: `transaction.atomic` is the local transaction, and a table answers every check."""

from txbridge.errors import missing_extra

if error := missing_extra(__name__, "django", "django"):
    raise error

from txbridge_django import outbox
from txbridge_django.process_producer import announce, get_producer, is_connected

__all__ = ["announce", "get_producer", "is_connected", "outbox"]
