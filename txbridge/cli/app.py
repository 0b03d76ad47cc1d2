"""All commands of `txbridge`. The module of one is imported when it is called: all of them take 0.15 s more."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from txbridge.cli.options import SOURCES
from txbridge.errors import needs_cli
from txbridge.interrupts import CTRL_C, EXIT_INTERRUPTED, end_on_signal
from txbridge.masking import masked


class Commands(TyperGroup):
    """The group of all commands: Ctrl-C ends each of them with one exit code and without a trace."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        return [*_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        # One that is mistyped is compared with all.
        for name in [cmd_name] if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self.commands.update(_load(name))
        return self.commands.get(cmd_name)

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


#: The modules and functions of the commands, in the order of the help.
_COMMANDS = {
    "dev": "dev.dev",
    "worker": "service.worker",
    "relay": "service.relay",
    "answer-checks": "service.answer_checks",
    "pending": "operations.pending_command",
    "resolve": "operations.resolve_command",
    "resume": "operations.resume_command",
    "resolve-all": "operations.resolve_all_command",
    "show": "operations.show_command",
    "acknowledge": "operations.acknowledge_command",
    "rocketmq": "rocketmq.rocketmq",
    "doctor": "doctor.doctor",
    "audit": "audit.audit",
    "purge": "service.purge",
    "demo": "dev.demo",
    "kafka": "kafka.app",
    "topics": "topics.app",
}
#: They take none of the options about the cluster.
_OF_NO_CLUSTER = {"purge", "demo"}


def _load(name: str) -> dict[str, Any]:
    """The command of this name, as click has it."""
    module, attribute = _COMMANDS[name].split(".")
    with needs_cli():
        found, alone = getattr(import_module(f"txbridge.cli.{module}"), attribute), typer.Typer()
    alone.rich_markup_mode = app.rich_markup_mode
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, epilog=None if name in _OF_NO_CLUSTER else SOURCES)(found)
    alone.callback()(lambda: None)
    return dict(typer.main.get_group(alone).commands)
