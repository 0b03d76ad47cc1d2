"""`txbridge acknowledge`: let workers serve a partition again whose log has lost its tail."""

from __future__ import annotations

from typing import Annotated

import typer

from txbridge.cli.operations import EXIT_DONE, EXIT_REFUSED, Operator, default_operator
from txbridge.cli.options import ClusterOptions, Format, OutputFormat, spread
from txbridge.cli.terminal import console, print_json
from txbridge.operations.acknowledge_loss import acknowledge
from txbridge.operations.connection import Connection
from txbridge.subject import about


@spread
def acknowledge_command(
    cluster: ClusterOptions,
    partition: Annotated[int, typer.Argument(help="Partition of HALF and END that workers refuse.")],
    reason: Annotated[str, typer.Option(help="Why the loss is accepted; recorded in the checkpoint.")],
    operator: Operator = None,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Accept that HALF or END of a partition has lost its tail, so that workers serve it again. The loss is described.

    Exit code 0: workers serve the partition again; 1: nothing was lost, nothing has changed; 2: failed.
    """
    settings = cluster.load_settings()
    with about(settings):
        connection = Connection.open(settings)
        found = acknowledge(connection, partition, reason=reason, operator=operator or default_operator())
    if output_format is Format.JSON:
        print_json(connection.subject, {"acknowledged": found.is_written, "lines": [*found.lines]})
    else:
        screen = console(soft_wrap=True)
        screen.print(str(connection.subject))
        for line in found.lines:
            screen.print(line)
    raise typer.Exit(EXIT_DONE if found.is_written else EXIT_REFUSED)
