"""The frame of the commands that serve until a signal ends them."""

from __future__ import annotations

from collections.abc import Callable

from txbridge.config.worker import WorkerSettings
from txbridge.interrupts import end_at_hangup
from txbridge.subject import about


def serve(settings: WorkerSettings, run: Callable[[], object]) -> None:
    """Configure the log, and run. SIGHUP ends the command as SIGTERM does, and errors name the cluster."""
    # Only here: it needs structlog, of the extras whose programs run here.
    from txbridge import log  # noqa: PLC0415

    end_at_hangup()
    log.configure(settings.log_format, settings.log_level)
    with about(settings):
        run()
