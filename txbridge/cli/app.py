"""All commands of `txbridge`, mounted one module per group."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from txbridge.cli import audit, dev, doctor, kafka, operations, rocketmq, service, topics
from txbridge.cli.options import SOURCES
from txbridge.interrupts import CTRL_C, EXIT_INTERRUPTED, end_on_signal
from txbridge.masking import masked


class Commands(TyperGroup):
    """The group of all commands: Ctrl-C ends each of them with one exit code and without a trace."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with end_on_signal(CTRL_C):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            # It quotes the command line, and typer would break that into the lines of a box.
            if hasattr(error, "message"):
                error.message = masked(str(error.message))
            raise


app = typer.Typer(
    name="txbridge",
    cls=Commands,
    help="RocketMQ-style transactional messages on Kafka.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich's markup colours the help. Without it the help is plain text.
    rich_markup_mode=None if os.environ.get("NO_COLOR") else "rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"txbridge {version('txbridge')}")
        raise typer.Exit


@app.callback()
def txbridge(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """RocketMQ-style transactional messages on Kafka."""


app.add_typer(kafka.app, name="kafka")
app.add_typer(topics.app, name="topics")
#: The other commands in the order of the help; typer calls them.
_COMMANDS = {
    "dev": dev.dev,
    "worker": service.worker_command(),
    "relay": service.relay,
    "answer-checks": service.answer_checks,
    "pending": operations.pending_command,
    "resolve": operations.resolve_command,
    "resume": operations.resume_command,
    "resolve-all": operations.resolve_all_command,
    "show": operations.show_command,
    "acknowledge": operations.acknowledge_command,
    "rocketmq": rocketmq.rocketmq,
    "doctor": doctor.doctor,
    "audit": audit.audit,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, epilog=SOURCES)(_command)
# These take none of the options about the cluster.
app.command("purge")(service.purge)
app.command("demo")(dev.demo)
