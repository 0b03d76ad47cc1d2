"""The part of the worker's settings that the audit uses: Kafka options and limits."""

from __future__ import annotations

from txbridge.config.worker import WorkerSettings
from txbridge_audit.judge.facts import AuditLimits


def kafka_options(settings: WorkerSettings) -> dict[str, str]:
    """The Kafka properties as text, for `txbridge_audit.cluster.kafka_config`."""
    return {name: _text(value) for name, value in settings.kafka.items()}


def limits_of(settings: WorkerSettings, check_max: int | None, max_age: int | None) -> AuditLimits:
    """The limits from the workers' settings, or from the audit's own flags where they are given.

    The flags are not validated together with the settings, because they may be those of another time.
    """
    return AuditLimits(check_max or settings.transaction_check_max, max_age or settings.transaction_max_age)


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
