"""`txbridge topics`: compare the internal topics with the wanted ones, create and change them; rights on them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from txbridge.cli.options import SOURCES, ClusterOptions, Format, OutputFormat, spread
from txbridge.cli.terminal import console, print_json
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names, is_group, is_topic
from txbridge.errors import UsageError
from txbridge.kafka.acl import Role, list_rights
from txbridge.kafka.admin import KafkaCluster
from txbridge.subject import Subject, about
from txbridge.topics.plan import MOST_PARTITIONS, PlanOptions, RealTopic, TopicAction, TopicPlan
from txbridge.topics.spec import DEFAULT_MESSAGE
from txbridge.topics.verify import apply as apply_plan
from txbridge.topics.verify import plan as make_plan

app = typer.Typer(name="topics", help="Create and check the internal topics.", no_args_is_help=True)

#: Exit codes: all as wanted (or made so), something to do (plan only), refused or not possible.
EXIT_OK, EXIT_CHANGES, EXIT_REFUSED = 0, 1, 2

_STYLE = {
    TopicAction.OK: "green",
    TopicAction.CREATE: "cyan",
    TopicAction.CHANGE: "yellow",
    TopicAction.REFUSED: "bold red",
}


RealTopics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC[:PARTITIONS]",
        help="Also create this real topic if it is missing, by default with 4 partitions; repeatable.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOptions:
    partitions: Annotated[
        int | None,
        typer.Option(
            help="Partitions of HALF, END, OP and OFFSET, which cannot change later. Default: as existing, else 1."
        ),
    ] = None
    replication_factor: Annotated[
        int | None, typer.Option(help="Replicas of new topics. Default: 3, or fewer with fewer brokers.")
    ] = None
    min_insync_replicas: Annotated[
        int | None,
        typer.Option(
            help="Replicas that must store a record before it counts. Default: one less than there are, at least 1."
        ),
    ] = None
    max_message_size: Annotated[int, typer.Option(help="Largest value of a user's message, in bytes.")] = (
        DEFAULT_MESSAGE
    )
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Also the check topic of this producer group, if its clients may not create it; may be repeated.",
        ),
    ] = None
    real_topic: RealTopics = None
    relay: Annotated[
        bool,
        typer.Option(
            "--relay", help="The topic of relays (OUTBOX, by default with 8 partitions), and no other internal one."
        ),
    ] = False

    def plan_options(self, settings: WorkerSettings) -> PlanOptions:
        """The options of a plan, from these flags and the settings. Raises UsageError."""
        return PlanOptions(
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            max_message_size=self.max_message_size,
            longest_wait=settings.longest_wait,
            groups=tuple(self.group or ()),
            real_topics=_real_topics(self.real_topic, settings),
            relay=self.relay,
        )


@app.command(epilog=SOURCES)
@spread
def plan(cluster: ClusterOptions, wanted: WantedOptions, output_format: OutputFormat = Format.TABLE) -> None:
    """Show what `apply` would do. Changes nothing.

    Exit code 0: nothing to do; 1: something to do; 2: refused, or the plan could not be made.
    """
    plans = _run(make_plan, cluster, wanted, output_format)
    if any(one.action is TopicAction.REFUSED for one in plans):
        raise typer.Exit(EXIT_REFUSED)
    raise typer.Exit(EXIT_OK if all(one.action is TopicAction.OK for one in plans) else EXIT_CHANGES)


@app.command(epilog=SOURCES)
@spread
def apply(cluster: ClusterOptions, wanted: WantedOptions, output_format: OutputFormat = Format.TABLE) -> None:
    """Create missing topics and raise settings that are too weak. If anything is refused, nothing is done.

    Exit code 0: all topics are as they should be; 2: refused, or failed.
    """
    plans = _run(apply_plan, cluster, wanted, output_format)
    raise typer.Exit(EXIT_REFUSED if any(one.action is TopicAction.REFUSED for one in plans) else EXIT_OK)


def _real_topics(given: list[str] | None, settings: WorkerSettings) -> tuple[RealTopic, ...]:
    names = Names(settings.namespace)
    found = {one.name: one for one in (RealTopic.parse(text, names, MOST_PARTITIONS) for text in given or ())}
    if len(found) < len(given or ()):
        raise UsageError("--real-topic names a topic twice")
    return tuple(found.values())


def _run(
    work: Callable[[KafkaCluster, Names, PlanOptions], list[TopicPlan]],
    cluster: ClusterOptions,
    wanted: WantedOptions,
    output_format: Format,
) -> list[TopicPlan]:
    settings = cluster.load_settings()
    options, names = wanted.plan_options(settings), Names(settings.namespace)
    with about(settings):
        kafka = KafkaCluster.connect(settings.librdkafka)
        subject = Subject(settings.namespace, settings.bootstrap_servers, kafka.read_greeting(names.half).cluster_id)
        plans = work(kafka, names, options)
    if output_format is Format.JSON:
        print_json(subject, {"topics": [{**asdict(one), "action": one.action.value} for one in plans]})
    else:
        _print_table(subject, plans, done=work is apply_plan)
    return plans


def _print_table(subject: Subject, plans: list[TopicPlan], *, done: bool) -> None:
    screen = console(wide=True)
    screen.print(str(subject))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("action", "topic", "partitions", "copies"):
        table.add_column(column, justify="right" if column in {"partitions", "copies"} else "left", no_wrap=True)
    table.add_column("what", overflow="fold")
    for one in plans:
        form = "{0.name}={0.new}" if one.action is TopicAction.CREATE else "{0.name}: {0.old} -> {0.new}"
        what = [*one.reasons, *one.notes, *map(form.format, one.changes)]
        table.add_row(
            Text(one.action.value, style=_STYLE[one.action]),
            one.topic,
            str(one.partitions),
            str(one.replication_factor),
            "\n".join(what),
        )
    screen.print(table)
    screen.print(_summary(plans, done=done))


def _summary(plans: list[TopicPlan], *, done: bool) -> str:
    count = Counter(one.action for one in plans)
    create, change, refused = (count[one] for one in (TopicAction.CREATE, TopicAction.CHANGE, TopicAction.REFUSED))
    if refused:
        return f"{refused} refused; {create} to create, {change} to change once that is resolved"
    if not create and not change:
        return "all topics are as they should be"
    return f"{create} created, {change} changed" if done else f"{create} to create, {change} to change: run apply"


@app.command(epilog=SOURCES)
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
