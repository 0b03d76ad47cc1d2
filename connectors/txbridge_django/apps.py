"""App configuration for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register


class TxBridgeConfig(AppConfig):
    """Adds the tables and the checks. It starts no producer: most commands of manage.py send nothing."""

    name = "txbridge_django"
    label = "txbridge_django"
    verbose_name = "txbridge"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from txbridge_django.conf import check_settings, check_transactions  # noqa: PLC0415  settings are ready only now

        register(check_settings)
        register(check_transactions, Tags.database)
