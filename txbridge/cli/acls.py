"""`txbridge topics acls`: the rights of a role, as lines for kafka-acls.sh. No cluster is asked or changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated

import typer

from txbridge.cli.options import ClusterOptions, Format, OutputFormat, spread
from txbridge.cli.terminal import print_json
from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import UsageError
from txbridge.kafka.acl import Role, list_rights
from txbridge.subject import Subject


@spread
def acls(
    cluster: ClusterOptions,
    role: Annotated[
        Role, typer.Option(help="Whose rights. A follower also needs those of an audit, a forwarder those of a relay.")
    ],
    principal: Annotated[
        str, typer.Option(metavar="TYPE:NAME", help="Kafka's name of the user, as in User:orders or User:CN=orders.")
    ],
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="A producer group of the client or answerer; may be repeated."),
    ] = None,
    real_topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="A real topic of the worker, relay or audit; may be repeated."),
    ] = None,
    app_id: Annotated[
        str | None, typer.Option(metavar="GROUP", help="The workers' consumer group, unless it has the default name.")
    ] = None,
    output_format: OutputFormat = Format.TABLE,
) -> None:
    """Print the rights of a role as commands that grant them. No cluster is asked or changed.

    To take the rights away, put --remove in the place of --add. Exit code 0: printed; 2: it cannot.
    """
    if not all(principal.partition(":")[::2]):
        raise UsageError(f"--principal takes TYPE:NAME, as in User:orders, not {principal!r}")
    settings = cluster.load_settings(app_id=app_id)
    _check_names("--group", group or [], role, needed=role.has_group, is_valid=is_group)
    _check_names("--real-topic", real_topic or [], role, needed=role.has_real_topic, is_valid=is_topic)
    found = list_rights(role, Names(settings.namespace), group or [], real_topic or [], app_id=settings.app_id)
    if output_format is Format.JSON:
        content = {"role": role.value, "principal": principal, "acls": [one.as_record() for one in found]}
        print_json(Subject(settings.namespace, settings.bootstrap_servers), content)
        return
    for right in found:
        words = ["--bootstrap-server", settings.bootstrap_servers, "--add", "--allow-principal", principal]
        typer.echo(shlex.join(["kafka-acls.sh", *words, *right.as_options()]))
    if role.has_group:
        typer.echo("clients of one namespace trust each other: see docs/security.md#tenants", err=True)


def _check_names(option: str, given: list[str], role: Role, *, needed: bool, is_valid: Callable[[str], bool]) -> None:
    if needed != bool(given):
        raise UsageError(f"--role {role.value} {'needs a' if needed else 'takes no'} {option}")
    for one in given:
        if not is_valid(one):
            raise UsageError(f"{option} {one!r} cannot be such a name: A-Z a-z 0-9 . _ - are allowed")
