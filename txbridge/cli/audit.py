"""`txbridge audit`. audit_program.py does the work."""

from __future__ import annotations

import typer

from txbridge.cli.audit_options import AuditOptions
from txbridge.cli.options import ClusterOptions, spread
from txbridge.errors import needs
from txbridge.subject import about


@spread
def audit(cluster: ClusterOptions, options: AuditOptions) -> None:
    """Audit every transaction, from the topics alone. `--kafka java.KEY=VALUE` is for Spark only.

    Exit code 0: clean; 1: violations, or findings with --strict; 2: the audit failed.
    """
    # Only here: Arrow is an extra, and no other command should pay for its import.
    with needs("audit", "the audit works on Arrow batches"):
        from txbridge.cli import audit_program  # noqa: PLC0415
    settings = cluster.load_settings()
    with about(settings), needs("audit", "the page of an audit has a template"):
        code = audit_program.run(options, settings)
    raise typer.Exit(code)
