"""The command `txbridge`: mounts one module per group of commands and turns our errors into one clear line."""

from __future__ import annotations

import sys

import typer

from txbridge.admin import audit_cli, demo_cli, doctor_cli, kafka_cli, operations_cli, topics_cli, worker_cli
from txbridge.admin.options import SOURCES
from txbridge.errors import TxBridgeError

#: Exit code of every command that could not do its work; 1 is left to commands that did it and found something wrong.
EXIT_COULD_NOT = 2

app = typer.Typer(
    name="txbridge",
    help="RocketMQ-style transactional messages on Kafka.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(kafka_cli.app, name="kafka")
app.add_typer(topics_cli.app, name="topics")
app.command("worker")(worker_cli.make_command())
operations_cli.register(app)
app.command("doctor", epilog=SOURCES)(doctor_cli.doctor)
app.command("audit", epilog=SOURCES)(audit_cli.audit)
app.command("demo")(demo_cli.demo)


def main() -> None:
    """Run the command line. A user's mistake prints one line to stderr and exits with 2, never a trace."""
    try:
        app()
    except TxBridgeError as error:
        about = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        typer.secho(f"error: {error}{about}", fg=typer.colors.RED, err=True)
        sys.exit(EXIT_COULD_NOT)


if __name__ == "__main__":
    main()
